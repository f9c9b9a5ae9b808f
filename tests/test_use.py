"""What docs/use.md tells people to do, done on a small run."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from erpcnet.cli import main
from erpcnet.data import ZeroShotDataset

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "docs" / "use.md").read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, block in BLOCKS
    if kind == ""
    for line in block.splitlines()
    if line.startswith("erpcnet ")
]
SNIPPETS = [block for kind, block in BLOCKS if kind == "python"]
SERVERS = ("serve", "demo")  # which a test of their own starts


@pytest.fixture(scope="module")
def place(creatures: Path, dataset: ZeroShotDataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with runs/mine, some.jpg, photos/ and new.csv."""
    folder = tmp_path_factory.mktemp("use")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        quick = ["--evaluation.folds", "1", "--data.image_size", "64", "--stage1.epochs", "1", "--stage2.epochs", "1"]
        words = ["train", "--config", "creatures", "--dataset", str(creatures), "--out", "runs/mine", *quick]
        assert main(words) == 0
        Path("photos").mkdir()
        for row in dataset.test_unseen[:5]:
            shutil.copy(creatures / dataset.image_paths[row], "photos")
        Image.open(creatures / dataset.image_paths[0]).convert("RGB").save("some.jpg")
        header, *rows = (creatures / "attributes.csv").read_text(encoding="utf-8").splitlines()
        own = rows[0].split(",", 1)[1]
        Path("new.csv").write_text(f"{header}\nnew kind,{own}\n", encoding="utf-8")
        yield folder


@pytest.mark.slow
def test_the_commands_of_the_page_work(
    place: Path, dataset: ZeroShotDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {"predict", "explain", "export"} <= {command.split()[1] for command in COMMANDS}
    done = 0
    for command in COMMANDS:
        words = shlex.split(command.removeprefix("erpcnet "))
        if words[0] in SERVERS:
            continue
        words = [{"okapi": dataset.classes[1], "zebra; okapi": "; ".join(dataset.classes[:2])}.get(w, w) for w in words]
        assert main(words) == 0, command
        done += 1
    assert done >= 8
    assert len((place / "found.csv").read_text().splitlines()) == 1 + 5
    assert "<html" in (place / "why.html").read_text(encoding="utf-8")
    for name in ("where.png", "okapi.png"):
        with Image.open(place / name) as drawn:
            assert drawn.width > 100
    capsys.readouterr()


@pytest.mark.slow
def test_the_snippets_of_the_page_work(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not (place / "runs/mine/model.onnx").exists():
        assert main(["export", "runs/mine", "--format", "onnx"]) == 0
    assert len(SNIPPETS) == 5
    for snippet in SNIPPETS:
        names: dict[str, Any] = {}
        exec(snippet, names)
        if "session" in names:
            assert abs(float(names["chances"].sum()) - 1) < 1e-4
        if "again" in names:
            assert names["again"].classes.names == names["model"].classes.names
    printed = capsys.readouterr().out
    assert "17 classes" in printed  # 16, and the night owl
    assert re.search(r"T1 0\.\d{3}, U 0\.\d{3}, S 0\.\d{3}, H 0\.\d{3}\n", printed)
    assert re.search(r"at the best delta H 0\.\d{3}, AUSUC 0\.\d{3}\n", printed)
