"""What the README tells people to do, done."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import Browser
from erpcnet.cli import main
from erpcnet.data import ZeroShotDataset

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, block in BLOCKS
    if kind == ""
    for line in block.splitlines()
    if line.startswith(("erpcnet ", "make "))
]
SNIPPETS = [block for kind, block in BLOCKS if kind == "python"]
# The README's commands with a network that trains within seconds.
SMALL = [
    *("--model.backbone.name", "small", "--model.backbone.weights", "default", "--data.image_size", "64"),
    *("--data.cache_size", "72", "--stage1.epochs", "1", "--stage1.min_steps", "2", "--stage2.epochs", "1"),
]


def test_there_are_commands_and_snippets_to_try() -> None:
    words = [command.split()[1] for command in COMMANDS]
    assert {"quickstart", "test", "data", "train", "evaluate", "predict"} <= set(words)
    assert len(SNIPPETS) == 2


@pytest.mark.parametrize("target", [command.split()[1] for command in COMMANDS if command.startswith("make ")])
def test_what_can_be_made_is_in_the_makefile(target: str) -> None:
    planned = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {"quickstart": "erpcnet train", "test": "pytest"}[target]
    assert expected in planned


def test_the_commands_do_what_they_say(
    creatures: Path, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, where `photos/` has class folders and some.jpg is a picture; a person fills in the tables."""
    monkeypatch.chdir(tmp_path)
    for row, name in enumerate(dataset.image_paths):
        place = Path("photos") / dataset.classes[dataset.labels[row]] / Path(name).name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(creatures / name, place)
    Image.open(creatures / dataset.image_paths[0]).convert("RGB").save("some.jpg")
    done = []
    for command in COMMANDS:
        if not command.startswith("erpcnet ") or command.split()[1] == "serve":
            continue
        words = shlex.split(command.removeprefix("erpcnet "))
        words = [{"DIR": str(creatures), "RUN": "runs/other"}.get(word, word) for word in words]
        given = [*SMALL, "--model.delta", "0.5"] if "cub" in words else SMALL if words[0] == "train" else []
        assert main([*words, *given]) == 0, command
        done.append(words[0])
        if words[:2] == ["data", "init"]:
            shutil.copy(creatures / "attributes.csv", "photos/attributes.csv")
            unseen = {dataset.classes[number] for number in dataset.unseen}
            lines = Path("photos/splits.csv").read_text().splitlines()
            kept = [line.replace(",seen", ",unseen") if line.partition(",")[0] in unseen else line for line in lines]
            Path("photos/splits.csv").write_text("\n".join(kept) + "\n")
    assert done == ["data", "train", "evaluate", "predict", "predict", "train"]
    assert len(Path("found.csv").read_text().splitlines()) == 1 + len(dataset.image_paths)
    with Image.open("where.png") as drawn:
        assert drawn.width > 100


@pytest.mark.slow
def test_four_commands_lead_to_a_new_class(
    creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    """From the quickstart, a smaller one here, to a class that the browser and REST know, by the README's own words."""
    lines = next(block for _, block in BLOCKS if block.startswith("erpcnet serve")).splitlines()
    serve, *asked = [line.split("   #")[0].strip() for line in lines]
    assert [line.split()[0] for line in (serve, *asked)] == ["erpcnet", "curl", "curl"]
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    monkeypatch.chdir(tmp_path)
    quick = ["--evaluation.folds", "1", "--data.image_size", "64", "--stage1.epochs", "1", "--stage2.epochs", "1"]
    assert (
        main(["train", "--config", "creatures", "--dataset", str(creatures), "--out", "runs/quickstart", *quick]) == 0
    )
    command = [sys.executable, "-m", *serve.split(), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
            assert found is not None
            address, answers = found.group(), []
            for line in asked:
                words = shlex.split(line.replace("http://127.0.0.1:8000", address))
                told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
                answers.append(json.loads(told))
            assert "night owl" in {one["name"] for one in answers[0]["classes"]}
            assert answers[1]["among"] == len(answers[0]["classes"])
            browser.open(address)
            browser.wait("return document.body.textContent.includes('night owl')")
        finally:
            server.terminate()


@pytest.mark.slow
def test_the_snippets_run(
    creatures: Path, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--evaluation.folds", "1", "--data.image_size", "64", "--stage1.epochs", "1", "--stage2.epochs", "1"]
    assert (
        main(["train", "--config", "creatures", "--dataset", str(creatures), "--out", "runs/quickstart", *quick]) == 0
    )
    assert main(["export", "runs/quickstart"]) == 0
    shutil.copy(creatures / dataset.image_paths[0], "some.png")
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    exec(SNIPPETS[0], first)
    assert "night owl" in first["model"].classes.names
    exec(SNIPPETS[1], second)
    assert len(second["names"]) == 1
    assert set(second["names"]) <= set(dataset.classes)
    assert abs(float(second["chances"].sum()) - 1) < 1e-4


def test_the_layout_names_what_is_there() -> None:
    layout = next(block for _, block in BLOCKS if "src/erpcnet/config/" in block)
    named = set(re.findall(r"^(?:src/erpcnet/|            )(\w+)/ ", layout, re.MULTILINE))
    folders = {path.name for path in (ROOT / "src" / "erpcnet").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert named == folders
