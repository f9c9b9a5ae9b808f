"""Which attributes are read, against scikit-learn."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from erpcnet.evaluation.attributes import attribute_auc, has_attribute, validation_auc


@pytest.mark.parametrize("ties", [False, True])
def test_areas_are_scikit_learns(ties: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = torch.randn(60, 5, generator=generator)
    if ties:
        predicted = predicted.mul(2).round()  # some ten values
    has = torch.rand(60, 5, generator=generator) < torch.tensor([0.02, 0.2, 0.5, 0.8, 0.98])
    has[0], has[1] = True, False  # both kinds are there
    found = attribute_auc(predicted, has)
    for place in range(5):
        expected = roc_auc_score(has[:, place].numpy(), predicted[:, place].numpy())
        assert float(found[place]) == pytest.approx(expected, abs=1e-9)


def test_areas_by_hand() -> None:
    predicted = torch.tensor([[0.1, 3.0, 1.0, 1.0], [0.9, 2.0, 1.0, 1.0], [0.5, 1.0, 1.0, 1.0]])
    has = torch.tensor([[False, False, True, True], [True, False, False, True], [True, True, False, True]])
    found = attribute_auc(predicted, has).tolist()
    assert found[:3] == [1.0, 0.0, 0.5]
    assert math.isnan(found[3])  # all have it
    assert math.isnan(float(attribute_auc(predicted[:, :1], torch.zeros(3, 1, dtype=torch.bool))[0]))


def test_a_class_has_what_is_above_the_middle() -> None:
    table = np.array([[0.0, -4.0, 7.0], [1.0, -1.0, 7.0], [0.5, -2.0, 7.0]], dtype=np.float32)
    expected = [[False, False, False], [True, True, False], [False, True, False]]
    assert has_attribute(table).tolist() == expected


class Fold:
    """Images of three of five classes in two crops, with three steps or with none."""

    def __init__(self, seed: int, steps: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = np.array([[0, 9, 1, 1], [1, 9, 0, 1], [0, 9, 0, 1], [1, 0, 1, 0], [1, 9, 1, 1]], dtype=np.float32)
        self.dataset = SimpleNamespace(attribute_names=("a", "b", "c", "d"), attributes=table)
        self.network = SimpleNamespace(steps=steps)
        self._labels = torch.tensor([[1, 2, 4], [0, 2, 4]][seed]).repeat(8)
        self.unseen = SimpleNamespace(
            a_g=torch.randn(2, 24, 4, generator=generator), a_j=torch.randn(2, 24, steps, 4, generator=generator)
        )

    def labels(self, split: str) -> torch.Tensor:
        assert split == "unseen"
        return self._labels


@pytest.mark.parametrize("steps", [3, 0])
def test_areas_are_means_over_folds_and_crops(steps: int) -> None:
    folds = [Fold(0, steps), Fold(1, steps)]
    found = validation_auc(folds)  # type: ignore[arg-type]
    expected: dict[str, float] = {}
    for place, name in enumerate("abcd"):
        areas = []
        for fold in folds:
            said = fold.unseen.a_j[:, :, steps - 1] if steps else fold.unseen.a_g
            values = (said[0, :, place] + said[1, :, place]) / 2
            middle = (fold.dataset.attributes[:, place].min() + fold.dataset.attributes[:, place].max()) / 2
            has = fold.dataset.attributes[fold.labels("unseen").numpy(), place] > middle
            if 0 < has.sum() < len(has):
                areas.append(roc_auc_score(has, values.numpy()))
        if areas:
            expected[name] = float(np.mean(areas))
    assert set(expected) == {"a", "c"}  # all validation classes have the others
    assert found == pytest.approx(expected, abs=1e-6)
