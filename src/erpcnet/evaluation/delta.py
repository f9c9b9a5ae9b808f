"""Choosing delta, of calibrated stacking, on validation classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from erpcnet.evaluation.gzsl import GZSLAnswers, ScoredImages
from erpcnet.evaluation.stacking import StackedLogits, accuracies, stack

POINTS = 400  # deltas that H is compared at
PLATEAU = 0.01  # what lies within a point of the best H is as good: its middle moves less than its highest point
SHARES, DRAWS = (0.5, 0.7), 10  # of the seen classes, and how often each share is drawn
FEWEST = 6  # seen classes of which parts say anything


@dataclass(frozen=True)
class ValidationCurve:
    """U, S and H over delta, as means over validation folds.

    Attributes:
        deltas: [P], from 0.
        unseen: [P], U.
        seen: [P], S.
        chosen: The delta that was chosen.
        by_fold: What each fold by itself asks for.
        classes: How many validation classes there are in all folds.
        at_risk: What H has been below its best at the chosen delta, in the fold where that was worst.
    """

    deltas: tuple[float, ...]
    unseen: tuple[float, ...]
    seen: tuple[float, ...]
    chosen: float
    by_fold: tuple[float, ...]
    classes: int
    at_risk: float

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ValidationCurve:
        """From plain values.

        Raises:
            ValueError: They are no such curve.
        """
        lists = {name: tuple(map(float, values[name])) for name in ("deltas", "unseen", "seen", "by_fold")}
        if not lists["deltas"] or len({len(lists[name]) for name in ("deltas", "unseen", "seen")}) > 1:
            raise ValueError("the points of the curve do not belong together")
        return cls(
            deltas=lists["deltas"],
            unseen=lists["unseen"],
            seen=lists["seen"],
            chosen=float(values["chosen"]),
            by_fold=lists["by_fold"],
            classes=int(values["classes"]),
            at_risk=float(values["at_risk"]),
        )

    def at(self, delta: float) -> tuple[float, float, float]:
        """U, S and H at one delta."""
        u, s = (float(np.interp(delta, self.deltas, values)) for values in (self.unseen, self.seen))
        return u, s, 2 * u * s / (u + s) if u + s else 0.0

    def describe(self) -> str:
        """In a sentence, how far to trust it."""
        folds = f" in {len(self.by_fold)} folds" if len(self.by_fold) > 1 else ""
        apart = f", which ask for {min(self.by_fold):.2f} to {max(self.by_fold):.2f}" if folds else ""
        return (
            f"delta {self.chosen:.2f} from {self.classes} validation classes{folds}{apart}; there it costs up to "
            f"{100 * self.at_risk:.1f} points of H"
        )


def choose_delta(folds: Sequence[ScoredImages], sigma: float) -> ValidationCurve:
    """The delta for the network that is trained on all seen classes, from networks that were not.

    The more seen classes there are, the higher the best of them scores, and the larger delta has to be. How much
    larger is seen on each fold, whose curve is known for any part of its seen classes: delta grows with the logarithm
    of their number, and from that of the fold it is extended to that of all.

    Args:
        folds: Rollouts of networks that never saw their fold's validation classes, or scores of other models.
        sigma: Early stop.
    """
    answers = [_Answers.of(one, sigma) for one in folds]
    last = max(float(torch.cat([one.seen.best.gap, one.unseen.best.gap]).max()) for one in answers)
    deltas = torch.linspace(0, max(last, 1e-6), POINTS, dtype=torch.float64, device=answers[0].seen.logits.device)
    found = [one.accuracies(deltas) for one in answers]
    middles = [plateau(deltas, harmonic_means(*one)) for one in found]
    slope = float(np.mean([_slope(one, deltas) for one in answers]))
    counts = [(len(one.dataset.seen), len(one.dataset.unseen)) for one in folds]
    by_fold = tuple(
        middle + slope * math.log((seen + unseen) / seen)
        for middle, (seen, unseen) in zip(middles, counts, strict=True)
    )
    chosen = float(np.mean(by_fold))
    lost = [_lost(deltas, harmonic_means(*one), chosen) for one in found]
    u, s = (torch.stack(parts).mean(dim=0) for parts in zip(*found, strict=True))
    return ValidationCurve(
        deltas=tuple(deltas.tolist()),
        unseen=tuple(u.tolist()),
        seen=tuple(s.tolist()),
        chosen=chosen,
        by_fold=by_fold,
        classes=sum(unseen for _, unseen in counts),
        at_risk=max(lost),
    )


def plateau(deltas: Tensor, means: Tensor) -> float:
    """The mean of the deltas [P] whose H [P] is within `PLATEAU` of the best; 0 where H is 0 everywhere."""
    if float(means.max()) == 0:
        return 0.0
    return float(deltas[means >= means.max() - PLATEAU].mean())


def harmonic_means(unseen: Tensor, seen: Tensor) -> Tensor:
    """H of U [P] and S [P]."""
    total = unseen + seen
    return torch.where(total > 0, 2 * unseen * seen / total.clamp_min(1e-12), torch.zeros_like(total))


def _lost(deltas: Tensor, means: Tensor, delta: float) -> float:
    nearest = int((deltas - delta).abs().argmin())
    return float(means.max() - means[nearest])


class _Answers(NamedTuple):
    """What is answered about images of a fold's seen classes, and of its validation classes."""

    seen: GZSLAnswers
    unseen: GZSLAnswers

    @classmethod
    def of(cls, fold: ScoredImages, sigma: float) -> _Answers:
        return cls(GZSLAnswers.of(fold, "seen", sigma), GZSLAnswers.of(fold, "unseen", sigma))

    @property
    def seen_classes(self) -> Tensor:
        return self.seen.classes[self.seen.is_seen]

    def accuracies(self, deltas: Tensor) -> tuple[Tensor, Tensor]:
        """U [P] and S [P]."""
        return accuracies(self.seen.best, self.seen.labels, self.unseen.best, self.unseen.labels, deltas)

    def among(self, seen_classes: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
        """U [P] and S [P] if there were only these seen classes, and images of them."""
        columns = torch.isin(self.seen.classes, seen_classes) | ~self.seen.is_seen
        numbers, is_seen = self.seen.classes[columns], self.seen.is_seen[columns]

        def best(logits: Tensor) -> StackedLogits:
            found = stack(logits[:, columns], is_seen)
            return StackedLogits(numbers[found.best_seen], numbers[found.best_unseen], found.gap)

        rows = torch.isin(self.seen.labels, seen_classes)
        of_seen, of_unseen = best(self.seen.logits[rows]), best(self.unseen.logits)
        return accuracies(of_seen, self.seen.labels[rows], of_unseen, self.unseen.labels, deltas)


def _slope(answers: _Answers, deltas: Tensor) -> float:
    """By how much delta grows when there are e times as many seen classes; never less than 0."""
    classes = answers.seen_classes
    if len(classes) < FEWEST:
        return 0.0
    generator = torch.Generator().manual_seed(0)
    counts = [max(2, round(share * len(classes))) for share in SHARES]
    middles = [plateau(deltas, harmonic_means(*answers.accuracies(deltas)))]
    for count in counts:
        means = torch.zeros_like(deltas)
        for _ in range(DRAWS):
            some = classes[torch.randperm(len(classes), generator=generator)[:count].to(classes.device)]
            means += harmonic_means(*answers.among(some, deltas)) / DRAWS
        middles.append(plateau(deltas, means))
    return max(0.0, float(np.polyfit(np.log([len(classes), *counts]), middles, 1)[0]))
