"""Accuracies as the zero-shot literature defines them."""

from __future__ import annotations

from torch import Tensor


def class_weights(labels: Tensor) -> Tensor:
    """What each image counts in a mean over classes: 1 / (images of its class x number of classes). [N]."""
    _, inverse, counts = labels.unique(return_inverse=True, return_counts=True)
    return 1.0 / (counts[inverse] * len(counts)).double()


def per_class_accuracy(predicted: Tensor, labels: Tensor) -> float:
    """T1: the mean over classes of the share of their images that is right."""
    return float((class_weights(labels) * (predicted == labels)).sum())


def per_image_accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The share of images that is right."""
    return float((predicted == labels).double().mean())


def harmonic_mean(unseen: float, seen: float) -> float:
    """H = 2 U S / (U + S)."""
    return 2 * unseen * seen / (unseen + seen) if unseen + seen > 0 else 0.0
