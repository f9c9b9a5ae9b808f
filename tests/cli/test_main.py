"""What happens to a person's mistakes, whatever the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import erpcnet
from erpcnet.cli import main, presets
from erpcnet.cli.main import build_parser
from erpcnet.cli.parser import config_of


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


def test_a_preset_may_need_a_flag(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: _paper\n")
    words = ["train", "--config", str(tmp_path / "mine.yaml"), "--model.sigma", "0.7"]
    config = config_of(build_parser(words).parse_args(words)["train"])
    assert (config.stage2.stop_at_sigma, config.model.sigma) == (True, 0.7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--config"], "argument --config: expected one argument"),
        (["train", "--config", "_paper"], "set --model.sigma too"),
        (
            ["train", "--epochs", "3"],
            "--epochs 3 (perhaps --stage1.epochs or --stage2.epochs); see",
        ),
        (["predict", "run", "a.png", "--crop", "2"], "--crop 2 (perhaps --crops)"),
        (["predict", "run", "a.png", "--views", "2"], "--views 2 (perhaps --crops)"),
        (["predict", "a.png", "run"], "a.png is a picture; the run comes first: `erpcnet predict RUN a.png`"),
        (["train", "--stage1.learning_rate", "1"], "--stage1.learning_rate 1 (perhaps --stage1.lr)"),
        (["evaluate", "run", "--zebra"], "--zebra; see"),
        (["predict", "run"], "the following arguments are required: images; see"),
        (["train", "--variant", "erpcnett"], "variant is 'erpcnett'; it must be one of 'erpcnet', 'rpcnet'"),
        (["train", "--stage1.lr", "fast"], "stage1.lr is 'fast'; it must be of type float"),
        (["train", "--model.joint.kind", "mean"], "no joint head 'mean'"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert "commands:" in capsys.readouterr().out


def test_only_the_asked_command_has_its_arguments() -> None:
    every = build_parser().format_help()
    assert every == build_parser(["presets"]).format_help() == build_parser(["--help"]).format_help()
    for words in (["--help"], ["evaluate"]):
        action = build_parser(words)._subcommands_action
        assert action is not None
        assert len(action.choices["train"]._actions) == 1  # --help alone


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--seed="], "seed is ''; it must be of type int"),
        (["train", "--model.sigma", "many"], "model.sigma is 'many'; it must be of type float"),
        (["train", "--model.steps", "1" + "0" * 400], "model.steps is a number of more than 100 digits"),
        (["bench", "--image-size", "-1"], "--image-size is -1; it must be from 64 to 2048."),
        (["bench", "--batches", "1,0"], "--batches is 0; it must be from 1 to 65536."),
        (["ablation", "--seeds", "-1"], "which holds -1; seeds are from 0 to 4294967295, each once."),
        (["ablation", "--seeds", "0,0"], "which names a seed twice"),
        (["ablation", "--methods", ";"], "--methods is empty"),
        (["data", "make", "creatures", ""], "the folder is empty; give a path."),
        (["data", "check", "a\x1b[31m"], r"a\x1b[31m is not a folder"),
        (["analyse", "not-there"], "is not there; give the folder"),
    ],
)
def test_settings_out_of_range_leave_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("erpcnet: ")
    assert message in line
    assert line.isprintable()
    assert not list(tmp_path.iterdir())
