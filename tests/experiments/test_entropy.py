"""Stage II followed epoch by epoch, against the stages themselves."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from erpcnet.cli import main
from erpcnet.config import Config, load_config
from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.evaluation.protocol import measure
from erpcnet.experiments.entropy import best_epoch, run_entropy
from erpcnet.model.scoring import OperatingPoint
from erpcnet.training import Log, open_context
from erpcnet.training.pipeline import rollout_test, train_network


def test_the_last_epoch_is_what_a_training_ends_with(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    rows = list(run_entropy(tiny_config, dataset, [0]))
    assert [(row["method"], row["epoch"]) for row in rows] == [(m, e) for m in ("RPCNet", "ERPCNet") for e in range(3)]
    fold = dataset.validation(1, seed=0)[0]
    for last, variant in ((rows[2], "rpcnet"), (rows[5], "erpcnet")):
        config: Config = replace(tiny_config, variant=variant)  # type: ignore[arg-type]
        context = open_context(config, dataset)
        rollouts = rollout_test(context, train_network(context, fold, Log()), fold)
        metrics = measure(rollouts, OperatingPoint(last["sigma"], 0.0, "fixed"), seed=0)
        assert last["t1"] == pytest.approx(metrics.t1)
        assert last["mean_steps"] == pytest.approx(metrics.mean_steps)
        assert last["t1_by_order"] == pytest.approx(sum(metrics.t1_by_step) / len(metrics.t1_by_step))


def test_the_first_of_nearly_best_epochs_counts() -> None:
    figures = [0.50, 0.5995, 0.59, 0.60, 0.55]
    rows = [{"epoch": str(epoch), "t1_by_order": str(value)} for epoch, value in enumerate(figures)]
    assert best_epoch(rows) == 1
    assert best_epoch(rows[2:]) == 3


def test_the_command_writes_rows_and_a_picture(
    creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows" / "entropy.csv"
    small = ["--data.image_size", "64", "--stage1.epochs", "1", "--stage1.batch_size", "16", "--stage2.epochs", "1"]
    words = ["experiment", "entropy", "--config", "creatures", "--dataset", str(creatures), "--out", str(out)]
    assert main([*words, "--seeds", "3", *small]) == 0
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["epoch"]) for row in rows] == [("3", "0"), ("3", "1")] * 2
    quick = {"data": {"image_size": 64}, "stage1": {"epochs": 1, "batch_size": 16}, "stage2": {"epochs": 1}}
    expected = run_entropy(load_config("creatures", **quick), read_dataset(creatures), [3])
    assert [float(row["t1"]) for row in rows] == pytest.approx([row["t1"] for row in expected])
    assert "| ERPCNet |" in capsys.readouterr().out
    with Image.open(out.with_suffix(".png")) as drawn:
        assert drawn.width > 500
    assert main([*words, "--seeds", "3", *small]) == 2  # what is there is not replaced
    assert "--overwrite" in capsys.readouterr().err
    assert torch.is_grad_enabled()
