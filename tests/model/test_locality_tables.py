"""Tables of localities that are too large for memory: bounded, and the same results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import erpcnet.model.locality_tables as tables
import erpcnet.training.episode_sources as sources
from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.rollouts import build_test_tables, rollout_tables
from erpcnet.model.locality_tables import Place
from erpcnet.model.selection import default_order
from erpcnet.training import Log, TableSource, open_context, policy_table, train_stage2
from erpcnet.training.context import create_network


def test_a_table_in_a_file_gives_the_same_policy(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, data=replace(tiny_config.data, test_crops=2))
    context = open_context(config, dataset)
    fetched: list[int] = []
    original = tables._fetch

    def counted(values: torch.Tensor, *index: torch.Tensor) -> torch.Tensor:
        fetched.append(len(index[0]))
        return original(values, *index)

    monkeypatch.setattr(tables, "_fetch", counted)
    monkeypatch.setattr(tables, "FETCH_SIZE", 7)
    monkeypatch.setattr(sources, "FETCH_SIZE", 7)

    def trained(place: Place) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        monkeypatch.setattr(tables, "choose_place", lambda *_: place)
        network = create_network(config, len(dataset.attribute_names)).eval()
        table = policy_table(network, dataset, context.loader, config.stage2, seed=0)
        assert table.in_memory == (place == "memory")
        source = TableSource(table, dataset, config.stage2.crops)
        train_stage2(network, source, config.stage2, seed=0, log=Log())
        test = build_test_tables(network, dataset, context.loader, 32)
        rollouts = rollout_tables(network, dataset, test, default_order(network, 0))
        assert network.policy is not None
        return network.policy.state_dict(), rollouts.unseen.a_j

    near, near_a_j = trained("memory")
    assert max(fetched) >= len(dataset.train)
    fetched.clear()
    far, far_a_j = trained("file")
    assert max(fetched) <= config.stage2.minibatch_size == 16
    start = create_network(config, len(dataset.attribute_names)).policy
    assert start is not None
    moved = sum(float((near[name] - value).abs().sum()) for name, value in start.state_dict().items())
    apart = sum(float((near[name] - far[name]).abs().sum()) for name in near)
    assert apart < 1e-3 * moved  # products of other sizes, nothing else
    torch.testing.assert_close(far_a_j, near_a_j, atol=1e-3, rtol=1e-3)


LIMITED = """
import json, resource, sys, tempfile
import numpy as np, torch
sys.path.insert(0, sys.argv[3])
from conftest import small_network
from erpcnet.config import Stage2Settings
from erpcnet.model.locality_tables import LocalityTable
from erpcnet.training.episode_sources import TableSource
from erpcnet.training.stage2 import Stage2Trainer

place, limit, count = sys.argv[1], int(sys.argv[2]), 12_000
torch.set_num_threads(1)
network = small_network("erpcnet")
channels, cells, width = network.backbone.channels, network.grid.cells, network.policy.describe.in_features

def filled(*shape):
    # In a file, whatever the table says: what counts is what is fetched from it.
    with tempfile.TemporaryFile() as file:
        values = np.memmap(file, np.float32, "w+", shape=shape)
    for start in range(0, shape[0], 1000):
        values[start : start + 1000] = np.random.default_rng(start).normal(size=(1000, *shape[1:]))
    return torch.from_numpy(values)

drawn = torch.Generator().manual_seed(0)
table = LocalityTable(
    torch.randn(1, count, channels, generator=drawn), torch.randn(1, count, 7, generator=drawn),
    filled(count, cells, width)[None], torch.rand(1, count, cells, generator=drawn),
    filled(count, cells, channels)[None], torch.arange(count), place,
)
source = object.__new__(TableSource)
source._table, source.crops, source.is_lookup, source.images = table, 1, table.in_memory, count
source.batch_size = count if table.in_memory else 256
source.phi = torch.nn.functional.normalize(torch.rand(5, 7, generator=drawn), dim=1)
source.labels = torch.arange(count) % 5
trainer = Stage2Trainer(network, source, Stage2Settings(update_epochs=1, crops=1), seed=0)
if limit:
    used = int(open("/proc/self/status").read().partition("VmData:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit * 2**20,) * 2)
metrics = trainer.epoch()
print(json.dumps([metrics, [float(p.double().sum()) for p in network.policy.parameters()]]))
"""


def _epoch(place: Place, limit: int) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", LIMITED, place, str(limit), here]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits what a process may allocate, as Linux does")
def test_a_table_in_a_file_bounds_memory() -> None:
    """Descriptors and states of all episodes are 100 and 37 MB, and more while they are put together."""
    bounded, unbounded, free = _epoch("file", 100), _epoch("memory", 100), _epoch("memory", 0)
    assert bounded.returncode == 0, bounded.stderr[-500:]
    assert unbounded.returncode != 0
    assert "allocate memory" in unbounded.stderr
    (metrics, sums), (expected, expected_sums) = json.loads(bounded.stdout), json.loads(free.stdout)
    assert metrics == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert sums == pytest.approx(expected_sums, rel=1e-2, abs=1e-2)
