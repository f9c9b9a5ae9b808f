from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from conftest import between, small_network
from erpcnet.config import LocalSettings
from erpcnet.errors import InputError
from erpcnet.inference import Engine, Execution
from erpcnet.model import Classes
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.scoring import StopRule
from erpcnet.model.selection import default_order


def _images(count: int, side: int = 64) -> torch.Tensor:
    return torch.randn(1, count, 3, side, side, generator=torch.Generator().manual_seed(2))


def _one_crop(crop: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[crop : crop + 1]


def _assert_same(one: Rollout, other: Rollout) -> None:
    assert torch.equal(one.cells, other.cells)
    assert torch.equal(one.steps, other.steps)
    torch.testing.assert_close(one.a_j, other.a_j, atol=1e-4, rtol=1e-4)
    # A value of a map near the edge of a bin may be counted in the next one.
    torch.testing.assert_close(one.beta, other.beta, atol=5e-3, rtol=0)
    torch.testing.assert_close(one.a_g, other.a_g, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize(("variant", "zoom"), [("pcnet", 1), ("rpcnet", 1), ("erpcnet", 1), ("erpcnet", 2)])
@pytest.mark.parametrize("stops", [False, True])
def test_all_ways_give_the_same_answers(variant: str, zoom: int, stops: bool) -> None:
    network = small_network(variant, local=LocalSettings(zoom=zoom))
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(1)), dim=1)
    stop = None
    if stops and network.policy is not None:
        whole = Engine(network, "parallel").rollout(_images(9, 64 * zoom))
        reward = StopRule(network, Classes(phi), 0.0).rewards(whole)[0, :, 0]
        sigma = between(reward, apart=8e-3 if network.uses_entropy else 1e-3)
        stop = StopRule(network, Classes(phi), sigma)
    one, other = (Engine(network, way).rollout(_images(9, 64 * zoom), stop) for way in ("sequential", "parallel"))
    _assert_same(one, other)
    assert (one.steps.unique().numel() > 1) == (stop is not None)


@torch.inference_mode()
def test_images_stop_where_sigma_says_so() -> None:
    network = small_network()
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(1)), dim=1)
    whole = Engine(network, "parallel").rollout(_images(9))
    reward = StopRule(network, Classes(phi), 0.0).rewards(whole)[0]
    sigma = between(reward[:, 0])  # some of the images are sure enough after one step
    for way in ("sequential", "parallel"):
        stop = StopRule(network, Classes(phi), sigma)
        found = Engine(network, way).rollout(_images(9), stop).each(lambda tensor: tensor[0])
        for row in range(9):
            reached = [step + 1 for step in range(network.steps) if reward[row, step] >= sigma]
            taken = reached[0] if reached else network.steps
            assert int(found.steps[row]) == taken
            assert (found.cells[row, :taken] >= 0).all()
            assert (found.cells[row, taken:] == -1).all()
            assert (found.a_j[row, taken:] == 0).all()
        assert 1 == found.steps.min() < found.steps.max()


@torch.inference_mode()
@pytest.mark.parametrize("variant", ["globalnet", "hardnet"])
@pytest.mark.parametrize("way", ["parallel", "auto", "parallel_graph", "sequential_graph", "stopping_graph"])
def test_what_has_no_table_goes_one_by_one(variant: str, way: Execution) -> None:
    network = small_network(variant)
    expected = rollout(network, DirectLocalities(network, _images(2)[0]), default_order(network, 0))
    engine = Engine(network, way)
    assert engine.way(2) == "sequential"
    _assert_same(engine.rollout(_images(2)), expected.each(lambda tensor: tensor[None]))


@pytest.mark.parametrize(("slow", "kept"), [("sequential", "parallel"), ("parallel", "sequential")])
def test_auto_keeps_to_the_faster_way(slow: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(small_network())
    served: list[str] = []
    clock = [0.0]
    monkeypatch.setattr("erpcnet.inference.engine._now", lambda _: clock[0])

    def watched(way: str, run: Callable[..., Rollout]) -> Callable[..., Rollout]:
        def serve(images: torch.Tensor, stop: StopRule | None) -> Rollout:
            served.append(way)
            clock[0] += 0.3 if way == slow else 0.2
            return run(images, stop)

        return serve

    for way, run in list(engine._run.items()):
        engine._run[way] = watched(way, run)
    for _ in range(9):
        engine.rollout(_images(1))
    assert served == ["sequential", "parallel"] * 3 + [kept] * 3
    engine.rollout(_images(2))
    assert served[-1] == "sequential"  # another size is measured anew


def test_an_unknown_way_is_named() -> None:
    with pytest.raises(InputError, match="no way 'fast' to execute; choose from auto, sequential"):
        Engine(small_network(), "fast")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("variant", "way"),
    [
        ("erpcnet", "parallel_graph"),
        ("erpcnet", "sequential_graph"),
        ("erpcnet", "stopping_graph"),
        ("hardnet", "sequential_graph"),
        ("hardnet", "stopping_graph"),
    ],
)
def test_a_captured_rollout_is_the_rollout(variant: str, way: Execution) -> None:
    network = small_network(variant).cuda()
    engine = Engine(network, way)
    assert engine.way(4) == way
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # or the ways would differ by rounding alone
        for seed in range(3):  # the second and third are replayed
            images = torch.randn(1, 4, 3, 64, 64, generator=torch.Generator().manual_seed(seed)).cuda()
            _assert_same(engine.rollout(images), Engine(network, "sequential").rollout(images))


@torch.inference_mode()
def test_crops_are_an_axis_of_their_own() -> None:
    network, images = small_network(), _images(6)[0]
    together = Engine(network, "sequential").rollout(images.unflatten(0, (2, 3)))
    assert together.cells.shape == (2, 3, network.steps)
    for crop in range(2):
        alone = Engine(network, "sequential").rollout(images[None, 3 * crop : 3 * crop + 3])
        _assert_same(alone, together.each(partial(_one_crop, crop)))


@pytest.mark.usefixtures("pretended_graphs")
def test_sizes_that_take_turns_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, captured = Engine(small_network()), []
    capture = Engine._capture

    def counted(self: Engine, way: Execution, images: torch.Tensor) -> Callable[..., Rollout]:
        captured.append((way, len(images)))
        return capture(self, way, images)

    monkeypatch.setattr(Engine, "_capture", counted)
    with torch.inference_mode():
        for _ in range(3):
            for count in range(1, 9):
                engine._run["sequential_graph"](_images(count)[0], None)
    assert captured == [("sequential_graph", count) for count in range(1, 9)]
    monkeypatch.setattr("erpcnet.inference.engine.MAX_IMAGES", 36)
    with torch.inference_mode():
        engine._run["sequential_graph"](_images(9)[0], None)
    assert sum(count for count, _ in engine._graphs) <= 36  # those used longest ago went
    assert (9, "sequential_graph") in engine._graphs
