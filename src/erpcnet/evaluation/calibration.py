"""Probabilities that mean what they say: a temperature for the logits, and how far off confidences are.

Both work on anyone's logits and labels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOWEST, HIGHEST = math.log(0.05), math.log(50.0)  # of the logarithm of a temperature
GOLDEN = (math.sqrt(5) - 1) / 2


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature at which softmax(logits / temperature) fits the labels best (Guo et al., 2017).

    Args:
        logits: [N, C].
        labels: [N], columns of the logits; images whose class is no column, -1, do not count.

    Returns:
        The temperature of the least mean negative log-likelihood, from 0.05 to 50.

    Examples:
        >>> fit_temperature(torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 0.0]]), torch.tensor([0, 0, 1, 1]))
        8.19...
    """
    known = labels >= 0
    logits, labels = logits[known].double(), labels[known]
    if not len(labels):
        return 1.0

    def loss(logarithm: float) -> float:
        return float(F.cross_entropy(logits / math.exp(logarithm), labels))

    # The loss is convex in 1 / temperature, so it has one minimum here, which a golden section search finds.
    low, high = LOWEST, HIGHEST
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-4:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = 15) -> float:
    """How far confidences are from the share of right answers, on average (ECE; Naeini et al., 2015).

    Args:
        confidence: [N], from 0 to 1.
        right: [N] bool, whether the answers were right.
        bins: Of equal width.

    Returns:
        The mean over bins of |mean confidence - share of right answers|, each weighted by its images.

    Examples:
        >>> expected_calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([True, False]))
        0.4
    """
    confidence = confidence.double()
    place = (confidence * bins).long().clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, place, confidence - right.double())
    return float(gaps.abs().sum() / len(confidence))
