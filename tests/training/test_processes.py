from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from erpcnet.model import create_backbone


@pytest.mark.slow
def test_two_processes_train_what_one_does(creatures: Path, tmp_path: Path) -> None:
    """But for norms that are not frozen, whose statistics are of each process's own images; and Adam's steps would
    make much of what rounding makes of gradients that are nearly 0.
    """
    arguments = [
        *("-m", "erpcnet", "train", "--config", "creatures", "--dataset", str(creatures), "--variant", "globalnet"),
        *("--data.image_size", "64", "--stage1.epochs", "2", "--stage1.batch_size", "16"),
        *("--stage1.optimizer", "sgd", "--stage1.lr", "0.05"),
        *("--stage1.freeze_norms", "true", "--model.sigma", "1", "--model.delta", "0.5"),
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for name, start in (("one", [sys.executable]), ("two", launch)):
        command = [*start, *arguments, "--out", str(tmp_path / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert {path.name for path in (tmp_path / "one").iterdir()} == {path.name for path in (tmp_path / "two").iterdir()}
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=1e-4, msg=name)
    before = create_backbone("small", "default").last.get_parameter("0.residual.0.weight")
    moved = two["backbone.last.0.residual.0.weight"] - before
    assert moved.abs().max() > 1e-3
