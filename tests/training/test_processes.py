"""Several processes do what one does: batches that are shared, tables that each computes a part of, whole trainings."""

from __future__ import annotations

import copy
import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from conftest import small_network
from erpcnet.config import BackboneSettings, JointSettings, ModelSettings, Stage1Settings
from erpcnet.data import Batch
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.heads import SwapRows
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.locality_tables import FILLED, build_table
from erpcnet.training.episode_sources import SharedLocalities
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.shared_batches import share_batches, work_alone
from erpcnet.training.stage1 import _own_part, mix
from erpcnet.utils.processes import BatchPart, Share
from trust import processes as campaign
from trust.cases import draw_tiny

PROCESSES, COUNT = 3, 8  # 8 images: 2, 3 and 3


@pytest.mark.slow
def test_processes_share_a_batch_as_if_one_had_it(tmp_path: Path) -> None:
    """Everything that is checked runs in the same three processes, since these take seconds to start."""
    mp.spawn(_process, args=(str(tmp_path),), nprocs=PROCESSES)
    done = [(tmp_path / f"{rank}").read_text().split() for rank in range(PROCESSES)]
    assert done == [["norms", "gradients", "next", "swaps", "tables", "localities", "exchange"]] * PROCESSES


def _process(rank: int, folder: str) -> None:
    """Runs every check, and notes which have passed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    share = Share.of_process()
    assert share == Share(rank, PROCESSES)
    part = BatchPart(share, COUNT)
    checks = {
        "norms": partial(_check_norms, part),
        "gradients": partial(_check_gradients, part),
        "next": partial(_check_next_rows, part),
        "swaps": partial(_check_swaps, part),
        "tables": partial(_check_tables, share),
        "localities": partial(_check_localities, share),
        "exchange": partial(_check_exchange, share),
    }
    for name, check in checks.items():
        check()
        with Path(folder, f"{rank}").open("a") as passed:
            passed.write(f"{name}\n")
    dist.barrier()  # nobody goes while another still talks to it
    dist.destroy_process_group()
    os._exit(0)  # without what the libraries do at exit, where threads of theirs may still run


def _check_exchange(share: Share) -> None:
    own = {number: f"of {number}" for number in range(7) if share.owns(number)}
    assert share.exchange(own) == [f"of {number}" for number in range(7)]


def _check_gradients(part: BatchPart) -> None:
    """Against the same loss of the whole batch: norms that learn, dropout, and rows that are dropped or swapped."""
    torch.manual_seed(0)
    joint = JointSettings(global_swap=0.5, global_dropout=0.3)
    settings = ModelSettings(BackboneSettings("small", "none"), dropout=0.3, joint=joint, steps=2)
    network = ERPCNet(settings, 7, 64, "pcnet").train()
    shared = copy.deepcopy(network)
    # By the same formula: rounded otherwise, some value lies on the other side of a ReLU's 0.
    share_batches(network, _Alone(Share(), COUNT))
    images, cells = torch.randn(COUNT, 3, 64, 64), torch.arange(COUNT)[:, None].repeat(1, 2) % 4
    labels, phi = torch.arange(COUNT) % 5, torch.randn(5, 7)
    torch.manual_seed(1)
    expected = Stage1Loss(network, Stage1Settings())(images, cells, labels, phi)
    expected["total"].backward()
    share_batches(shared, part)
    torch.manual_seed(1)
    found = Stage1Loss(shared, Stage1Settings())(images[part.own], cells[part.own], labels[part.own], phi)
    (found["total"] * part.weight).backward()
    total = part.sum(found["total"].detach() * part.weight) / PROCESSES
    torch.testing.assert_close(total, expected["total"].detach(), atol=1e-4, rtol=1e-4)
    for (name, one), other in zip(shared.named_parameters(), network.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None, name
            continue
        assert one.grad is not None
        mean = part.sum(one.grad) / PROCESSES  # as DistributedDataParallel has it
        scale = float(other.grad.abs().max())
        assert float((mean - other.grad).abs().max()) <= 1e-3 * scale + 1e-6, name
    for (name, here), there in zip(shared.named_buffers(), network.buffers(), strict=True):
        torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4, msg=name)
    work_alone(shared)
    assert not any("forward" in vars(module) for module in shared.modules())


class _Alone(BatchPart):
    """All of the batch, beside others that have it too."""

    def sum(self, value: Tensor) -> Tensor:
        return value


def _check_norms(part: BatchPart) -> None:
    """Against torch's own, without a ReLU behind it."""
    torch.manual_seed(3)
    norm = nn.Sequential(plain_norm := nn.BatchNorm2d(5)).train()
    nn.init.normal_(plain_norm.weight)
    nn.init.normal_(plain_norm.bias)
    shared = copy.deepcopy(norm)
    share_batches(shared, part)
    images, wanted = torch.randn(COUNT, 5, 4, 3) * 3 + 1, torch.randn(COUNT, 5, 4, 3)
    plain, own = images.clone().requires_grad_(), images[part.own].clone().requires_grad_()
    expected, found = norm(plain), shared(own)
    torch.testing.assert_close(found, expected[part.own], atol=1e-5, rtol=1e-5)
    ((expected - wanted) ** 2).mean().backward()
    (((found - wanted[part.own]) ** 2).mean() * part.weight).backward()
    assert plain.grad is not None
    assert own.grad is not None
    torch.testing.assert_close(own.grad / PROCESSES, plain.grad[part.own], atol=1e-6, rtol=1e-4)
    for one, other in zip(shared.parameters(), norm.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(part.sum(one.grad) / PROCESSES, other.grad, atol=1e-6, rtol=1e-4)
    for (name, here), there in zip(shared.named_buffers(), norm.buffers(), strict=True):
        torch.testing.assert_close(here, there, atol=1e-6, rtol=1e-5, msg=name)


def _check_next_rows(part: BatchPart) -> None:
    images, targets = torch.arange(COUNT * 2.0).view(COUNT, 2), torch.eye(COUNT)
    expected = mix(images, targets, 0.3)
    found = mix(images[part.own], targets[part.own], 0.3, part)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other[part.own])


def _check_swaps(part: BatchPart) -> None:
    """By a row of another process, through which the gradient goes."""
    rows = torch.arange(COUNT * 3.0).view(COUNT, 3).cos()
    swap = nn.Sequential(SwapRows(1.0)).train()
    expected = swap(rows)
    share_batches(swap, part)
    own = rows[part.own].requires_grad_()
    found = swap(own)
    assert torch.equal(found, expected[part.own])
    found.sum().backward()
    times = torch.zeros(COUNT)
    for row in expected:
        times += (rows == row).all(dim=1)
    assert own.grad is not None
    assert torch.equal(own.grad[:, 0], times[part.own])  # as often as it stands in another's place


def _check_tables(share: Share) -> None:
    """To the bit: every batch is computed by one of them."""
    torch.manual_seed(2)
    network = small_network("erpcnet", attributes=7).eval()
    images = torch.randn(7, 3, 64, 64)
    seen: list[int] = []

    def batches() -> list[Batch]:
        def cut(rows: Tensor) -> Tensor:
            seen.extend(rows.tolist())
            return images[rows]

        return [Batch(partial(cut, rows), rows) for rows in torch.arange(7).split(2)]

    alone = build_table(network, [batches(), batches()], (2, 7))
    assert seen == [*range(7), *range(7)]
    seen.clear()
    together = build_table(network, [batches(), batches()], (2, 7), share=share)
    assert len(seen) < 9  # of 14: its own, and the first batch, which tells how large the table is
    assert torch.equal(together.rows, alone.rows)
    assert all(torch.equal(getattr(together, name), getattr(alone, name)) for name in FILLED)


def test_shares_are_all_of_the_work_once() -> None:
    for processes in range(1, 6):
        shares = [Share(rank, processes) for rank in range(processes)]
        for count in range(12):
            rows = [row for share in shares for row in range(count)[share.part(count)]]
            assert rows == list(range(count))
            assert [sum(share.owns(number) for share in shares) for number in range(count)] == [1] * count


def test_a_batch_smaller_than_the_processes_is_refused() -> None:
    with pytest.raises(InputError, match="3 processes cannot share batches of 2 images; start fewer, or raise"):
        _own_part(Share(1, 3), 2)
    assert _own_part(Share(0, 1), 2) is None


@torch.no_grad()
def _check_localities(share: Share) -> None:
    """Against all of them in one process: of all rows, of some, in any order, and of rows that one process has."""
    network = small_network("hardnet", attributes=7)
    torch.manual_seed(5)
    images = torch.randn(COUNT, 3, 64, 64)
    whole = DirectLocalities(network, images)
    shared = SharedLocalities(network, images[share.part(COUNT)], share, COUNT)
    for name in ("e_g", "a_g", "descriptors", "beta"):
        torch.testing.assert_close(getattr(shared, name), getattr(whole, name), atol=1e-5, rtol=1e-4)
    assert whole.e_g.std(dim=0).max() > 1e-3  # images differ
    for rows in (list(range(COUNT)), [7, 0, 3], [7, 6], [1], [2, 2, 0]):
        chosen = torch.tensor(rows)
        cells = torch.arange(len(rows)) * 3
        found = shared.embed(chosen, cells)
        expected = network.embed_localities(images[chosen], cells[:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert len(found) == len(rows)


@pytest.mark.slow
def test_two_processes_end_as_one(tmp_path: Path) -> None:
    """A whole training with validation, by the campaign that has more of them."""
    row = campaign.same_figures(tmp_path, draw_tiny(tmp_path / "creatures"), seed=3, processes=(2,))
    assert row.problems == []
    assert row.held == row.tried == 1
    written = [len(list(logs.glob("*tfevents*"))) for logs in tmp_path.glob("**/logs/validation")]
    assert written == [1] * len(written)  # one of them writes
    assert len(written) == 2


@pytest.mark.slow
def test_two_processes_evaluate_as_one(tmp_path: Path) -> None:
    """The same weights give the same rollouts and figures, to the bit."""
    row = campaign.same_evaluation(tmp_path, draw_tiny(tmp_path / "creatures"), seed=4, processes=(2,))
    assert row.problems == []
    assert row.held == row.tried == 2
