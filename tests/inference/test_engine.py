from __future__ import annotations

import pytest
import torch

from conftest import small_network
from erpcnet.evaluation.protocol import usual_order
from erpcnet.inference import Engine
from erpcnet.inference import engine as module
from erpcnet.model.walk import DirectLocalities, ParallelLocalities, StopRule


@pytest.mark.parametrize("variant", ["pcnet", "rpcnet", "erpcnet"])
def test_both_ways_give_the_same_answers(variant: str) -> None:
    network = small_network(variant)
    images = torch.randn(9, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    phi = torch.nn.functional.normalize(torch.rand(5, 7), dim=1)
    stop = StopRule(1.0, phi) if network.policy is not None else None
    one, other = (
        Engine(network, way).walk(images, lambda: usual_order(network, 0), stop) for way in ("sequential", "parallel")
    )
    assert torch.equal(one.cells, other.cells)
    assert torch.equal(one.steps, other.steps)
    torch.testing.assert_close(one.joint, other.joint, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["globalnet", "hardnet"])
def test_what_has_no_table_goes_one_by_one(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network(variant)
    images = torch.randn(2, 3, 64, 64)
    monkeypatch.setitem(module.WAYS, "parallel", pytest.fail)
    Engine(network, "parallel").walk(images, lambda: usual_order(network, 0), None)


def test_auto_keeps_to_what_was_faster_for_that_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(small_network())
    asked: list[tuple[str, int]] = []

    def seconds(way: str, images: torch.Tensor, *_: object) -> float:
        asked.append((way, len(images)))
        return {("sequential", 1): 2.0, ("parallel", 1): 1.0, ("sequential", 8): 1.0, ("parallel", 8): 2.0}[asked[-1]]

    monkeypatch.setattr(engine, "_seconds", seconds)
    few, many = torch.empty(1, 3, 64, 64, device="meta"), torch.empty(8, 3, 64, 64, device="meta")
    ways = [engine._way(images, lambda: usual_order(engine.network, 0), None) for images in (few, many, few, many)]
    assert ways == ["parallel", "sequential"] * 2
    assert len(asked) == 4  # each size is measured once
    assert {"sequential": DirectLocalities, "parallel": ParallelLocalities} == module.WAYS
