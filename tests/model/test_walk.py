from __future__ import annotations

import copy

import pytest
import torch

from conftest import between, small_network
from erpcnet.data import Batch
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.locality_tables import Place, build_table, roomy_place
from erpcnet.model.scoring import stopped_scores
from erpcnet.model.walk import (
    DirectLocalities,
    EntropyOrder,
    FixedOrder,
    Order,
    PolicyOrder,
    RandomOrder,
    StopRule,
    walk,
)


class _Counting(DirectLocalities):
    """Counts the localities that are computed for each image."""

    def __init__(self, network: ERPCNet, images: torch.Tensor) -> None:
        super().__init__(network, images)
        self.looks = torch.zeros(len(images), dtype=torch.long)

    def look(self, rows: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        self.looks[rows] += 1
        return super().look(rows, cells)


@pytest.fixture(scope="module")
def network() -> ERPCNet:
    return small_network()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(12, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def _learned(network: ERPCNet) -> PolicyOrder:
    assert network.policy is not None
    return PolicyOrder(network.policy)


def _orders(network: ERPCNet) -> list[Order]:
    assert network.policy is not None
    drawn = PolicyOrder(network.policy, torch.rand(6, 12, 16, generator=torch.Generator().manual_seed(0)))
    fixed = FixedOrder(network.grid.centre_first())
    return [RandomOrder(0), fixed, EntropyOrder(), _learned(network), drawn]


@torch.inference_mode()
@pytest.mark.parametrize("number", range(5))
def test_no_cell_is_visited_twice(network: ERPCNet, images: torch.Tensor, number: int) -> None:
    cells = walk(network, DirectLocalities(network, images), _orders(network)[number]).cells
    assert cells.min() >= 0
    assert cells.max() < network.grid.cells
    assert all(len(set(row.tolist())) == network.steps for row in cells)


@torch.inference_mode()
def test_orders_choose_what_they_say(network: ERPCNet, images: torch.Tensor) -> None:
    localities = DirectLocalities(network, images)
    fixed = walk(network, localities, FixedOrder(network.grid.centre_first())).cells
    assert (fixed == network.grid.centre_first()[: network.steps]).all()
    richest = walk(network, localities, EntropyOrder()).cells
    assert torch.equal(richest, localities.beta.argsort(dim=1, descending=True)[:, : network.steps])
    first, second = (walk(network, localities, RandomOrder(seed)).cells for seed in (0, 1))
    assert not torch.equal(first, second)


@torch.inference_mode()
def test_an_image_that_stops_costs_no_further_work(network: ERPCNet, images: torch.Tensor) -> None:
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)), dim=1)
    full = walk(network, DirectLocalities(network, images), _learned(network))
    localities = _Counting(network, images)
    # So that some stop early and some late.
    sigma = between(StopRule(0.0, Classes(phi)).reward_of(network, full)[:, 2])
    stopped = walk(network, localities, _learned(network), stop=StopRule(sigma, Classes(phi)))
    assert torch.equal(localities.looks, stopped.steps)
    assert 1 <= stopped.steps.min() < stopped.steps.max() <= network.steps
    for image, steps in enumerate(stopped.steps.tolist()):
        assert torch.equal(stopped.cells[image, :steps], full.cells[image, :steps])
        assert (stopped.cells[image, steps:] == -1).all()
        torch.testing.assert_close(stopped.joint[image, :steps], full.joint[image, :steps], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("answer", ["union", "growing", "joint"])
@pytest.mark.parametrize("step", [0, 2, 4])
def test_stopping_while_walking_answers_as_stopping_afterwards(images: torch.Tensor, step: int, answer: str) -> None:
    network = small_network(answer=answer)
    phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)), dim=1)
    full = walk(network, DirectLocalities(network, images), _learned(network))
    of_global = network.global_fit(full.whole, phi)
    sigma = between(StopRule(0.0, Classes(phi)).reward_of(network, full)[:, step])
    scores, steps = stopped_scores(network, full, Classes(phi), sigma)
    stopped = walk(network, DirectLocalities(network, images), _learned(network), stop=StopRule(sigma, Classes(phi)))
    assert torch.equal(steps, stopped.steps)
    assert steps.unique().numel() > 1
    for image, taken in enumerate(steps.tolist()):
        of_last = network.joint_fit(stopped.joint[image, taken - 1], phi)
        share = {"union": 1, "growing": taken / 6, "joint": 1}[answer]
        expected = share * of_last + (0 if answer == "joint" else of_global[image])
        torch.testing.assert_close(scores[image], expected, atol=1e-3, rtol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("place", [None, "memory", "file"])
def test_a_table_gives_the_same_walk_as_computing(network: ERPCNet, images: torch.Tensor, place: Place | None) -> None:
    batches = [Batch(images[:8], torch.arange(8)), Batch(images[8:], torch.arange(8, 12))]
    table = build_table(network, batches, 12, place=place)
    assert table.rows.tolist() == list(range(12))
    direct = walk(network, DirectLocalities(network, images), _learned(network), keep=True)
    looked_up = walk(network, table.take(torch.arange(12)), _learned(network), keep=True)
    assert torch.equal(direct.cells, looked_up.cells)
    for name in ("whole", "joint", "localities"):
        torch.testing.assert_close(getattr(direct, name), getattr(looked_up, name), atol=1e-4, rtol=1e-4)
    # A value of a map near the edge of a bin may be counted in the next one.
    torch.testing.assert_close(direct.beta, looked_up.beta, atol=5e-3, rtol=0)


@pytest.mark.gpu
@torch.inference_mode()
@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_gpu_walks_over_a_table_that_lies_elsewhere(network: ERPCNet, images: torch.Tensor, place: Place) -> None:
    there = copy.deepcopy(network).cuda()
    batches = [Batch(images.cuda(), torch.arange(12))]
    order, places = _learned(there), torch.arange(12, device="cuda")
    near, far = build_table(there, batches, 12), build_table(there, batches, 12, place=place)
    assert near.at_hand
    assert not far.at_hand
    expected, found = (walk(there, table.take(places), order, keep=True) for table in (near, far))
    assert torch.equal(found.cells, expected.cells)
    assert torch.equal(found.joint, expected.joint)


def test_a_table_of_other_images_than_were_told_is_refused(network: ERPCNet, images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="there were 8 images, not 12"):
        build_table(network, [Batch(images[:8], torch.arange(8))], 12)


def test_what_does_not_fit_into_memory_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Free:
        available = 1000

    monkeypatch.setattr("erpcnet.model.locality_tables.psutil.virtual_memory", Free)
    assert roomy_place(500, torch.device("cpu")) == "memory"
    assert roomy_place(501, torch.device("cpu")) == "file"


@torch.inference_mode()
def test_the_walk_is_stage_ones_forward_on_the_same_cells(network: ERPCNet, images: torch.Tensor) -> None:
    found = walk(network, DirectLocalities(network, images), RandomOrder(3))
    prediction = network(images, found.cells)
    torch.testing.assert_close(found.whole, prediction.whole, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.joint, prediction.joint, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_globalnet_takes_no_steps(images: torch.Tensor) -> None:
    network = small_network("globalnet")
    found = walk(network, DirectLocalities(network, images), RandomOrder(0))
    assert found.cells.shape == (12, 0)
    assert (found.steps == 0).all()
