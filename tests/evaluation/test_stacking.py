from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from sklearn.metrics import recall_score

from erpcnet.evaluation.stacking import curve, stack

SEEN = torch.tensor([True, False, True, True, False, False])


def _images(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    seen_labels = torch.tensor([0, 2, 3])[torch.randint(3, (40,), generator=generator)]
    unseen_labels = torch.tensor([1, 4, 5])[torch.randint(3, (30,), generator=generator)]
    noise = torch.randn(70, 6, generator=generator, dtype=torch.float64)
    scores = noise + 1.5 * torch.nn.functional.one_hot(torch.cat([seen_labels, unseen_labels]), 6)
    scores[:, SEEN] += 1.0
    return scores[:40], seen_labels, scores[40:], unseen_labels


def _brute(scores: torch.Tensor, labels: torch.Tensor, delta: float) -> float:
    predicted = (scores - delta * SEEN).argmax(dim=1)
    return float(recall_score(labels, predicted, labels=labels.unique(), average="macro"))


def _sweep(scores: torch.Tensor, labels: torch.Tensor, deltas: torch.Tensor) -> np.ndarray:
    """The same for many deltas at once."""
    right = (scores - deltas[:, None, None] * SEEN).argmax(dim=2) == labels
    return (
        torch.stack([right[:, labels == label].double().mean(dim=1) for label in labels.unique()]).mean(dim=0).numpy()
    )


@pytest.mark.parametrize("delta", [-0.5, 0.0, 0.7, 3.0])
def test_stacking_takes_delta_off_the_seen_classes(delta: float) -> None:
    scores, *_ = _images(0)
    assert torch.equal(stack(scores, SEEN).predict(delta), (scores - delta * SEEN).argmax(dim=1))


@pytest.mark.parametrize("seed", range(3))
def test_curve_and_ausuc_against_brute_force_over_delta(seed: int) -> None:
    of_seen, seen_labels, of_unseen, unseen_labels = _images(seed)
    found = curve(stack(of_seen, SEEN), seen_labels, stack(of_unseen, SEEN), unseen_labels)
    points = [
        (_brute(of_unseen, unseen_labels, float(d)), _brute(of_seen, seen_labels, float(d))) for d in found.deltas
    ]
    np.testing.assert_allclose(found.unseen.numpy(), [u for u, _ in points], atol=1e-12)
    np.testing.assert_allclose(found.seen.numpy(), [s for _, s in points], atol=1e-12)
    # A fine sweep of delta misses no corner, so its area is the exact one.
    deltas = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    unseen, seen = _sweep(of_unseen, unseen_labels, deltas), _sweep(of_seen, seen_labels, deltas)
    assert seen[2500] == pytest.approx(_brute(of_seen, seen_labels, float(deltas[2500])), abs=1e-12)
    area = trapezoid(seen, unseen)
    assert found.ausuc() == pytest.approx(area, abs=2e-3)
    delta, best = found.best()
    assert best == pytest.approx(max(2 * u * s / (u + s) if u + s else 0 for u, s in points))
    u, s = _brute(of_unseen, unseen_labels, delta), _brute(of_seen, seen_labels, delta)
    assert 2 * u * s / (u + s) == pytest.approx(best)


def test_without_right_answers_delta_is_zero() -> None:
    scores, labels = torch.randn(4, 6), torch.tensor([0, 2, 3, 0])
    wrong = stack(-10.0 * torch.nn.functional.one_hot(labels, 6) + scores, SEEN)
    assert curve(wrong, labels, stack(scores, SEEN), torch.tensor([1, 4, 5, 1])).best() == (0.0, 0.0)


@pytest.mark.gpu
def test_a_curve_on_a_gpu() -> None:
    of_seen, seen_labels, of_unseen, unseen_labels = _images(0)
    found = [
        curve(
            stack(of_seen.to(device), SEEN.to(device)),
            seen_labels.to(device),
            stack(of_unseen.to(device), SEEN.to(device)),
            unseen_labels.to(device),
        )
        for device in ("cpu", "cuda")
    ]
    assert found[1].best() == pytest.approx(found[0].best())
    assert found[1].ausuc() == pytest.approx(found[0].ausuc())


def test_seen_classes_never_get_a_bonus() -> None:
    of_seen, seen_labels, of_unseen, unseen_labels = _images(0)
    of_seen, of_unseen = of_seen - 3 * SEEN, of_unseen - 3 * SEEN  # now everything leans towards the unseen classes
    delta, best = curve(stack(of_seen, SEEN), seen_labels, stack(of_unseen, SEEN), unseen_labels).best()
    u, s = _brute(of_unseen, unseen_labels, 0.0), _brute(of_seen, seen_labels, 0.0)
    assert delta == 0
    assert best == pytest.approx(2 * u * s / (u + s))
    assert _brute(of_seen, seen_labels, -2.0) > s  # though a bonus would help
