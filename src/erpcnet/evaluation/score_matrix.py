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
from erpcnet.evaluation.stacking import check_delta, curve, stack
from erpcnet.model.scoring import stack_logits

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

    Examples:
        >>> found = gzsl_metrics(scores, labels, seen)
        >>> f"H {found.h:.1%}, at best {found.h_best:.1%}, with delta {found.delta_best:.2f}"
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
        seen: [C] bool or 0 and 1, which classes are seen ones; or their columns.
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
    values, true = _numbers(scores, "scores").double(), _whole(_numbers(labels, "labels"), "labels")
    if values.dim() != 2 or true.shape != values.shape[:1]:
        raise InputError(f"scores are {tuple(values.shape)} and labels {tuple(true.shape)}; give [N, C] and [N].")
    if not values.isfinite().all():
        raise InputError("a score is no finite number.")
    classes = values.shape[1]
    is_seen = _mask(_numbers(seen, "seen"), classes)
    if len(true) and not 0 <= int(true.min()) <= int(true.max()) < classes:
        raise InputError(f"a label is none of the {classes} columns.")
    of_seen = is_seen[true]
    if of_seen.all() or not of_seen.any():
        raise InputError("there must be images of seen and of unseen classes.")
    check_delta(delta)
    delta = float(delta or 0.0)
    best = stack(values[of_seen], is_seen), stack(values[~of_seen], is_seen)
    predicted = stack_logits(values, is_seen, delta).argmax(dim=1)
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


def _numbers(given: Array, what: str) -> Tensor:
    """Any array of real numbers as a tensor on the CPU."""
    try:
        if isinstance(given, Tensor):
            found = given.detach().cpu()
        else:
            array = np.asarray(given)
            if array.dtype.byteorder == ">" or array.dtype == np.longdouble or min(array.strides, default=0) < 0:
                array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
            found = torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{what} is no array of numbers.") from None
    if found.is_complex() or found.layout != torch.strided:
        raise InputError(f"{what} is no array of real numbers.")
    return found


def _whole(found: Tensor, what: str) -> Tensor:
    if found.is_floating_point() and not torch.equal(found, found.floor()):
        raise InputError(f"{what} holds fractions; give numbers of columns.")
    return found.long()


def _mask(seen: Tensor, classes: int) -> Tensor:
    """[C] bool, from that or from columns.

    Numbers that are all 0 or 1 and as many as there are classes are a mask that was written so, unless they are columns
    each of which stands there once.
    """
    if seen.dtype == torch.bool:
        if seen.shape != (classes,):
            raise InputError(f"seen is {tuple(seen.shape)}; a mask has one value for each of the {classes} classes.")
        return seen
    columns = _whole(seen, "seen").flatten()
    if (
        len(columns) == classes
        and bool(((columns == 0) | (columns == 1)).all())
        and len(columns.unique()) < len(columns)
    ):
        return columns.bool()
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < classes:
        raise InputError(f"seen names a column that there is not; there are {classes}.")
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[columns] = True
    return mask
