"""What happens to a person's mistakes, whatever the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import erpcnet
from erpcnet.cli import main, presets
from erpcnet.cli.main import build_parser


def test_without_words_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "try a run in the browser" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"erpcnet {erpcnet.__version__}\n"


@pytest.mark.parametrize(("module", "extra"), [("accelerate", "train"), ("timm", "timm")])
def test_a_missing_extra_is_named(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: object) -> int:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(presets, "run", missing)
    assert main(["presets"]) == 2
    assert capsys.readouterr().err == f"erpcnet: this needs '{module}'; pip install 'erpcnet[{extra}]'.\n"


def test_a_missing_module_of_ours_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> int:
        raise ModuleNotFoundError("No module named 'erpcnet.nowhere'", name="erpcnet.nowhere")

    monkeypatch.setattr(presets, "run", missing)
    with pytest.raises(ModuleNotFoundError):
        main(["presets"])


def test_an_interruption_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(presets, "run", interrupted)
    assert main(["presets"]) == 130
    assert capsys.readouterr().err == "erpcnet: interrupted\n"


def test_flags_before_the_preset_count_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--stage1.epochs", "3", "--config", "cub", "--model.sigma", "0.7"]
    options = build_parser(words).parse_args(words)["train"]
    assert (options.stage1.epochs, options.model.sigma, options.stage1.mixup) == (3, 0.7, 0.3)


def test_only_the_asked_command_has_its_arguments() -> None:
    every = build_parser().format_help()
    assert every == build_parser(["presets"]).format_help()


def test_completions_know_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    command = [sys.executable, "-m", "erpcnet", "--print_completion", "shtab-bash"]
    script = tmp_path / "completion.sh"
    script.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "--stage1.lr" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_package_is_a_program() -> None:
    found = subprocess.run([sys.executable, "-m", "erpcnet", "presets"], capture_output=True, text=True, check=True)
    assert "cub-448" in found.stdout
