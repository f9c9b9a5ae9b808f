from __future__ import annotations

import math

import pytest
import torch

from conftest import small_network
from erpcnet.config import LossWeights, Stage1Settings
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.stage1 import mix


def _cross_entropy(attributes: list[float], scale: float, phi: torch.Tensor, label: int) -> float:
    length = math.sqrt(sum(a * a for a in attributes))
    scores = [scale * sum(a * p for a, p in zip(attributes, row, strict=True)) / length for row in phi.tolist()]
    return math.log(sum(math.exp(score) for score in scores)) - scores[label]


def _with_local(weight: float) -> Stage1Settings:
    return Stage1Settings(loss_weights=LossWeights(local_subnet=weight))


def test_the_four_losses_against_plain_loops() -> None:
    network = small_network("pcnet")
    weights = LossWeights(global_subnet=1.0, local_subnet=0.5, joint_subnet=2.0, highlight=0.25)
    images = torch.randn(3, 3, 64, 64)
    cells = torch.stack([torch.randperm(16)[:6] for _ in range(3)])
    labels = torch.tensor([0, 2, 1])
    phi = torch.nn.functional.normalize(torch.rand(4, 7), dim=1)
    with torch.no_grad():
        losses = Stage1Loss(network, Stage1Settings(loss_weights=weights))(images, cells, labels, phi)
        a_g, a_l, a_j = network(images, cells)
    assert a_l is not None
    assert a_j is not None
    scales = {
        name: getattr(network, f"{name}_compatibility").log_scale.exp().item()
        for name in ("global", "local", "joint", "highlight")
    }
    sums = dict.fromkeys(scales, 0.0)
    for n in range(3):
        label = int(labels[n])
        sums["global"] += _cross_entropy(a_g[n].tolist(), scales["global"], phi, label) / 3
        for t in range(6):
            sums["local"] += _cross_entropy(a_l[n, t].tolist(), scales["local"], phi, label) / 18
            sums["joint"] += _cross_entropy(a_j[n, t].tolist(), scales["joint"], phi, label) / 18
        highest = [max(float(a_g[n, a]), *(float(a_l[n, t, a]) for t in range(6))) for a in range(7)]
        sums["highlight"] += _cross_entropy(highest, scales["highlight"], phi, label) / 3
    for name, expected in sums.items():
        assert losses[name].item() == pytest.approx(expected, rel=1e-4)
    total = sums["global"] + 0.5 * sums["local"] + 2 * sums["joint"] + 0.25 * sums["highlight"]
    assert losses["total"].item() == pytest.approx(total, rel=1e-4)


def test_globalnet_has_its_own_loss_only() -> None:
    network = small_network("globalnet")
    phi = torch.nn.functional.normalize(torch.rand(4, 7), dim=1)
    losses = Stage1Loss(network, Stage1Settings())(torch.randn(2, 3, 64, 64), None, torch.tensor([0, 1]), phi)
    assert set(losses) == {"global", "total"}
    assert losses["global"].item() == losses["total"].item()


def test_a_mixed_image_is_judged_by_both_labels() -> None:
    network = small_network("pcnet")
    images, phi = torch.rand(3, 3, 64, 64), torch.nn.functional.normalize(torch.rand(4, 7), dim=1)
    cells = torch.stack([torch.randperm(16)[:6] for _ in range(3)])
    labels = torch.tensor([0, 2, 1])
    mixed, targets = mix(images, torch.nn.functional.one_hot(labels, 4).float(), 0.3)
    for n in range(3):
        expected = 0.7 * images[n] + 0.3 * images[(n + 1) % 3]
        assert torch.allclose(mixed[n], expected, atol=1e-6)
    objective = Stage1Loss(network, _with_local(1.0))
    with torch.no_grad():
        found = objective(mixed, cells, targets, phi)
        own, next_one = (objective(mixed, cells, wanted, phi) for wanted in (labels, labels.roll(-1)))
    for name, value in found.items():
        assert value.item() == pytest.approx(0.7 * own[name].item() + 0.3 * next_one[name].item(), rel=1e-5)


def test_a_loss_that_counts_for_nothing_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network("pcnet")
    calls: list[int] = []
    local_compatibility, original = network.local_compatibility, network.local_compatibility.forward

    def counted(*given: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return original(*given)

    monkeypatch.setattr(local_compatibility, "forward", counted)
    drawn = torch.Generator().manual_seed(0)
    batch = (
        torch.randn(3, 3, 64, 64, generator=drawn),
        torch.tensor([[0, 5, 9, 12, 3, 7]] * 3),
        torch.tensor([0, 1, 2]),
        torch.nn.functional.normalize(torch.rand(4, 7, generator=drawn), dim=1),
    )
    with torch.no_grad():
        without = Stage1Loss(network, _with_local(0.0))(*batch)
        assert calls == []
        assert "local" not in without
        with_it = Stage1Loss(network, _with_local(0.5))(*batch)
    assert calls == [1]
    assert float(with_it["total"]) == pytest.approx(float(without["total"] + 0.5 * with_it["local"]), rel=1e-5)
