"""Damaged JSON files of a run: what they held is known again, or the rest goes on without it; a line tells of both."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import erpcnet.training.runs
from erpcnet.cli import main
from erpcnet.config import Config
from erpcnet.data import read_dataset
from erpcnet.errors import InputError
from erpcnet.evaluation.runs import damaged_files, read_metrics
from erpcnet.inference.run_files import dataset_of
from erpcnet.training.runs import train_run

Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "truncated": lambda content: content[: len(content) // 2],
    "a list": lambda content: b"[" + content + b"]",
    "a number": lambda _: b"3",
    "a text": lambda _: b'"x"',
    "null": lambda _: b"null",
    "empty": lambda _: b"",
    "an empty dictionary": lambda _: b"{}",
    "values of another type": lambda content: json.dumps({name: {"a": [1]} for name in json.loads(content)}).encode(),
}
each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def hurt(path: Path, damage: Damage) -> None:
    content = path.read_bytes()
    path.unlink()  # it may be a link to that of another test
    path.write_bytes(damage(content))
    assert path.read_bytes() != content


@pytest.fixture(scope="module")
def config() -> Config:
    return erpcnet.load_config(
        "creatures",
        variant="globalnet",
        data={"image_size": 64, "test_crops": 2},
        stage1={"epochs": 1, "batch_size": 16},
        evaluation={"folds": 1},
        checkpoint_minutes=0,
    )


@pytest.fixture(scope="module")
def finished(config: Config, creatures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    train_run(config, creatures, out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run", copy_function=os.link))


@pytest.fixture(scope="module")
def interrupted(config: Config, creatures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that was interrupted when its last stage was done."""

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(erpcnet.training.runs, "evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            train_run(config, creatures, out)
    assert (out / "unfinished" / "final" / "stage1.pt").is_file()
    return out


@pytest.fixture
def unfinished(interrupted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


@each_damage
def test_evaluate_writes_damaged_figures_anew(
    run: Path, damage: Damage, creatures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = json.loads((run / "metrics.json").read_text())
    assert expected["plainer"]
    hurt(run / "metrics.json", damage)
    assert damaged_files(run) == ["metrics.json"]
    assert main(["evaluate", str(run), "--delta", "0", "--quiet"]) == 0  # figures of another delta are not the run's
    assert damaged_files(run) == ["metrics.json"]
    assert f"by run.json its dataset is {creatures.resolve()}" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--json"]) == 0
    told = capsys.readouterr()
    assert "metrics.json was damaged and is written anew: the figures are measured again" in told.err
    found = read_metrics(run)
    assert found == {**json.loads(told.out), "plainer": found["plainer"], "data": str(creatures.resolve())}
    assert found["t1"] == pytest.approx(expected["t1"])
    assert [one["t1"] for one in found["plainer"]] == pytest.approx([one["t1"] for one in expected["plainer"]])
    assert found.keys() == expected.keys()
    assert main(["evaluate", str(run), "--json"]) == 0
    assert "damaged" not in capsys.readouterr().err


@each_damage
def test_evaluate_rebuilds_what_run_json_can_know(
    run: Path, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = json.loads((run / "run.json").read_text())
    hurt(run / "run.json", damage)
    assert main(["evaluate", str(run), "--json"]) == 0
    assert "run.json was damaged and is written anew: of what the run came from only the dataset" in (
        capsys.readouterr().err
    )
    found = json.loads((run / "run.json").read_text())
    assert found.keys() == {"rebuilt", "dataset"}
    assert found["dataset"] == expected["dataset"]


def test_both_damaged_files_need_a_dataset(run: Path, creatures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("metrics.json", "run.json"):
        hurt(run / name, DAMAGES["truncated"])
    assert main(["evaluate", str(run)]) == 2
    assert capsys.readouterr().err.endswith("metrics.json is damaged; give --dataset.\n")
    assert main(["evaluate", str(run), "--dataset", str(creatures)]) == 0
    assert damaged_files(run) == []
    assert dataset_of(run) == creatures.resolve()


def test_figures_of_another_dataset_replace_nothing(
    run: Path, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(creatures, tmp_path / "other"))
    table = (other / "attributes.csv").read_text().splitlines()
    name, value, *rest = table[1].split(",")
    table[1] = ",".join((name, str(float(value) + 0.5), *rest))
    (other / "attributes.csv").write_text("\n".join(table))
    for name in ("metrics.json", "run.json"):
        hurt(run / name, DAMAGES["truncated"])
    assert main(["evaluate", str(run), "--dataset", str(other), "--json"]) == 0
    assert damaged_files(run) == ["metrics.json", "run.json"]
    told = capsys.readouterr().err
    assert told.count(f"is damaged, and {other} is not what the run was trained on") == 2


def test_files_that_are_no_plain_ones_stay(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.json").unlink()
    (run / "metrics.json").mkdir()
    assert main(["evaluate", str(run), "--json"]) == 0
    assert (run / "metrics.json").is_dir()
    assert "by run.json its dataset is" in capsys.readouterr().err


@each_damage
def test_a_damaged_validation_is_done_without(run: Path, damage: Damage, capsys: pytest.CaptureFixture[str]) -> None:
    hurt(run / "validation.json", damage)
    for words in (["evaluate", str(run), "--quiet"], ["analyse", str(run), "--quiet"]):
        assert main(words) == 0
        assert "validation.json is damaged; nothing is said of how sigma and delta were chosen (training" in (
            capsys.readouterr().err
        )


@each_damage
def test_a_damaged_note_of_whose_is_rebuilt(
    unfinished: Path,
    finished: Path,
    config: Config,
    creatures: Path,
    damage: Damage,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hurt(unfinished / "unfinished" / "of.json", damage)
    for other in (replace(config, seed=5), replace(config, stage1=replace(config.stage1, lr=0.1))):
        with pytest.raises(InputError, match=r"unfinished run with (another seed|other settings); give another"):
            train_run(other, creatures, unfinished)
    capsys.readouterr()
    train_run(config, creatures, unfinished)
    told = capsys.readouterr().err
    assert "of.json was damaged and is rebuilt, as config.yaml and run.json tell the same\n" in told
    assert "holds an unfinished run; resuming it" in " ".join(told.split())
    for name in ("model.safetensors", "metrics.json", "validation.json"):
        assert (unfinished / name).read_bytes() == (finished / name).read_bytes()


def test_a_note_is_not_rebuilt_for_other_pictures(unfinished: Path, config: Config, creatures: Path) -> None:
    about = json.loads((unfinished / "run.json").read_text())
    for name, problem in (("pictures", "other pictures"), ("digest", "other data")):
        hurt(unfinished / "unfinished" / "of.json", DAMAGES["empty"])
        changed = {**about, "dataset": {**about["dataset"], name: "0123abcd"}}
        (unfinished / "run.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=f"unfinished run with {problem}"):
            train_run(config, creatures, unfinished)
        (unfinished / "unfinished" / "of.json").write_bytes(b"{")


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
def test_a_note_without_anything_like_it_is_refused(
    unfinished: Path, config: Config, creatures: Path, name: str
) -> None:
    hurt(unfinished / "unfinished" / "of.json", DAMAGES["truncated"])
    (unfinished / name).write_text("[1")
    kept = (unfinished / "unfinished" / "final" / "stage1.pt").read_bytes()
    with pytest.raises(
        InputError, match=rf"of\.json is damaged, and so is .*{name}.*; remove .* to start the training"
    ):
        train_run(config, creatures, unfinished)
    assert (unfinished / "unfinished" / "final" / "stage1.pt").read_bytes() == kept


@each_damage
def test_a_damaged_choice_is_made_again(
    unfinished: Path,
    finished: Path,
    config: Config,
    creatures: Path,
    damage: Damage,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the trainings without validation classes, which are not done again."""
    hurt(unfinished / "validation.json", damage)
    trained: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(erpcnet.training.pipeline, "train_stage1", lambda *_: trained.append("again"))
        train_run(config, creatures, unfinished)
    assert trained == []
    assert "validation.json is not there or damaged; sigma and delta are chosen again" in capsys.readouterr().err
    for name in ("model.safetensors", "metrics.json", "validation.json"):
        assert (unfinished / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.parametrize("name", ["metrics.json", "run.json"])
@each_damage
def test_the_last_cleaning_repairs_what_it_reads(
    run: Path, interrupted: Path, config: Config, creatures: Path, name: str, damage: Damage
) -> None:
    expected = json.loads((run / "metrics.json").read_text())
    (run / ".unfinished-done").mkdir()
    shutil.copy(interrupted / "unfinished" / "of.json", run / ".unfinished-done")
    hurt(run / name, damage)
    with pytest.raises(InputError, match="holds a run already"):
        train_run(replace(config, seed=5), creatures, run)
    assert train_run(config, creatures, run).t1 == pytest.approx(expected["t1"])
    assert not (run / ".unfinished-done").exists()
    assert damaged_files(run) == []
    assert read_metrics(run)["t1"] == pytest.approx(expected["t1"])
    assert json.loads((run / "run.json").read_text())["dataset"]["digest"] == read_dataset(creatures).fingerprint()
