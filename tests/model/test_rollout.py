from __future__ import annotations

import copy

import pytest
import torch

from conftest import between, small_network
from erpcnet.config import LocalSettings
from erpcnet.data import Batch
from erpcnet.errors import InputError
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.locality_tables import LocalityTable, Place, TableLocalities, build_table, choose_place
from erpcnet.model.rollout import rollout, truncate
from erpcnet.model.scoring import StopRule, score
from erpcnet.model.selection import (
    SELECTION_ORDERS,
    EntropyOrder,
    FixedOrder,
    PolicyOrder,
    RandomOrder,
    SelectionOrder,
    register_order,
)


class _Counting(DirectLocalities):
    """Counts the localities that are computed for each image."""

    def __init__(self, network: ERPCNet, images: torch.Tensor) -> None:
        super().__init__(network, images)
        self.computed = torch.zeros(len(images), dtype=torch.long)

    def embed(self, rows: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        self.computed[rows] += 1
        return super().embed(rows, cells)


@pytest.fixture(scope="module")
def network() -> ERPCNet:
    return small_network()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(12, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def _learned(network: ERPCNet) -> PolicyOrder:
    assert network.policy is not None
    return PolicyOrder(network.policy)


def _sampled(network: ERPCNet) -> PolicyOrder:
    assert network.policy is not None
    return PolicyOrder(network.policy, torch.rand(6, 12, 16, generator=torch.Generator().manual_seed(0)))


@torch.inference_mode()
@pytest.mark.parametrize("name", [*SELECTION_ORDERS, "policy", "sampled"])
def test_no_cell_is_visited_twice(network: ERPCNet, images: torch.Tensor, name: str) -> None:
    policies = {"policy": _learned, "sampled": _sampled}
    order = policies[name](network) if name in policies else SELECTION_ORDERS[name](network, 0)
    cells = rollout(network, DirectLocalities(network, images), order).cells
    assert cells.min() >= 0
    assert cells.max() < network.grid.cells
    assert all(len(set(row.tolist())) == network.steps for row in cells)


@torch.inference_mode()
def test_orders_choose_what_they_say(network: ERPCNet, images: torch.Tensor) -> None:
    localities = DirectLocalities(network, images)
    fixed = rollout(network, localities, FixedOrder(network.grid.centre_first())).cells
    assert (fixed == network.grid.centre_first()[: network.steps]).all()
    richest = rollout(network, localities, EntropyOrder()).cells
    assert torch.equal(richest, localities.beta.argsort(dim=1, descending=True)[:, : network.steps])
    first, second = (rollout(network, localities, RandomOrder(seed)).cells for seed in (0, 1))
    assert not torch.equal(first, second)


@torch.inference_mode()
def test_an_image_that_stops_costs_no_further_work(network: ERPCNet, images: torch.Tensor) -> None:
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)), dim=1)
    full = rollout(network, DirectLocalities(network, images), _learned(network))
    localities = _Counting(network, images)
    # So that some stop early and some late.
    sigma = between(StopRule(network, Classes(phi), 0.0).rewards(full)[:, 2])
    stopped = rollout(network, localities, _learned(network), stop=StopRule(network, Classes(phi), sigma))
    assert torch.equal(localities.computed, stopped.steps)
    assert 1 <= stopped.steps.min() < stopped.steps.max() <= network.steps
    for image, steps in enumerate(stopped.steps.tolist()):
        assert torch.equal(stopped.cells[image, :steps], full.cells[image, :steps])
        assert (stopped.cells[image, steps:] == -1).all()
        torch.testing.assert_close(stopped.a_j[image, :steps], full.a_j[image, :steps], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("step", [0, 2, 4])
def test_stopping_early_answers_as_truncating(network: ERPCNet, images: torch.Tensor, step: int) -> None:
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)), dim=1)
    full = rollout(network, DirectLocalities(network, images), _learned(network))
    of_global = network.global_compatibility(full.a_g, phi)
    sigma = between(StopRule(network, Classes(phi), 0.0).rewards(full)[:, step])
    answers = score(network, full.each(lambda tensor: tensor[None]), Classes(phi)).stopped(sigma)
    stop = StopRule(network, Classes(phi), sigma)
    stopped = rollout(network, DirectLocalities(network, images), _learned(network), stop=stop)
    assert torch.equal(answers.steps[0], stopped.steps)
    assert stopped.steps.unique().numel() > 1
    for image, taken in enumerate(stopped.steps.tolist()):
        of_last = network.joint_compatibility(stopped.a_j[image, taken - 1], phi)
        torch.testing.assert_close(answers.final[image], of_last + of_global[image], atol=1e-3, rtol=1e-3)
    for name in ("cells", "steps", "a_j", "beta"):
        short, whole = getattr(truncate(full, stopped.steps), name), getattr(stopped, name)
        torch.testing.assert_close(short, whole, atol=5e-3, rtol=1e-3)


def _all(table: LocalityTable) -> TableLocalities:
    images = torch.arange(len(table), device=table.rows.device)
    return table.take(torch.zeros_like(images), images)


@torch.inference_mode()
@pytest.mark.parametrize("place", [None, "memory", "file"])
def test_a_table_gives_the_same_rollout(network: ERPCNet, images: torch.Tensor, place: Place | None) -> None:
    batches = [Batch(images[:8], torch.arange(8)), Batch(images[8:], torch.arange(8, 12))]
    table = build_table(network, [batches], (1, 12), place=place)
    assert table.rows.tolist() == list(range(12))
    direct = rollout(network, DirectLocalities(network, images), _learned(network), keep_localities=True)
    looked_up = rollout(network, _all(table), _learned(network), keep_localities=True)
    assert torch.equal(direct.cells, looked_up.cells)
    for name in ("a_g", "a_j", "e_l"):
        torch.testing.assert_close(getattr(direct, name), getattr(looked_up, name), atol=1e-4, rtol=1e-4)
    # A value of a map near the edge of a bin may be counted in the next one.
    torch.testing.assert_close(direct.beta, looked_up.beta, atol=5e-3, rtol=0)


@pytest.mark.gpu
@torch.inference_mode()
@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_gpu_reads_a_table_that_lies_elsewhere(network: ERPCNet, images: torch.Tensor, place: Place) -> None:
    there = copy.deepcopy(network).cuda()
    batches = [Batch(images.cuda(), torch.arange(12))]
    order = _learned(there)
    near, far = build_table(there, [batches], (1, 12)), build_table(there, [batches], (1, 12), place=place)
    assert near.in_memory
    assert not far.in_memory
    expected, found = (rollout(there, _all(table), order, keep_localities=True) for table in (near, far))
    assert torch.equal(found.cells, expected.cells)
    assert torch.equal(found.a_j, expected.a_j)


def test_a_table_of_too_few_images_is_refused(network: ERPCNet, images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"there were \[8\] images, not 12"):
        build_table(network, [[Batch(images[:8], torch.arange(8))]], (1, 12))


def test_large_tables_go_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Free:
        available = 1000

    monkeypatch.setattr("erpcnet.model.locality_tables.psutil.virtual_memory", Free)
    assert choose_place(500, torch.device("cpu")) == "memory"
    assert choose_place(501, torch.device("cpu")) == "file"


@torch.inference_mode()
def test_a_rollout_is_stage_ones_forward(network: ERPCNet, images: torch.Tensor) -> None:
    found = rollout(network, DirectLocalities(network, images), RandomOrder(3))
    output = network(images, found.cells)
    torch.testing.assert_close(found.a_g, output.a_g, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.a_j, output.a_j, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_globalnet_takes_no_steps(images: torch.Tensor) -> None:
    network = small_network("globalnet")
    found = rollout(network, DirectLocalities(network, images), RandomOrder(0))
    assert found.cells.shape == (12, 0)
    assert (found.steps == 0).all()


@torch.inference_mode()
def test_a_table_holds_crops_apart(network: ERPCNet, images: torch.Tensor) -> None:
    rows = torch.arange(6)
    table = build_table(network, [[Batch(images[:6], rows)], [Batch(images[6:], rows)]], (2, 6))
    crop, some = torch.tensor([1, 0, 1]), torch.tensor([0, 5, 2])
    taken = table.take(crop, some)
    expected = network.glance(images[torch.tensor([6, 5, 8])])
    torch.testing.assert_close(taken.e_g, expected.e_g, atol=1e-4, rtol=1e-4)
    every = network.embed_localities(expected.source, torch.full((3, 1), 7))[:, 0]
    torch.testing.assert_close(taken.embed(torch.arange(3), torch.full((3,), 7)), every, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_registered_orders_are_found_by_name(network: ERPCNet, images: torch.Tensor) -> None:
    @register_order("corner first")
    def corner_first(network: ERPCNet, seed: int) -> SelectionOrder:
        return FixedOrder(torch.arange(network.grid.cells).flip(0))

    try:
        order = SELECTION_ORDERS["corner first"](network, 0)
        assert rollout(network, DirectLocalities(network, images), order).cells[0].tolist() == [15, 14, 13, 12, 11, 10]
        with pytest.raises(InputError, match="there is a selection order 'corner first' already"):
            register_order("corner first")(corner_first)
        with pytest.raises(InputError, match="separates them by semicolons"):
            register_order("a; b")(corner_first)
    finally:
        del SELECTION_ORDERS["corner first"]


@torch.inference_mode()
def test_zoom_computes_only_what_is_selected() -> None:
    network = small_network(local=LocalSettings(zoom=2))
    images = torch.randn(5, 3, 128, 128, generator=torch.Generator().manual_seed(3))
    computed: list[int] = []
    assert network.local is not None
    network.local.extractor.register_forward_hook(lambda _module, given, _output: computed.append(len(given[0])))
    localities = DirectLocalities(network, images)
    assert computed == []  # the glance, the descriptors and beta need none
    rollout(network, localities, _learned(network))
    assert computed == [5] * network.steps
