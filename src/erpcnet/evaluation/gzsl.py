"""Generalised ZSL: images of seen and of unseen classes among all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.dataset import IntArray, ZeroShotDataset
from erpcnet.evaluation.rollouts import Split
from erpcnet.evaluation.stacking import Curve, StackedLogits, curve, stack
from erpcnet.model.scoring import OperatingPoint, ScoredRollout


class ScoredImages(Protocol):
    """Test images that can be scored: `EvaluationRollouts`, or the scores of any other model."""

    @property
    def dataset(self) -> ZeroShotDataset: ...

    def labels(self, split: Split) -> Tensor:
        """The true classes [N], as numbers of the dataset."""

    def score(self, split: Split, classes: IntArray) -> ScoredRollout:
        """The logits of these classes, by their numbers."""


@dataclass(frozen=True)
class GZSLAnswers:
    """What is answered about the images of one split among all classes.

    Attributes:
        logits: [N, C], the seen classes first.
        classes: [C], numbers of the dataset.
        is_seen: [C] bool.
        steps: [N].
        labels: [N], numbers of the dataset.
        best: The best seen and the best unseen class of each image, as numbers of the dataset.
    """

    logits: Tensor
    classes: Tensor
    is_seen: Tensor
    steps: Tensor
    labels: Tensor
    best: StackedLogits

    @classmethod
    def of(cls, rollouts: ScoredImages, split: Split, sigma: float) -> GZSLAnswers:
        """With early stop at sigma."""
        dataset = rollouts.dataset
        classes = np.concatenate([dataset.seen, dataset.unseen])
        answers = rollouts.score(split, classes).stopped(sigma)
        numbers = torch.from_numpy(classes).to(answers.logits.device)
        is_seen = torch.arange(len(classes), device=numbers.device) < len(dataset.seen)
        found = stack(answers.final, is_seen)
        best = StackedLogits(numbers[found.best_seen], numbers[found.best_unseen], found.gap)
        return cls(answers.final, numbers, is_seen, answers.mean_steps, rollouts.labels(split), best)

    def confidence(self, point: OperatingPoint) -> tuple[Tensor, Tensor]:
        """The confidence of the answers [N], and whether they are right [N]."""
        chances = point.probabilities(self.logits, self.is_seen, self.steps).max(dim=1)
        return chances.values, self.classes[chances.indices] == self.labels


def seen_unseen_curve(rollouts: ScoredImages, sigma: float) -> Curve:
    """U and S over delta."""
    seen, unseen = (GZSLAnswers.of(rollouts, split, sigma) for split in ("seen", "unseen"))
    return curve(seen.best, seen.labels, unseen.best, unseen.labels)
