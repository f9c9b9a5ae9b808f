"""Every command of the command line, as a person gives it; and one picture through every way of asking."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import erpcnet
from conftest import TINY
from erpcnet.cli import main
from erpcnet.config import list_presets, read_values
from erpcnet.data import ZeroShotDataset
from erpcnet.data.creatures import CreatureSettings
from untrained import untrained_run

QUICK = [
    *("--evaluation.folds", "1"),
    *("--data.image_size", "64", "--stage1.epochs", "6", "--stage1.batch_size", "16"),
    *("--stage2.epochs", "2", "--data.test_crops", "4", "--model.hubness", "0.3"),
]


@pytest.fixture(scope="module")
def run(creatures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is tested with four crops."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(out), *QUICK]) == 0
    return out


@contextmanager
def serving(command: str, run: Path, *words: str) -> Iterator[str]:
    """`erpcnet demo` or `erpcnet serve` in a process of its own, and the line that it prints; Ctrl-C ends it."""
    given = [sys.executable, "-m", "erpcnet", command, str(run), "--port", "0", "--device", "cpu", *words]
    # A shell's background jobs ignore Ctrl-C, and so would what the tests start in one.
    process = subprocess.Popen(
        given,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    try:
        yield process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()


@pytest.mark.slow
def test_the_same_answer_wherever_one_asks(
    run: Path, creatures: Path, dataset: ZeroShotDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library, the command line, the page, which asks over REST, and the exported files; four crops, unseen classes
    and all.
    """
    paths = [creatures / dataset.image_paths[row] for row in dataset.test_unseen[::2]]
    assert main(["export", str(run), "--out", str(tmp_path / "model.pt2")]) == 0
    assert main(["export", str(run), "--format", "onnx", "--out", str(tmp_path / "model.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    extra = {"about.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    about = json.loads(extra["about.json"])
    assert about["crops"] == 4
    assert about == json.loads(session.get_modelmeta().custom_metadata_map["about.json"])
    side, cubic = (about["side"], about["side"]), Image.Resampling.BICUBIC
    pictures = [Image.open(path).convert("RGB") for path in paths]
    squares = np.stack([np.asarray(one.resize(side, cubic, reducing_gap=3)) for one in pictures])
    pixels = torch.from_numpy(squares).permute(0, 3, 1, 2)
    shapes = torch.tensor([(one.height, one.width) for one in pictures], dtype=torch.float32)
    seen, attributes = torch.tensor(about["seen"]), torch.tensor(about["attributes"])
    model = erpcnet.load(run, "cpu")
    compared = 0
    with serving("demo", run, "--no-browser") as line:
        address = line.split()[0]
        for candidates in ("unseen", "all"):
            expected = model.predict(paths, candidates)
            capsys.readouterr()
            assert main(["predict", str(run), *map(str, paths), "--classes", candidates, "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
            chosen = torch.arange(len(seen)) if candidates == "all" else (~seen).nonzero()[:, 0]
            given = (pixels, shapes, attributes[chosen], seen[chosen])
            chances = program(*given)[0]
            names = ("pixels", "shapes", "attributes", "seen")
            by_onnx = session.run(None, {name: one.numpy() for name, one in zip(names, given, strict=True)})[0]
            assert np.median(np.abs(by_onnx - chances.numpy()).max(axis=1)) < 1e-4
            for number, (path, one) in enumerate(zip(paths, expected, strict=True)):
                with urlopen(Request(f"{address}/predict?candidates={candidates}", path.read_bytes())) as reply:
                    page = json.load(reply)
                assert told[number]["confidence"] == pytest.approx(one.confidence, abs=2e-3)
                assert page["confidence"] == pytest.approx(one.confidence, abs=2e-3)
                assert float(chances[number].max()) == pytest.approx(one.confidence, abs=2e-3)
                assert float(by_onnx[number].max()) == pytest.approx(one.confidence, abs=2e-3)
                if float(chances[number].topk(2).values.diff().abs()) < 5e-3:
                    continue  # rounding, or a beta in the next bin, may decide between two
                compared += 1
                exported = about["classes"][int(chosen[chances[number].argmax()])]
                assert one.name == told[number]["name"] == page["name"] == exported
                assert one.name == about["classes"][int(chosen[by_onnx[number].argmax()])]
    assert compared >= 8


def test_a_server_answers_until_ctrl_c(tmp_path: Path) -> None:
    """As a process; with a token, which stands behind the address of the page."""
    run = untrained_run(tmp_path / "run")
    with serving("serve", run) as line:
        address = line.split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        with urlopen(f"{address}/health") as reply:
            assert json.load(reply) == {"status": "ok", "version": erpcnet.__version__}
    with pytest.raises(URLError):
        urlopen(f"{address}/health")
    with serving("demo", run, "--no-browser", "--token", "a secret/ü") as line:
        address, _, token = line.split()[0].partition("/#token=")
        assert token == "a%20secret%2F%C3%BC"
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"{address}/about")
        bearer = "Bearer a secret/ü".encode().decode("latin-1")
        with urlopen(Request(f"{address}/about", headers={"Authorization": bearer})) as reply:
            assert len(json.load(reply)["classes"]) == 9


def test_an_ablation_writes_a_row_for_each_method(creatures: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "rows.csv"
    given = ["--config", "creatures", "--dataset", str(creatures), "--out", str(out), "--seeds", "3"]
    small = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "1",
        "--stage2.epochs",
        "1",
        "--model.sigma",
        "1",
    ]
    assert main(["ablation", *given, "--methods", "GlobalNet; PCNet", *small, "--model.delta", "0.5"]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seed"], row["delta"]) for row in rows] == [
        ("GlobalNet", "3", "0.5"),
        ("PCNet", "3", "0.5"),
    ]


def test_a_bench_writes_its_rows_and_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    small = ["--batches", "1", "--stage1-batches", "2", "--stage2-images", "4", "--repeats", "4", "--no-growth"]
    assert main(["bench", *small, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with out.open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [row["name"] for row in found["rows"]]
    assert main(["bench", *small, "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_creatures_are_drawn_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, usual = tmp_path / "creatures", CreatureSettings.__init__
    few = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    monkeypatch.setattr(CreatureSettings, "__init__", lambda self, **given: usual(self, **{**few, **given}))
    assert main(["data", "make", "creatures", str(drawn)]) == 0
    assert "drew creatures" in capsys.readouterr().out
    stamps = {path: path.stat().st_mtime_ns for path in drawn.rglob("*.png")}
    assert len(stamps) == 80
    assert main(["data", "make", "creatures", str(drawn)]) == 0
    assert "already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in drawn.rglob("*.png")} == stamps


def test_no_output_replaces_what_is_there(
    run: Path, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "photo.png"
    shutil.copy(creatures / "images/00a/000.png", photo)
    before = photo.read_bytes()
    for overwrite in ([], ["--overwrite"]):
        assert main(["predict", str(run), str(photo), "--picture", str(photo), *overwrite]) == 2
        assert "one of the files to read" in capsys.readouterr().err
        weights = str(run / "model.safetensors")
        assert main(["export", str(run), "--out", weights, *overwrite]) == 2
        assert "one of the files to read" in capsys.readouterr().err
    assert photo.read_bytes() == before
    mine = tmp_path / "mine" / "analysis.md"
    mine.parent.mkdir()
    mine.write_text("my own analysis")
    assert main(["analyse", str(run), "--out", str(mine.parent)]) == 2
    assert "analysis.md is there already" in capsys.readouterr().err
    assert main(["predict", str(run), str(photo), "--picture", str(mine)]) == 2
    assert main(["export", str(run), "--out", str(mine)]) == 2
    assert mine.read_text() == "my own analysis"
    assert erpcnet.load(run).point.protocol == "validation"  # and the run is whole


def test_other_weights_than_were_measured_are_told(
    creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", "--config", "creatures", "--dataset", str(creatures), "--variant", "globalnet"]
    small = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "1",
        "--model.sigma",
        "1",
        "--model.delta",
        "0.5",
    ]
    for name, weights, expected in (("as is", [], 0), ("bare", ["--model.backbone.weights", "none"], 1)):
        assert main([*given, "--out", str(tmp_path / name), *small, *weights]) == 0
        told = capsys.readouterr().err
        assert told.count("were measured with small and weights default") == expected
    assert "with small and none they were not" in told


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_names_its_backbone_and_weights(name: str) -> None:
    backbone = read_values(name)["model"]["backbone"]
    assert set(backbone) == {"name", "weights"}
    assert backbone["weights"] in ({"small": ["default"]}.get(backbone["name"], ["IMAGENET1K_V1"]))
    assert (backbone["name"] == "resnet101") == name.endswith("-paper")


def test_a_deterministic_run_asks_torch_for_it(creatures: Path, tmp_path: Path) -> None:
    given = ["--config", "creatures", "--dataset", str(creatures), "--variant", "globalnet", "--deterministic", "true"]
    small = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "1",
        "--model.sigma",
        "1",
        "--model.delta",
        "0.5",
    ]
    try:
        assert main(["train", *given, "--out", str(tmp_path / "run"), *small]) == 0
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
