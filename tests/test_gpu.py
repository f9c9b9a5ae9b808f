"""What users do, on a GPU: both stages as CUDA graphs, convolutions in bf16."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import erpcnet
from erpcnet.cli import main
from erpcnet.config import DataSettings
from erpcnet.data import ImageCache, ImageLoader, ZeroShotDataset


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["erpcnet", "hardnet"])
def test_a_run_on_a_gpu_predicts_as_evaluated(
    variant: str, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    small = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "4",
        "--stage1.batch_size",
        "8",
        "--stage2.epochs",
        "6",
    ]
    words = ["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(run), "--variant", variant]
    assert main([*words, *small]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json"]) == 0
    again, metrics = json.loads(capsys.readouterr().out), json.loads((run / "metrics.json").read_text())
    for name in ("t1", "h", "ausuc"):
        assert again[name] == pytest.approx(metrics[name], abs=0.02), name
    dataset, model = erpcnet.read_dataset(creatures), erpcnet.load(run)
    assert next(model.network.parameters()).is_cuda
    rows = dataset.test_unseen
    found = model.predict([creatures / dataset.image_paths[row] for row in rows])
    right = [dataset.classes[dataset.labels[row]] == answer.name for row, answer in zip(rows, found, strict=True)]
    # Fused for prediction, bf16 rounds elsewhere: an answer of twenty may turn over.
    assert sum(right) / len(right) == pytest.approx(metrics["t1_per_image"], abs=0.06)


@pytest.mark.gpu
def test_deterministic_runs_on_a_gpu_are_equal(creatures: Path, tmp_path: Path) -> None:
    small = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "3",
        "--stage1.batch_size",
        "8",
        "--stage2.epochs",
        "3",
    ]
    words = ["train", "--config", "creatures", "--dataset", str(creatures), "--deterministic", "true", *small]
    try:
        for name in ("one", "two"):
            assert main([*words, "--out", str(tmp_path / name)]) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.gpu
def test_a_small_gpu_leaves_pixels_on_the_host(tmp_path: Path, dataset: ZeroShotDataset) -> None:
    """4 GiB of pixels, under a memory fraction of 4 GiB: a batch of them still reaches the GPU."""
    total = torch.cuda.mem_get_info()[1]
    pixels = np.lib.format.open_memmap(tmp_path / "pixels.npy", "w+", np.uint8, (5462, 3, 512, 512))
    pixels[:8] = 200
    cache = ImageCache(pixels, np.full((5462, 2), 512, dtype=np.float32))
    try:
        torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
        before = torch.cuda.memory_allocated()
        loader = ImageLoader(cache, DataSettings(image_size=224), device="cuda")
        assert torch.cuda.memory_allocated() - before < 2**26
        (batch,) = loader.centre_crops(np.arange(8), 8)
        assert batch.images.is_cuda
        assert float(batch.images.std()) < 1.0  # 200 everywhere, normalised channel by channel
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
