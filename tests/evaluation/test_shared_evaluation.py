"""Several processes evaluate a run as one does, and roll out HardNet's episodes together."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from conftest import small_network
from erpcnet.config import Config
from erpcnet.model.localities import DirectLocalities
from erpcnet.training.episode_sources import SharedLocalities
from erpcnet.training.runs import train_run
from erpcnet.utils.processes import Share
from trust.processes import finish, launch

PROCESSES, COUNT = 2, 5


def _figures(run: Path, processes: int, *more: str) -> tuple[bytes, str]:
    """metrics.json, which is damaged and written anew, and what was printed."""
    (run / "metrics.json").write_text("{")
    told = finish(launch(processes, ["evaluate", str(run), "--device", "cpu", *more]))
    assert told.code == 0, told.said
    assert told.said.count("metrics.json was damaged and is written anew") == 1
    return (run / "metrics.json").read_bytes(), told.said


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["erpcnet", "hardnet"])
def test_processes_evaluate_exactly_as_one_does(
    tiny_config: Config, creatures: Path, tmp_path: Path, variant: str
) -> None:
    config = replace(
        tiny_config,
        variant=variant,  # type: ignore[arg-type]
        data=replace(tiny_config.data, test_crops=2),
        model=replace(tiny_config.model, sigma=0.5, delta=0.1),
        evaluation=replace(tiny_config.evaluation, batch_size=7),  # several batches, of which each process has some
    )
    train_run(config, creatures, tmp_path / "run", device="cpu")
    alone, _ = _figures(tmp_path / "run", 1)
    together, said = _figures(tmp_path / "run", PROCESSES)
    assert together == alone
    assert said.count("AUSUC") == 1  # one table
    assert json.loads(alone)["crops"] == 2


@pytest.mark.slow
def test_processes_share_the_localities_of_a_batch(tmp_path: Path) -> None:
    mp.spawn(_process, args=(str(tmp_path),), nprocs=PROCESSES)
    assert sorted(path.name for path in tmp_path.glob("passed-*")) == ["passed-0", "passed-1"]


def _process(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    share = Share.of_process()
    with torch.no_grad():
        _check_localities(share)
    Path(folder, f"passed-{rank}").touch()
    dist.barrier()  # nobody goes while another still talks to it
    dist.destroy_process_group()
    os._exit(0)  # without what the libraries do at exit, where threads of theirs may still run


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
    for rows in ([0, 1, 2, 3, 4], [4, 0, 3], [4, 3], [1], [2, 2, 0]):
        chosen = torch.tensor(rows)
        cells = torch.arange(len(rows)) * 3
        found = shared.embed(chosen, cells)
        expected = network.embed_localities(images[chosen], cells[:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert len(found) == len(rows)
