"""Several processes evaluate a run as one does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from erpcnet.config import Config
from erpcnet.training.runs import train_run
from trust.processes import finish, launch

PROCESSES = 2


def _figures(run: Path, processes: int, *more: str) -> tuple[bytes, str]:
    """metrics.json, which is damaged and written anew, and what was printed."""
    (run / "metrics.json").write_text("{")
    told = finish(launch(processes, ["evaluate", str(run), "--device", "cpu", *more]))
    assert told.code == 0, told.said
    assert told.said.count("metrics.json was damaged and is written anew") == 1
    return (run / "metrics.json").read_bytes(), told.said


@pytest.mark.slow
def test_processes_evaluate_exactly_as_one_does(tiny_config: Config, creatures: Path, tmp_path: Path) -> None:
    """HardNet, whose localities no table holds; the campaign of processes has ERPCNet."""
    config = replace(
        tiny_config,
        variant="hardnet",
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
