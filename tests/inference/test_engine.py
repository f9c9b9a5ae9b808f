from __future__ import annotations

import time

import pytest
import torch

from conftest import small_network
from erpcnet.evaluation.protocol import usual_order
from erpcnet.inference import Engine
from erpcnet.inference import engine as module
from erpcnet.model.walk import DirectLocalities, StopRule, walk


@pytest.mark.parametrize("variant", ["pcnet", "rpcnet", "erpcnet"])
def test_both_ways_give_the_same_answers(variant: str) -> None:
    network = small_network(variant)
    images = torch.randn(9, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    phi = torch.nn.functional.normalize(torch.rand(5, 7), dim=1)
    stop = StopRule(1.0, phi) if network.policy is not None else None
    one, other = (
        Engine(network, way).walk(images, usual_order(network, 0), stop) for way in ("sequential", "parallel")
    )
    assert torch.equal(one.cells, other.cells)
    assert torch.equal(one.steps, other.steps)
    torch.testing.assert_close(one.joint, other.joint, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("variant", ["globalnet", "hardnet"])
def test_what_has_no_table_goes_one_by_one(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network(variant)
    images = torch.randn(2, 3, 64, 64)
    monkeypatch.delitem(module.WAYS, "parallel")  # asking for it would be an error
    found = Engine(network, "parallel").walk(images, usual_order(network, 0), None)
    expected = walk(network, DirectLocalities(network, images), usual_order(network, 0))
    assert torch.equal(found.cells, expected.cells)
    torch.testing.assert_close(found.joint, expected.joint)
    torch.testing.assert_close(found.whole, expected.whole)


@pytest.mark.parametrize(("slow", "kept"), [("sequential", "parallel"), ("parallel", "sequential")])
def test_auto_tries_both_by_turns_and_keeps_to_the_faster(
    slow: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = small_network()
    served: list[str] = []

    def make(way: str) -> object:
        def localities(*arguments: torch.Tensor) -> DirectLocalities:
            served.append(way)
            time.sleep(0.2 if way == slow else 0.0)
            return DirectLocalities(*arguments)

        return localities

    for way in ("sequential", "parallel"):
        monkeypatch.setitem(module.WAYS, way, make(way))
    engine = Engine(network)
    for _ in range(9):
        engine.walk(torch.randn(1, 3, 64, 64), usual_order(network, 0), None)
    assert served == ["sequential", "parallel"] * 3 + [kept] * 3
    engine.walk(torch.randn(2, 3, 64, 64), usual_order(network, 0), None)
    assert served[-1] == "sequential"  # another size is measured anew
