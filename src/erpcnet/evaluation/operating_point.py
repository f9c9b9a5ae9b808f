"""Choosing sigma, delta and temperatures: on validation classes, without looking at the test classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.data.dataset import IntArray
from erpcnet.evaluation.attributes import validation_auc
from erpcnet.evaluation.calibration import fit_temperature
from erpcnet.evaluation.delta import ValidationCurve, choose_delta
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.rejection import RejectChoice, choose_threshold
from erpcnet.evaluation.rollouts import EvaluationRollouts, Split
from erpcnet.model.scoring import OperatingPoint, Protocol, Temperatures, stack_logits

# r = beta (p + p) can pass 2 where beta passes 1; the last one never stops.
SIGMAS = (*(round(0.1 * step, 1) for step in range(1, 23)), float("inf"))


@dataclass(frozen=True)
class StopChoice:
    """How sigma was chosen, in counts of validation images.

    Attributes:
        sigma: What was chosen; infinite: all T steps, 0: the glance alone.
        images: Of all folds.
        won: Images whose answer T steps turn right, which the glance has wrong.
        lost: The other way round.
        stopped_won: Images whose answer stopping at `sigma` turns right, which T steps have wrong.
        stopped_lost: The other way round.
        mean_steps: Steps taken with `sigma`.
        steps: T.
    """

    sigma: float
    images: int
    won: int
    lost: int
    stopped_won: int
    stopped_lost: int
    mean_steps: float
    steps: int

    def describe(self) -> str:
        """In a sentence, what is used and why."""
        localities = (
            f"on {self.images} validation images localities turn {self.won} wrong answers of the glance right, and "
            f"{self.lost} right ones wrong"
        )
        if self.sigma == 0:
            return f"{localities}: they do not pay here, and the glance alone is used"
        if self.sigma == math.inf:
            return f"{localities}; stopping early would cost too many of them, so all {self.steps} steps are taken"
        return (
            f"{localities}; stopping at sigma {self.sigma:g} takes {self.mean_steps:.1f} of {self.steps} steps, and "
            f"turns {self.stopped_won} right and {self.stopped_lost} wrong"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite sigma is None, since JSON has no infinity."""
        return {**asdict(self), "sigma": None if self.sigma == math.inf else self.sigma}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StopChoice:
        """What `to_json` gave."""
        numbers = {name: float(value) for name, value in values.items() if name != "sigma"}
        counts = {name: int(numbers[name]) for name in numbers if name != "mean_steps"}
        sigma = math.inf if values["sigma"] is None else float(values["sigma"])
        return cls(sigma=sigma, mean_steps=numbers["mean_steps"], **counts)


class Plainer(NamedTuple):
    """A way to evaluate the same network with fewer extras, and the operating point that was chosen for it."""

    crops: int
    hubness: float
    point: OperatingPoint


class Choice(NamedTuple):
    """An operating point, and what it was chosen by.

    The curve of delta and the counts of sigma, where these were chosen; how well each attribute was read (AUC); and
    the operating points without test-time augmentation, hubness correction, or both, where the run has them.
    """

    point: OperatingPoint
    curve: ValidationCurve | None = None
    stop: StopChoice | None = None
    attribute_auc: dict[str, float] | None = None
    reject: RejectChoice | None = None
    plainer: tuple[Plainer, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What validation.json holds."""
        return {
            "delta": None if self.curve is None else asdict(self.curve),
            "sigma": None if self.stop is None else self.stop.to_json(),
            "attribute_auc": self.attribute_auc,
            "reject": None if self.reject is None else self.reject.to_json(),
            "plainer": [{**one._asdict(), "point": one.point.to_json()} for one in self.plainer],
        }


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
    stop = None
    if sigma is None:
        stop = choose_sigma(folds, stop_loss)
        sigma = math.inf if stop is None else stop.sigma
    found = None
    if delta is None and all(fold.seen is not None for fold in folds):
        found = choose_delta(folds, sigma)
        delta = found.chosen
    return Choice(_point(folds, sigma, delta or 0.0, "validation"), found, stop)


def with_diagnosis(
    choice: Choice, folds: Sequence[EvaluationRollouts], sigma: float | None, delta: float | None, stop_loss: float
) -> Choice:
    """A choice with what else the validation classes tell: the threshold of rejection, each attribute's AUC, and the
    operating points of plainer ways to evaluate; the arguments are those of `choose_operating_point`.
    """
    point = choice.point
    reject = choose_threshold(folds, point.sigma, point.delta)
    point = replace(point, reject=None if reject is None else reject.threshold)
    crops, hubness = folds[0].crops, folds[0].network.settings.hubness
    plainer = []
    for fewer, less in {(1, 0.0), (1, hubness), (crops, 0.0)} - {(crops, hubness)}:
        found = choose_operating_point([fold.plainer(fewer, less) for fold in folds], sigma, delta, stop_loss)
        plainer.append(Plainer(fewer, less, found.point))
    ordered = tuple(sorted(plainer, key=lambda one: (one.crops, one.hubness)))
    return choice._replace(point=point, reject=reject, attribute_auc=validation_auc(folds), plainer=ordered)


def choose_on_test(
    rollouts: EvaluationRollouts, sigma: float | None, delta: float | None, stop_loss: float
) -> OperatingPoint:
    """The same on the test images themselves, where the best delta is known: only to compare. Where both are given,
    nothing is looked at.
    """
    if sigma is not None and delta is not None:
        return OperatingPoint(sigma, delta, "fixed")
    if sigma is None:
        stop = choose_sigma([rollouts], stop_loss)
        sigma = math.inf if stop is None else stop.sigma
    if delta is None:
        delta = seen_unseen_curve(rollouts, sigma).best()[0] if rollouts.seen is not None else 0.0
    return _point([rollouts], sigma, delta, "test")


def _point(folds: Sequence[EvaluationRollouts], sigma: float, delta: float, protocol: Protocol) -> OperatingPoint:
    temperature = temperature_all = fit_temperatures(folds, ["unseen"], sigma, delta)
    if all(fold.seen is not None for fold in folds):
        temperature_all = fit_temperatures(folds, ["seen", "unseen"], sigma, delta)
    return OperatingPoint(sigma, delta, protocol, temperature, temperature_all)


def choose_sigma(folds: Sequence[EvaluationRollouts], stop_loss: float) -> StopChoice | None:
    """The smallest sigma from which on stopping costs no more than `stop_loss`, a share of the images of all folds; 0,
    the glance alone, where localities cost more T1 than a standard error. None without a policy: nothing stops then.

    What is counted for stopping are the images whose answer it turns wrong, less those it turns right, plus a standard
    error. Images whose answer stays the same say nothing about stopping, and left out they add no noise: accuracies
    of a few hundred images, compared, move by points when nothing is better or worse.

    Whether localities pay at all is a matter of classes: images of one are turned right or wrong together, so that a
    few classes of many images would decide. The standard error is that of the mean over classes, of every fold.
    """
    if any(fold.network.policy is None for fold in folds):
        return None
    scored = [(fold, fold.score("unseen", fold.dataset.unseen), fold.labels("unseen")) for fold in folds]

    def right(sigma: float) -> Tensor:
        parts = []
        for fold, answers, labels in scored:
            numbers = torch.from_numpy(fold.dataset.unseen).to(labels.device)
            parts.append(numbers[answers.stopped(sigma).final.argmax(dim=1)] == labels)
        return torch.cat(parts)

    def changed(of: Tensor, to: Tensor) -> tuple[int, int]:
        """How many answers `to` turns right, and how many it turns wrong."""
        return int((to & ~of).sum()), int((of & ~to).sum())

    never, glance, smallest = right(math.inf), right(0.0), math.inf
    for sigma in reversed(SIGMAS):
        won, lost = changed(never, right(sigma))
        if lost - won + (lost + won) ** 0.5 > stop_loss * len(never):
            break
        smallest = sigma
    won, lost = changed(glance, never)
    gains = _by_class(never.double() - glance.double(), [labels for _, _, labels in scored])
    if len(gains) > 1:
        localities_cost = bool(gains.mean() < -gains.std() / len(gains) ** 0.5)
    else:  # of one class there is no telling how classes differ, but how images do
        localities_cost = lost - won > (lost + won) ** 0.5
    if localities_cost:
        smallest = 0.0
    stopped_won, stopped_lost = changed(never, right(smallest))
    steps = torch.cat([answers.steps(smallest).double().flatten() for _, answers, _ in scored])
    most = scored[0][1].reward.shape[-1]
    return StopChoice(smallest, len(never), won, lost, stopped_won, stopped_lost, float(steps.mean()), most)


def _by_class(values: Tensor, labels: Sequence[Tensor]) -> Tensor:
    """The mean of the values [N] over the images of each class of each fold, one fold's images after the other's."""
    means = []
    for own, classes in zip(values.split([len(one) for one in labels]), labels, strict=True):
        means += [own[classes == label].mean() for label in classes.unique()]
    return torch.stack(means)


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
