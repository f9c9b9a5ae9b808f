"""Calibrated stacking (Chao et al., 2016): delta is subtracted from seen classes, so that unseen ones stand a chance.

Whatever delta is, an image's answer is either its best seen class or its best unseen class, and it changes sides
where delta passes the gap between the two logits. So all deltas are known from one sort.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from erpcnet.errors import InputError
from erpcnet.evaluation.metrics import class_weights

LARGEST_DELTA = 1e30  # beyond which logits vanish beside it


def check_delta(delta: object) -> None:
    """Refuse what cannot be a delta; None is that of a run, or none at all."""
    real = isinstance(delta, Real) and not isinstance(delta, bool) and abs(float(delta)) <= LARGEST_DELTA
    if delta is not None and not real:
        raise InputError(f"delta is {str(delta)[:40]}; it must be a finite number.")


@dataclass(frozen=True)
class StackedLogits:
    """Each image's best seen and best unseen class [N], and the gap between their logits [N]."""

    best_seen: Tensor
    best_unseen: Tensor
    gap: Tensor

    def predict(self, delta: float) -> Tensor:
        """The answers at one delta; a tie goes to the seen class."""
        return torch.where(self.gap >= delta, self.best_seen, self.best_unseen)


def stack(logits: Tensor, seen: Tensor) -> StackedLogits:
    """logits [N, C] over all classes, seen [C] bool."""
    of_seen = logits.masked_fill(~seen, float("-inf")).max(dim=1)
    of_unseen = logits.masked_fill(seen, float("-inf")).max(dim=1)
    return StackedLogits(of_seen.indices, of_unseen.indices, of_seen.values - of_unseen.values)


@dataclass(frozen=True)
class Curve:
    """U and S at every delta that changes anything, and at 0: `deltas` ascend, U rises from 0, S falls to 0."""

    deltas: Tensor
    unseen: Tensor
    seen: Tensor

    def ausuc(self) -> float:
        """Area under the seen-unseen accuracy curve (Chao et al., 2016)."""
        return float(torch.trapezoid(self.seen, self.unseen))

    def best(self) -> tuple[float, float]:
        """The delta with the highest H (the middle of its plateau), and that H.

        Seen classes never get a bonus: a network leans towards them, and what a few images say against that is chance.
        """
        total = self.unseen + self.seen
        means = (2 * self.unseen * self.seen / total).masked_fill((total == 0) | (self.deltas < 0), 0.0)
        if means.max() == 0:  # nothing is right on both sides at any delta, so nothing speaks for one
            return 0.0, 0.0
        top = (means >= means.max() - 1e-12).nonzero().flatten()
        return float(self.deltas[top[len(top) // 2]]), float(means.max())


def curve(of_seen: StackedLogits, seen_labels: Tensor, of_unseen: StackedLogits, unseen_labels: Tensor) -> Curve:
    """The curve from images of seen classes and images of unseen classes."""
    gaps = torch.cat([of_seen.gap, of_unseen.gap]).double().unique()
    middles = (gaps[1:] + gaps[:-1]) / 2
    deltas = torch.cat([gaps[:1] - 1, middles, gaps[-1:] + 1, gaps.new_zeros(1)]).sort().values
    return Curve(deltas, *accuracies(of_seen, seen_labels, of_unseen, unseen_labels, deltas))


def accuracies(
    of_seen: StackedLogits, seen_labels: Tensor, of_unseen: StackedLogits, unseen_labels: Tensor, deltas: Tensor
) -> tuple[Tensor, Tensor]:
    """U [P] and S [P] at deltas [P] of one's own."""
    right_seen = class_weights(seen_labels) * (of_seen.best_seen == seen_labels)
    right_unseen = class_weights(unseen_labels) * (of_unseen.best_unseen == unseen_labels)
    unseen = _reached(of_unseen.gap.double(), right_unseen, deltas)
    seen = right_seen.sum() - _reached(of_seen.gap.double(), right_seen, deltas)
    return unseen, seen.clamp_min(0)


def _reached(gaps: Tensor, weights: Tensor, deltas: Tensor) -> Tensor:
    """The weight of the images whose gap lies below each delta."""
    order = gaps.argsort()
    total = torch.cat([weights.new_zeros(1), weights[order].cumsum(0)])
    return total[torch.searchsorted(gaps[order].contiguous(), deltas.to(total))]
