"""Choosing sigma, delta and temperatures: on validation classes, without looking at the test classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.data.dataset import IntArray
from erpcnet.evaluation.calibration import fit_temperature
from erpcnet.evaluation.delta import ValidationCurve, choose_delta
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.rollouts import EvaluationRollouts, Split
from erpcnet.model.scoring import OperatingPoint, Protocol, Temperatures, stack_logits

# r = beta (p + p) can pass 2 where beta passes 1; the last one never stops.
SIGMAS = (*(round(0.1 * step, 1) for step in range(1, 23)), float("inf"))


class Choice(NamedTuple):
    """An operating point, and the curve that delta was chosen on, if it was."""

    point: OperatingPoint
    curve: ValidationCurve | None = None


def choose_operating_point(
    folds: Sequence[EvaluationRollouts], sigma: float | None, delta: float | None, stop_loss: float
) -> Choice:
    """sigma, then delta, where they are not given; and the temperatures that go with them.

    Args:
        folds: Rollouts over validation classes, of one or several networks that did not see them in training.
        sigma: Early stop, if it is given.
        delta: Calibrated stacking, if it is given.
        stop_loss: See `choose_sigma`.
    """
    sigma = choose_sigma(folds, stop_loss) if sigma is None else sigma
    found = None
    if delta is None and all(fold.seen is not None for fold in folds):
        found = choose_delta(folds, sigma)
        delta = found.chosen
    return Choice(_point(folds, sigma, delta or 0.0, "validation"), found)


def choose_on_test(
    rollouts: EvaluationRollouts, sigma: float | None, delta: float | None, stop_loss: float
) -> OperatingPoint:
    """The same on the test images themselves, where the best delta is known: only to compare. Where both are given,
    nothing is looked at.
    """
    if sigma is not None and delta is not None:
        return OperatingPoint(sigma, delta, "fixed")
    sigma = choose_sigma([rollouts], stop_loss) if sigma is None else sigma
    if delta is None:
        delta = seen_unseen_curve(rollouts, sigma).best()[0] if rollouts.seen is not None else 0.0
    return _point([rollouts], sigma, delta, "test")


def _point(folds: Sequence[EvaluationRollouts], sigma: float, delta: float, protocol: Protocol) -> OperatingPoint:
    temperature = temperature_all = fit_temperatures(folds, ["unseen"], sigma, delta)
    if all(fold.seen is not None for fold in folds):
        temperature_all = fit_temperatures(folds, ["seen", "unseen"], sigma, delta)
    return OperatingPoint(sigma, delta, protocol, temperature, temperature_all)


def choose_sigma(folds: Sequence[EvaluationRollouts], stop_loss: float) -> float:
    """The smallest sigma from which on stopping costs no more than `stop_loss`, a share of the images of all folds.

    What is counted are the images whose answer stopping turns wrong, less those it turns right, plus a standard
    error. Images whose answer stays the same say nothing about stopping, and left out they add no noise: accuracies
    of a few hundred images, compared, move by points when nothing is better or worse.
    """
    if any(fold.network.policy is None for fold in folds):
        return float("inf")
    scored = [(fold, fold.score("unseen", fold.dataset.unseen), fold.labels("unseen")) for fold in folds]

    def right(sigma: float) -> Tensor:
        parts = []
        for fold, answers, labels in scored:
            numbers = torch.from_numpy(fold.dataset.unseen).to(labels.device)
            parts.append(numbers[answers.stopped(sigma).final.argmax(dim=1)] == labels)
        return torch.cat(parts)

    never, smallest = right(float("inf")), float("inf")
    for sigma in reversed(SIGMAS):
        stopped = right(sigma)
        lost, won = int((never & ~stopped).sum()), int((stopped & ~never).sum())
        if lost - won + (lost + won) ** 0.5 > stop_loss * len(never):
            break
        smallest = sigma
    return smallest


def fit_temperatures(
    folds: Sequence[EvaluationRollouts], splits: Sequence[Split], sigma: float, delta: float
) -> Temperatures:
    """The temperatures of the confidence about images of these splits, after the glance and where rollouts end; among
    the unseen classes, or with images of both splits among all.
    """
    glances: list[Tensor] = []
    finals: list[Tensor] = []
    columns: list[Tensor] = []
    for fold in folds:
        dataset = fold.dataset
        classes = np.concatenate([dataset.seen, dataset.unseen]) if "seen" in splits else dataset.unseen
        is_seen = torch.from_numpy(np.isin(classes, dataset.seen))
        for split in splits:
            answers, labels = fold.score(split, classes).stopped(sigma), fold.labels(split)
            columns.append(columns_of(labels, classes))
            for parts, logits in ((glances, answers.glance), (finals, answers.final)):
                parts.append(stack_logits(logits, is_seen.to(logits.device), delta))
    labels = torch.cat(columns)
    return fit_temperature(_cat(glances), labels), fit_temperature(_cat(finals), labels)


def _cat(parts: Sequence[Tensor]) -> Tensor:
    """Logits [N, C] of all folds; classes that a fold does not have are out of the question in it."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[1]), value=float("-inf")) for part in parts])


def columns_of(labels: Tensor, classes: IntArray) -> Tensor:
    """The place [N] of each label among these classes, in ascending order or not; -1 where it is none of them."""
    match = labels[:, None] == torch.from_numpy(classes).to(labels.device)
    return torch.where(match.any(dim=1), match.int().argmax(dim=1), -1)
