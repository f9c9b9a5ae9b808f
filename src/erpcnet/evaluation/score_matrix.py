"""Generalised zero-shot figures of anyone's score matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from erpcnet.errors import InputError
from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy
from erpcnet.evaluation.stacking import curve, stack

Array = npt.NDArray[Any] | Tensor


@dataclass(frozen=True)
class GZSLMetrics:
    """Figures of one score matrix, as shares of 1.

    Attributes:
        t1: Images of unseen classes among the unseen classes, as a mean over classes.
        u: The same among all classes, at `delta`.
        s: Images of seen classes among all classes, at `delta`.
        h: The harmonic mean of u and s.
        delta: What was subtracted from the scores of seen classes.
        h_best: The best h over all delta: of test images, so not to be reported as h.
        delta_best: The delta that has it, no less than 0.
        ausuc: The area under the curve of u and s over all delta.
        per_class: The accuracy of each class among all, at `delta`, by its column.
    """

    t1: float
    u: float
    s: float
    h: float
    delta: float
    h_best: float
    delta_best: float
    ausuc: float
    per_class: dict[int, float]


def gzsl_metrics(scores: Array, labels: Array, seen: Array, delta: float | None = None) -> GZSLMetrics:
    """T1, U, S, H, the best H and AUSUC of any model's scores on test images of seen and unseen classes.

    Args:
        scores: [N, C], the higher the likelier; NumPy or torch.
        labels: [N], the true columns.
        seen: [C] bool, which classes are seen ones; or their columns.
        delta: Of calibrated stacking: what is subtracted from the scores of seen classes; by default nothing.

    Returns:
        The figures; accuracies are means over classes.

    Raises:
        InputError: Shapes do not fit, a score is no finite number, or there is no image of one of the two kinds.

    Examples:
        >>> scores = np.array([[0.9, 0.2, 0.1], [0.6, 0.5, 0.4], [0.7, 0.1, 0.6]])
        >>> found = gzsl_metrics(scores, labels=np.array([0, 1, 2]), seen=np.array([True, False, False]), delta=0.2)
        >>> found.u, found.s, found.t1
        (1.0, 1.0, 1.0)
    """
    values, true = torch.as_tensor(np.asarray(scores)).double(), torch.as_tensor(np.asarray(labels)).long()
    if values.dim() != 2 or true.shape != values.shape[:1]:
        raise InputError(f"scores are {tuple(values.shape)} and labels {tuple(true.shape)}; give [N, C] and [N].")
    if not values.isfinite().all():
        raise InputError("a score is no finite number.")
    classes = values.shape[1]
    is_seen = _mask(np.asarray(seen), classes)
    if len(true) and not 0 <= int(true.min()) <= int(true.max()) < classes:
        raise InputError(f"a label is none of the {classes} columns.")
    of_seen = is_seen[true]
    if of_seen.all() or not of_seen.any():
        raise InputError("there must be images of seen and of unseen classes.")
    delta = delta or 0.0
    best = stack(values[of_seen], is_seen), stack(values[~of_seen], is_seen)
    predicted = (values - delta * is_seen).argmax(dim=1)
    u, s = (per_class_accuracy(predicted[rows], true[rows]) for rows in (~of_seen, of_seen))
    found = curve(best[0], true[of_seen], best[1], true[~of_seen])
    delta_best, h_best = found.best()
    return GZSLMetrics(
        t1=per_class_accuracy(best[1].best_unseen, true[~of_seen]),
        u=u,
        s=s,
        h=harmonic_mean(u, s),
        delta=delta,
        h_best=h_best,
        delta_best=delta_best,
        ausuc=found.ausuc(),
        per_class={int(label): float((predicted[true == label] == label).double().mean()) for label in true.unique()},
    )


def _mask(seen: npt.NDArray[Any], classes: int) -> Tensor:
    """[C] bool, from that or from columns."""
    if seen.dtype == np.bool_:
        if seen.shape != (classes,):
            raise InputError(f"seen is {seen.shape}; as a mask it has one value for each of the {classes} classes.")
        return torch.from_numpy(seen)
    if seen.size and not 0 <= seen.min() <= seen.max() < classes:
        raise InputError(f"seen names a column that there is not; there are {classes}.")
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[torch.from_numpy(seen.astype(np.int64))] = True
    return mask
