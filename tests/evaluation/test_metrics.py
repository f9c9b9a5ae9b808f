from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy, per_image_accuracy


@pytest.mark.parametrize("seed", range(5))
def test_accuracies_are_scikit_learns(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(200, generator=generator) ** 3 * 6).long() + 10  # classes of very different size
    predicted = torch.where(torch.rand(200, generator=generator) < 0.6, labels, labels.roll(1))
    assert per_class_accuracy(predicted, labels) == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert per_image_accuracy(predicted, labels) == pytest.approx(accuracy_score(labels, predicted))
    assert per_class_accuracy(predicted, labels) != pytest.approx(per_image_accuracy(predicted, labels))


def test_harmonic_mean() -> None:
    assert harmonic_mean(0.671, 0.696) == pytest.approx(0.683, abs=5e-4)  # the paper's CUB row
    assert harmonic_mean(0.0, 0.0) == 0.0
