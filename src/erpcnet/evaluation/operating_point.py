"""Choosing sigma, delta and temperatures: on validation classes, without looking at the test classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.dataset import IntArray
from erpcnet.evaluation.calibration import fit_temperature
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.rollouts import EvaluationRollouts, Split
from erpcnet.model.scoring import Answers, OperatingPoint, Protocol, Temperatures, stack_logits

# r = beta (p + p) can pass 2 where beta passes 1; the last one never stops.
SIGMAS = (*(round(0.1 * step, 1) for step in range(1, 23)), float("inf"))


def choose_operating_point(
    rollouts: EvaluationRollouts, sigma: float | None, delta: float | None, stop_loss: float, protocol: Protocol
) -> OperatingPoint:
    """sigma, then delta, from these rollouts, where they are not given; and the temperatures that go with them.

    Args:
        rollouts: Over classes that training did not see: those of a validation fold.
        sigma: Early stop, if it is given.
        delta: Calibrated stacking, if it is given.
        stop_loss: See `choose_sigma`.
        protocol: What the result says about how it was chosen.
    """
    sigma = choose_sigma(rollouts, stop_loss) if sigma is None else sigma
    if delta is None:
        delta = seen_unseen_curve(rollouts, sigma).best()[0] if rollouts.seen is not None else 0.0
    temperature = temperature_all = fit_temperatures(rollouts, ["unseen"], rollouts.dataset.unseen, sigma, delta)
    if rollouts.seen is not None:
        classes = np.concatenate([rollouts.dataset.seen, rollouts.dataset.unseen])
        temperature_all = fit_temperatures(rollouts, ["seen", "unseen"], classes, sigma, delta)
    return OperatingPoint(sigma, delta, protocol, temperature, temperature_all)


def choose_sigma(rollouts: EvaluationRollouts, stop_loss: float) -> float:
    """The smallest sigma from which on stopping costs no more than `stop_loss`, a share of the images.

    What is counted are the images whose answer stopping turns wrong, less those it turns right, plus a standard
    error. Images whose answer stays the same say nothing about stopping, and left out they add no noise: accuracies
    of a few hundred images, compared, move by points when nothing is better or worse.
    """
    if rollouts.network.policy is None:
        return float("inf")
    classes, labels = rollouts.dataset.unseen, rollouts.labels("unseen")
    numbers, scored = torch.from_numpy(classes).to(labels.device), rollouts.score("unseen", classes)

    def right(sigma: float) -> Tensor:
        return numbers[scored.stopped(sigma).final.argmax(dim=1)] == labels

    never, smallest = right(float("inf")), float("inf")
    for sigma in reversed(SIGMAS):
        stopped = right(sigma)
        lost, won = int((never & ~stopped).sum()), int((stopped & ~never).sum())
        if lost - won + (lost + won) ** 0.5 > stop_loss * len(labels):
            break
        smallest = sigma
    return smallest


def fit_temperatures(
    rollouts: EvaluationRollouts, splits: Sequence[Split], classes: IntArray, sigma: float, delta: float
) -> Temperatures:
    """The temperatures of the confidence among these classes: after the glance, and where rollouts end."""
    is_seen = torch.from_numpy(np.isin(classes, rollouts.dataset.seen))
    columns = torch.cat([columns_of(rollouts.labels(split), classes) for split in splits])
    answers: list[Answers] = [rollouts.score(split, classes).stopped(sigma) for split in splits]

    def fitted(logits: Tensor) -> float:
        return fit_temperature(stack_logits(logits, is_seen.to(logits.device), delta), columns)

    return fitted(torch.cat([one.glance for one in answers])), fitted(torch.cat([one.final for one in answers]))


def columns_of(labels: Tensor, classes: IntArray) -> Tensor:
    """The place [N] of each label among these classes, in ascending order or not; -1 where it is none of them."""
    match = labels[:, None] == torch.from_numpy(classes).to(labels.device)
    return torch.where(match.any(dim=1), match.int().argmax(dim=1), -1)
