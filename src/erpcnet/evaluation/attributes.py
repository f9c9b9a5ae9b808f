"""Which attributes a network can read: the AUC of each, on classes that it never saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from erpcnet.evaluation.rollouts import EvaluationRollouts


def attribute_auc(predicted: Tensor, has: Tensor) -> Tensor:
    """The chance that an image whose class has an attribute gets a higher value for it than one whose class has not.

    Args:
        predicted: [N, A], attributes predicted of images.
        has: [N, A] bool, whether the images' classes have them.

    Returns:
        [A], 0.5 by chance; NaN where all images have an attribute, or none has. Ties count half.

    Examples:
        >>> attribute_auc(torch.tensor([[0.1], [0.9], [0.5]]), torch.tensor([[False], [True], [False]]))
        tensor([1.], dtype=torch.float64)
    """
    found = []
    for values, own in zip(predicted.double().T.contiguous(), has.T, strict=True):
        order = values.sort().values
        # The mean rank of equal values, from 1.
        ranks = (torch.searchsorted(order, values) + torch.searchsorted(order, values, right=True) + 1).double() / 2
        positive = int(own.sum())
        negative = len(own) - positive
        area = (ranks[own].sum() - positive * (positive + 1) / 2) / max(positive * negative, 1)
        found.append(area if positive and negative else torch.full_like(area, float("nan")))
    return torch.stack(found)


def has_attribute(attributes: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Which classes have an attribute [C, A]: those above the middle of its smallest and its largest value."""
    return attributes > (attributes.min(axis=0) + attributes.max(axis=0)) / 2


def unseen_auc(rollouts: EvaluationRollouts) -> Tensor:
    """The AUC of every attribute [A] on the images of unseen classes, as a mean over crops: by a_j after the last
    step, or by a_g where there are no localities.
    """
    labels = rollouts.labels("unseen")
    predicted = rollouts.unseen.a_j[:, :, -1] if rollouts.network.steps else rollouts.unseen.a_g
    has = torch.from_numpy(has_attribute(rollouts.dataset.attributes)).to(labels.device)[labels]
    return attribute_auc(predicted.mean(dim=0), has)


def validation_auc(folds: Sequence[EvaluationRollouts]) -> dict[str, float]:
    """The AUC of every attribute on the validation classes, as a mean over folds.

    Attributes that all validation classes have, or none, are left out: nothing is known of them.
    """
    areas = torch.stack([unseen_auc(fold) for fold in folds]).nanmean(dim=0).tolist()
    return {name: area for name, area in zip(folds[0].dataset.attribute_names, areas, strict=True) if area == area}
