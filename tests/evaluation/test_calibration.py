from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from erpcnet.evaluation.calibration import expected_calibration_error, fit_temperature


def _logits(temperature: float, count: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits whose softmax at this temperature is the chance that the labels were drawn by."""
    drawn = torch.Generator().manual_seed(0)
    logits = 3 * temperature * torch.randn(count, 6, generator=drawn)
    return logits, torch.multinomial((logits / temperature).softmax(dim=1), 1, generator=drawn)[:, 0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 6.0])
def test_the_temperature_that_labels_were_drawn_by_is_found(temperature: float) -> None:
    logits, labels = _logits(temperature)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.1)
    # And it is the best of a fine sweep, to the sweep's own step.
    sweep = [0.05 * 1.01**step for step in range(695)]
    losses = [float(F.cross_entropy(logits.double() / one, labels)) for one in sweep]
    assert found == pytest.approx(sweep[int(np.argmin(losses))], rel=0.011)


def test_images_of_other_classes_do_not_count() -> None:
    logits, labels = _logits(2.0)
    some = torch.where(torch.arange(len(labels)) % 2 == 0, labels, -1)
    assert fit_temperature(logits, some) == fit_temperature(logits[::2], labels[::2])
    assert fit_temperature(logits, torch.full_like(labels, -1)) == 1.0


def test_the_calibration_error_against_plain_loops() -> None:
    drawn = torch.Generator().manual_seed(1)
    confidence = torch.cat([torch.rand(500, generator=drawn), torch.tensor([0.0, 1.0, 1.0])])
    right = torch.rand(503, generator=drawn) < 0.6
    expected = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        own = [
            (c, r)
            for c, r in zip(confidence.double().tolist(), right.tolist(), strict=True)
            if low <= c < high or (number == 14 and c == 1)
        ]
        if own:
            mean, share = sum(c for c, _ in own) / len(own), sum(r for _, r in own) / len(own)
            expected += len(own) / 503 * abs(mean - share)
    assert expected_calibration_error(confidence, right) == pytest.approx(expected, abs=1e-9)
    assert expected_calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([True, False])) == pytest.approx(0.4)


def test_calibrated_confidences_are_right_as_often_as_they_say() -> None:
    logits, labels = _logits(4.0)
    chances = (logits / fit_temperature(logits, labels)).softmax(dim=1).max(dim=1)
    raw = logits.softmax(dim=1).max(dim=1)
    error, before = (expected_calibration_error(one.values, one.indices == labels) for one in (chances, raw))
    assert error < 0.03 < 0.1 < before
    assert math.isclose(float(chances.values.mean()), float((chances.indices == labels).double().mean()), abs_tol=0.02)
