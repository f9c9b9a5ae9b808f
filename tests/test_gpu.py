"""What users do, on a GPU: both stages recorded, convolutions in bf16."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import erpcnet
from erpcnet.cli import main


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["erpcnet", "hardnet"])
def test_a_run_on_a_gpu_is_evaluated_and_predicts_alike(
    variant: str, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    small = ["--data.image_size", "64", "--stage1.epochs", "4", "--stage1.batch_size", "8", "--stage2.epochs", "6"]
    words = ["train", "--config", "creatures", "--data", str(creatures), "--out", str(run), "--variant", variant]
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
    # Frozen for prediction, bf16 rounds elsewhere: an answer of twenty may turn over.
    assert sum(right) / len(right) == pytest.approx(metrics["t1_per_image"], abs=0.06)
