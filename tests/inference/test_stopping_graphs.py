from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import between, small_network
from erpcnet.config import LocalSettings
from erpcnet.inference import Engine
from erpcnet.inference.stopping_graphs import SIZES, StoppingGraphs
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.scoring import StopRule
from erpcnet.model.selection import default_order


def _batches(count: int, side: int) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(count, 3, side, side, generator=drawn) for _ in range(3)]


def _stop(network: ERPCNet, batches: list[Tensor]) -> StopRule:
    """One with which images stop after the first step, later, and not at all; rewards without beta round little."""
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(1)), dim=1)
    whole = [Engine(network, "parallel").rollout(images[None]) for images in batches]
    reward = torch.cat([StopRule(network, Classes(phi), 0.0).rewards(one)[0] for one in whole])
    return StopRule(network, Classes(phi), between(reward.flatten(), apart=1e-4))


def _assert_same(found: Rollout, expected: Rollout) -> None:
    assert torch.equal(found.cells, expected.cells)
    assert torch.equal(found.steps, expected.steps)
    for name in ("a_g", "a_j"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-4, rtol=1e-4)
    # A value of a map near the edge of a bin may be counted in the next one.
    torch.testing.assert_close(found.beta, expected.beta, atol=5e-3, rtol=0)


@pytest.mark.usefixtures("pretended_graphs")
@torch.inference_mode()
@pytest.mark.parametrize("zoom", [1, 2])
@pytest.mark.parametrize("count", [1, 7, SIZES + 4])
def test_images_that_stop_are_rolled_out_as_without_graphs(count: int, zoom: int) -> None:
    network = small_network("rpcnet", local=LocalSettings(zoom=zoom))
    batches = _batches(count, 64 * zoom)
    stop = _stop(network, batches)
    graphs = StoppingGraphs(network, default_order(network, 0), batches[0])
    taken = []
    for images in [*batches, batches[0]]:
        expected = rollout(network, DirectLocalities(network, images), default_order(network, 0), stop=stop)
        found = graphs(images, stop)
        _assert_same(found, expected)
        taken.append(found.steps.clone())
    assert torch.equal(taken[0], taken[-1])  # the second time nothing is captured any more
    assert torch.cat(taken).unique().numel() > 1
    whole = rollout(network, DirectLocalities(network, batches[1]), default_order(network, 0))
    _assert_same(graphs(batches[1], None), whole)


@pytest.mark.usefixtures("pretended_graphs")
@torch.inference_mode()
def test_steps_stop_by_the_classes_of_the_day() -> None:
    network, images = small_network("rpcnet"), _batches(7, 64)[0]
    graphs = StoppingGraphs(network, default_order(network, 0), images)
    stop, drawn = _stop(network, [images]), torch.Generator().manual_seed(3)
    for count in (5, 5, 2, 9):
        other = replace(
            stop, classes=Classes(torch.rand(count, 7, generator=drawn), torch.rand(count, generator=drawn))
        )
        expected = rollout(network, DirectLocalities(network, images), default_order(network, 0), stop=other)
        _assert_same(graphs(images, other), expected)


@pytest.mark.usefixtures("pretended_graphs")
@torch.inference_mode()
def test_images_that_are_done_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    network, count = small_network("rpcnet"), SIZES + 4
    batches = _batches(count, 64)
    stop = _stop(network, batches)
    graphs = StoppingGraphs(network, default_order(network, 0), batches[0])
    graphs(batches[0], stop)
    sizes: list[int] = []
    embed = DirectLocalities.embed

    def counted(self: DirectLocalities, rows: Tensor, cells: Tensor) -> Tensor:
        sizes.append(len(rows))
        return embed(self, rows, cells)

    monkeypatch.setattr(DirectLocalities, "embed", counted)
    steps = graphs(batches[0], stop).steps
    left = [int((steps > step).sum()) for step in range(int(steps.max()))]
    assert sizes == [-(-one // 2) * 2 for one in left]  # two at a time, as twenty is more than SIZES
    assert sizes[-1] < count


@pytest.mark.gpu
@pytest.mark.parametrize("zoom", [1, 2])
def test_captured_steps_stop_as_sequential_ones(zoom: int) -> None:
    network = small_network("rpcnet", local=LocalSettings(zoom=zoom)).cuda()
    batches = [images.cuda() for images in _batches(20, 64 * zoom)]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), torch.inference_mode():
        phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(1)), dim=1).cuda()
        usual, graphs = Engine(network, "sequential"), Engine(network, "stopping_graph")
        whole = [usual.rollout(images[None]) for images in batches]
        reward = torch.cat([StopRule(network, Classes(phi), 0.0).rewards(one)[0] for one in whole]).cpu()
        stop = StopRule(network, Classes(phi), between(reward.flatten(), apart=1e-4))
        for images in [*batches, batches[0]]:
            assert graphs.way(20) == "stopping_graph"
            _assert_same(graphs.rollout(images[None], stop), usual.rollout(images[None], stop))
