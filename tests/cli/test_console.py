"""What commands say beside their results: nothing when asked to, what was chosen and why, baselines, and the device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from erpcnet.cli import main
from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.evaluation import evaluate_run
from erpcnet.evaluation.baselines import evaluate_baselines
from erpcnet.evaluation.runs import open_run
from erpcnet.evaluation.tables import print_choices
from erpcnet.utils.runtime import default_device, on_device

QUICK = [
    *("--config", "creatures", "--evaluation.folds", "1", "--data.image_size", "64", "--stage1.epochs", "1"),
    *("--stage1.batch_size", "16", "--stage2.epochs", "1"),
]
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(creatures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("console") / "run"
    assert main(["train", *QUICK, "--dataset", str(creatures), "--out", str(out), "--quiet"]) == 0
    return out


def test_a_quiet_training_prints_its_results_alone(creatures: Path, tmp_path: Path, capfd: Said) -> None:
    words = ["train", *QUICK, "--dataset", str(creatures), "--out", str(tmp_path / "run"), "--quiet", "--baseline"]
    assert main(words) == 0
    told = capfd.readouterr()
    assert told.err == ""
    assert "erpcnet" in told.out
    assert "ESZSL" in told.out
    assert re.search(r"sigma: on \d+ validation images localities turn", told.out)  # what was chosen, and why
    assert "loss" not in told.out
    assert (tmp_path / "run" / "console.log").read_text(encoding="utf-8") != ""  # which is kept all the same


def test_json_prints_nothing_else(run: Path, capfd: Said) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    told = capfd.readouterr()
    assert told.err == ""
    assert json.loads(told.out)["unseen_classes"] == 4


def test_the_baseline_beside_a_run_is_the_commands(run: Path, creatures: Path, capfd: Said) -> None:
    assert main(["evaluate", str(run), "--baseline"]) == 0
    beside = capfd.readouterr().out
    opened = open_run(run)
    for row in evaluate_baselines(opened.config, opened.dataset):
        assert row.method in beside
        assert f"{100 * row.t1:.1f}" in beside
    assert main(["evaluate", str(run), "--baseline", "--json"]) == 2
    assert "`erpcnet baseline --json` prints it" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["train", "ablation", "baseline"])
def test_a_device_that_is_not_there_is_refused(command: str, creatures: Path, tmp_path: Path, capfd: Said) -> None:
    out = [] if command == "baseline" else ["--out", str(tmp_path / "out")]
    assert main([command, *QUICK, "--dataset", str(creatures), *out, "--device", "cuda"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("erpcnet: this machine has no 'cuda'")
    assert not (tmp_path / "out").exists()


def test_the_device_is_what_was_asked_for_within() -> None:
    with on_device("cpu"):
        assert default_device() == torch.device("cpu")
        with on_device(None):
            assert default_device() == torch.device("cpu")
    with pytest.raises(InputError, match="there is no device 'gpu'"), on_device("gpu"):
        pass


def test_the_baselines_are_computed_on_the_cpu_when_asked(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # which would be taken by itself
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    assert default_device().type == "cuda"
    with on_device("cpu"):
        assert evaluate_baselines(tiny_config, dataset)[0].method == "ESZSL"


def test_few_unseen_classes_are_told(run: Path, capfd: Said) -> None:
    metrics = evaluate_run(run).to_json()
    for count, told in ((1, "With one unseen class"), (2, "With two unseen classes"), (3, "")):
        print_choices({**metrics, "unseen_classes": count}, None)
        assert capfd.readouterr().out.strip().startswith(told)
    assert capfd.readouterr().out == ""
