"""`--device`: every command that computes takes it, and computes there."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import erpcnet
from erpcnet.cli import main
from erpcnet.cli.main import COMMANDS
from erpcnet.experiments import bench
from erpcnet.experiments.bench_cases import CPU, BenchSettings
from erpcnet.inference import ZeroShotClassifier
from erpcnet.inference import export as exporting
from erpcnet.utils import runtime
from untrained import untrained_run

COMPUTE_NOTHING = {"data", "presets"}
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def given(run: Path) -> tuple[torch.Tensor, ...]:
    """What an exported program takes."""
    return exporting._drawn(erpcnet.load(run, "cpu"), 3)


def answers(path: Path, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The probabilities that an exported program gives."""
    found: torch.Tensor = torch.export.load(path).module()(*given)[0]
    return found


@pytest.mark.parametrize("command", [one.name for one in COMMANDS])
def test_every_command_that_computes_takes_a_device(command: str, capsys: Said) -> None:
    assert main([command, "--help"]) == 0
    assert ("--device DEVICE" in capsys.readouterr().out) == (command not in COMPUTE_NOTHING)


@pytest.mark.parametrize("command", ["export", "bench"])
def test_a_device_that_is_not_there_leaves_nothing(command: str, run: Path, tmp_path: Path, capsys: Said) -> None:
    words = [str(run)] if command == "export" else []
    for device, message in {"cuda": "this machine has no 'cuda'", "gpu": "there is no device 'gpu'"}.items():
        assert main([command, *words, "--out", str(tmp_path / "deep" / "file.pt2"), "--device", device]) == 2
        assert capsys.readouterr().err.startswith(f"erpcnet: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "RUN", "--format", "onnx", "--out", "OUT/model.onnx"], "an ONNX file computes wherever it is run"),
        (["bench", "--out", "OUT/rows.csv"], "what is timed runs on cpu or cuda"),
    ],
)
def test_devices_that_a_command_cannot_use_are_refused(
    words: list[str], message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setattr(runtime, "check_device", torch.device)  # as on a machine that has it
    words = [word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words]
    assert main([*words, "--device", "mps"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("erpcnet: --device is mps")
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_of_the_cpu_by_default(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported: list[str] = []

    def record(classifier: ZeroShotClassifier, out: Path) -> None:
        exported.append(next(classifier.network.parameters()).device.type)
        out.touch()

    monkeypatch.setattr(exporting, "export", record)
    monkeypatch.setattr(runtime, "default_device", partial(pytest.fail, "a GPU would be taken"))
    assert main(["export", str(run), "--out", str(tmp_path / "model.pt2")]) == 0
    assert exported == ["cpu"]


def test_a_bench_may_leave_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[BenchSettings] = []

    def record(settings: BenchSettings, _: object) -> dict[str, Any]:
        ran.append(settings)
        return {"rows": []}

    monkeypatch.setattr(bench, "run_bench", record)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # which would be taken by itself
    assert main(["bench", "--device", "cpu", "--json"]) == 0
    assert ran == [CPU]


@pytest.mark.gpu
def test_a_program_of_a_gpu_answers_there(run: Path, given: tuple[torch.Tensor, ...], tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        assert main(["export", str(run), "--out", str(tmp_path / f"{device}.pt2"), "--device", device]) == 0
    found = answers(tmp_path / "cuda.pt2", tuple(one.cuda() for one in given))
    assert found.is_cuda
    # bf16 rounds elsewhere.
    assert (found.cpu() - answers(tmp_path / "cpu.pt2", given)).abs().median() < 0.02


@pytest.mark.gpu
def test_a_bench_is_of_the_gpu_asked_for(tmp_path: Path, capsys: Said) -> None:
    small = ["--batches", "1", "--stage1-batches", "2", "--stage2-images", "4", "--repeats", "4", "--no-growth"]
    last = f"cuda:{torch.cuda.device_count() - 1}"
    assert main(["bench", *small, "--image-size", "64", "--backbone", "small", "--device", last]) == 0
    assert torch.cuda.get_device_name(last) in " ".join(capsys.readouterr().out.split())
