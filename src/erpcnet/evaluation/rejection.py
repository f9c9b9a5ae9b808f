"""Rejection: pictures of none of the candidate classes, told by how little fits them.

The score is the largest logit after calibrated stacking. Its threshold is chosen on validation classes, half of which
are candidates while the other half play the unknown ones, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.dataset import IntArray
from erpcnet.evaluation.attributes import attribute_auc
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.model.scoring import largest_logit

KEPT = 0.95  # of the images of known classes, the share that the threshold keeps


@dataclass(frozen=True)
class RejectChoice:
    """How the threshold was chosen.

    Attributes:
        threshold: Of the largest logit; below it a picture is of none of the classes.
        auroc: The chance that an image of a known class has a larger one than an image of an unknown class.
        rejected: The share of images of unknown classes that the threshold rejects.
        kept: The share of images of known classes that it keeps.
    """

    threshold: float
    auroc: float
    rejected: float
    kept: float

    def describe(self) -> str:
        """In a sentence, how far to trust it."""
        return (
            f"on validation classes a threshold that keeps {self.kept:.0%} of known pictures rejects "
            f"{self.rejected:.0%} of those of unknown classes (AUROC {100 * self.auroc:.1f})"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def choose_threshold(folds: Sequence[EvaluationRollouts], sigma: float, delta: float) -> RejectChoice | None:
    """The threshold that keeps most images of known classes; None with fewer than two validation classes."""
    parts = [_scores(fold, sigma, delta) for fold in folds]
    found = [part for part in parts if part is not None]
    if not found:
        return None
    known, unknown = (torch.cat(some) for some in zip(*found, strict=True))
    threshold = float(torch.quantile(known, 1 - KEPT))
    rejected, kept = float((unknown < threshold).double().mean()), float((known >= threshold).double().mean())
    return RejectChoice(threshold, _auroc(known, unknown), rejected, kept)


def auroc_of_unknown(rollouts: EvaluationRollouts, sigma: float, delta: float) -> float | None:
    """The same AUROC on test images: half of the unseen classes are unknown, then the other half."""
    found = _scores(rollouts, sigma, delta)
    return None if found is None else _auroc(*found)


def _auroc(known: Tensor, unknown: Tensor) -> float:
    values = torch.cat([known, unknown])[:, None]
    is_known = torch.zeros_like(values, dtype=torch.bool)
    is_known[: len(known)] = True
    return float(attribute_auc(values, is_known)[0])


def _scores(fold: EvaluationRollouts, sigma: float, delta: float) -> tuple[Tensor, Tensor] | None:
    """The largest logits of images of known and of unknown classes."""
    unseen = fold.dataset.unseen
    if len(unseen) < 2:
        return None
    known, unknown = [], []
    for half in (unseen[::2], unseen[1::2]):
        classes = np.concatenate([fold.dataset.seen, half])
        of_unseen = _largest(fold, "unseen", classes, sigma, delta)
        inside = torch.isin(fold.labels("unseen"), torch.from_numpy(half).to(of_unseen.device))
        known.append(of_unseen[inside])
        unknown.append(of_unseen[~inside])
        if fold.seen is not None:
            known.append(_largest(fold, "seen", classes, sigma, delta))
    return torch.cat(known), torch.cat(unknown)


def _largest(fold: EvaluationRollouts, split: Any, classes: IntArray, sigma: float, delta: float) -> Tensor:
    final = fold.score(split, classes).stopped(sigma).final
    is_seen = torch.from_numpy(np.isin(classes, fold.dataset.seen)).to(final.device)
    return largest_logit(final, is_seen, delta).double()
