"""What is on the disk stays there: whole files, and nobody's own are replaced."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import erpcnet
import erpcnet.training.resume
from erpcnet.cli import main
from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.inference.model_file import save_model
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint
from erpcnet.training.context import create_network
from erpcnet.training.resume import Unfinished
from erpcnet.training.runs import train_run
from erpcnet.utils.files import output_file, plain_text, read_json, write_json


@pytest.fixture
def quick(tiny_config: Config) -> Config:
    """One short training, nothing to choose."""
    return replace(tiny_config, variant="globalnet", model=replace(tiny_config.model, sigma=1.0, delta=0.5))


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "of.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr("erpcnet.utils.files.os.fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2, "long": "x" * 10_000})
    assert json.loads(path.read_text()) == {"a": 1}
    monkeypatch.undo()
    write_json(path, {"a": 3})
    assert json.loads(path.read_text()) == {"a": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["of.json"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"sigma": float("inf")})


def test_output_never_replaces_input_nor_others_in_silence(tmp_path: Path) -> None:
    photo, link = tmp_path / "photo.png", tmp_path / "link.png"
    photo.write_bytes(b"mine")
    link.symlink_to(photo)
    with pytest.raises(InputError, match="one of the files to read"):
        output_file(link, overwrite=True, inputs=[photo])
    with pytest.raises(InputError, match="is there already"):
        output_file(photo)
    assert output_file(photo, overwrite=True) == photo
    assert output_file(tmp_path / "deep" / "new.png").parent.is_dir()
    with pytest.raises(InputError, match="is a folder"):
        output_file(tmp_path, overwrite=True)
    with pytest.raises(InputError, match="cannot be written"):
        output_file(photo / "below" / "it.png")
    assert photo.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["config.yaml", "metrics.json", "notes.txt"])
def test_a_folder_of_others_is_refused(quick: Config, creatures: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=f"holds '{name}', which is no run's"):
            train_run(quick, creatures, tmp_path, overwrite)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine")]


def test_a_folder_that_is_called_unfinished_may_be_anyones(quick: Config, creatures: Path, tmp_path: Path) -> None:
    out, mine = tmp_path / "run", tmp_path / "run" / "unfinished" / "novel.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("Chapter 1")
    with pytest.raises(InputError, match="unfinished is no training's"):
        train_run(quick, creatures, out)
    assert mine.read_text() == "Chapter 1"
    shutil.rmtree(out)
    train_run(quick, creatures, out)
    weights = (out / "model.safetensors").read_bytes()
    mine.parent.mkdir()
    mine.write_text("Chapter 1")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="unfinished is no training's"):
            train_run(replace(quick, seed=5), creatures, out, overwrite)
    assert (mine.read_text(), (out / "model.safetensors").read_bytes()) == ("Chapter 1", weights)


def test_a_finished_run_is_replaced_only_when_asked_to(quick: Config, creatures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train_run(quick, creatures, out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds a run already; give another --out, or --overwrite"):
        train_run(replace(quick, seed=5), creatures, out)
    train_run(replace(quick, seed=5), creatures, out, overwrite=True)
    assert json.loads((out / "metrics.json").read_text())["seed"] == 5
    assert (out / "notes.txt").read_text() == "mine"


def test_a_kill_while_cleaning_up_mixes_no_runs(
    quick: Config, creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def killed(folder: Path, **_: object) -> None:
        for path in sorted(Path(folder).glob("*.json")):  # some are gone already
            path.unlink()
        if Path(folder).exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(erpcnet.training.resume.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        train_run(quick, creatures, out)
    monkeypatch.undo()
    weights = (out / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="holds a run already"):
        train_run(replace(quick, seed=5), creatures, out)
    assert (out / "model.safetensors").read_bytes() == weights
    again = train_run(replace(quick, seed=5), creatures, out, overwrite=True)
    assert again.seed == 5
    assert (out / "model.safetensors").read_bytes() != weights


def test_resuming_notices_other_pictures(tiny_config: Config, creatures: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(creatures, root, ignore=shutil.ignore_patterns(".erpcnet-cache"))
    dataset = erpcnet.read_dataset(root)
    Unfinished(tmp_path / "run", tiny_config, dataset)
    Unfinished(tmp_path / "run", tiny_config, dataset)  # the same again is resumed
    changed = root / dataset.image_paths[0]
    Image.new("RGB", (64, 64), "red").save(changed)
    with pytest.raises(InputError, match="unfinished run with other pictures"):
        Unfinished(tmp_path / "run", tiny_config, erpcnet.read_dataset(root))


def test_only_the_first_process_reads_whose_a_folder_is(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path
) -> None:
    half_written = tmp_path / "run" / "unfinished" / "of.json"
    half_written.parent.mkdir(parents=True)
    half_written.write_text('{"another var')
    (half_written.parent / "final").mkdir()
    (half_written.parent / "final" / "stage1.pt").touch()
    Unfinished(tmp_path / "run", tiny_config, dataset, writes=False)
    with pytest.raises(InputError, match=r"of\.json is damaged, and so is .*; remove .*unfinished to start"):
        Unfinished(tmp_path / "run", tiny_config, dataset)
    shutil.rmtree(half_written.parent / "final")
    half_written.unlink()
    half_written.with_name(".partial-of.json").write_text('{"another var')  # killed before the first rename
    erpcnet.training.resume.check_folder(tmp_path / "run", overwrite=False)
    Unfinished(tmp_path / "run", tiny_config, dataset)
    assert json.loads(half_written.read_text())["another seed"] == 0


def test_equal_networks_are_equal_files_of_strict_json(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path
) -> None:
    network = create_network(tiny_config, len(dataset.attribute_names))
    point = OperatingPoint(float("inf"), 0.5, "validation", (1.5, 1.4), (2.5, 2.4))
    found = set()
    for number in range(8):
        path = tmp_path / f"{number}.safetensors"
        save_model(path, network, dataset, tiny_config, point, Preprocessing())
        found.add(path.read_bytes())
    assert len(found) == 1

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        json.loads(file.metadata()["erpcnet"], parse_constant=refuse)
    assert erpcnet.load(tmp_path / "0.safetensors").point == point


def test_a_diverged_training_leaves_no_model(quick: Config, creatures: Path, tmp_path: Path) -> None:
    stage1 = replace(quick.stage1, optimizer="sgd", lr=100.0, backbone_lr=1000.0, schedule="step", epochs=3)
    with pytest.raises(
        InputError,
        match=r"Stage I, epoch \d, step \d, with images/.* and others in the batch: .* diverged .*lower --stage1\.lr",
    ):
        train_run(replace(quick, stage1=stage1), creatures, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert not list((tmp_path / "run").rglob("stage1.pt"))


def test_weights_that_are_no_numbers_are_not_saved(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path
) -> None:
    network = create_network(tiny_config, len(dataset.attribute_names))
    with torch.no_grad():
        network.global_predictor.get_parameter("0.weight")[0, 0] = float("nan")
    point = OperatingPoint(1.0, 0.5, "fixed")
    with pytest.raises(InputError, match=r"'global_predictor\.0\.weight' holds values that are no numbers"):
        save_model(tmp_path / "model.safetensors", network, dataset, tiny_config, point, Preprocessing())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "NOWHERE"], "is not a folder"),
        (["--methods", "GlobalNett"], "no method 'GlobalNett'"),
        (["--seeds", "one"], "takes whole numbers"),
        ([], "is there already; give another name, or --overwrite"),
    ],
)
def test_an_ablation_keeps_the_rows_of_the_last_one(
    words: list[str], message: str, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("method,t1\nGlobalNet,0.7\n")
    words = [str(tmp_path / "nowhere") if word == "NOWHERE" else word for word in words]
    given = ["--config", "creatures", "--dataset", str(creatures), "--out", str(rows), *words]
    assert main(["ablation", *given, *(["--overwrite"] if words else [])]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert rows.read_text() == "method,t1\nGlobalNet,0.7\n"


@pytest.mark.parametrize(
    ("format_", "remedy"), [(None, "train it again, or use the version that wrote it"), (99, "install a newer version")]
)
def test_models_of_other_formats_are_refused_by_name(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, format_: int | None, remedy: str
) -> None:
    path = tmp_path / "model.safetensors"
    network = create_network(tiny_config, len(dataset.attribute_names))
    save_model(path, network, dataset, tiny_config, OperatingPoint(1.0, 0.5, "fixed"), Preprocessing())
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["erpcnet"])
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert about.pop("format") == 3
    about |= {} if format_ is None else {"format": format_}
    save_file(state, path, metadata={"erpcnet": json.dumps(about)})
    with pytest.raises(InputError, match=f"is of format {format_ or 1}, and this version of erpcnet reads .*{remedy}"):
        erpcnet.load(path)


@pytest.mark.parametrize("text", ['{"a": 1e400}', "[1]", "{", "nan"])
def test_json_that_is_none_is_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match="is damaged; do it again"):
        read_json(tmp_path / "a.json", "do it again")


def test_json_is_a_plain_file_of_a_bounded_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**33)
    for name, why in (("fifo", "no plain file"), ("large", "more than 256 MiB")):
        with pytest.raises(InputError, match=why):
            read_json(tmp_path / f"{name}.json", "do it again")


def test_a_terminal_is_shown_what_it_can_show() -> None:
    assert plain_text("a\x1b[31m\nb\u202e\udcff") == r"a\x1b[31m b\u202e\udcff"


def test_a_run_that_ends_while_another_begins_is_kept(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was free when it was checked, and holds a finished run once the lock is."""
    out = tmp_path / "run"
    erpcnet.training.resume.check_folder(out, overwrite=False)
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr("erpcnet.training.resume.is_model", lambda path: path.exists())
    with pytest.raises(InputError, match="holds a run already"):
        Unfinished(out, tiny_config, dataset)
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    Unfinished(out, tiny_config, dataset, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["unfinished"]
