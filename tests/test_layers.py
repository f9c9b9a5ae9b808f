"""Rooms import from rooms above them, never from those below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import erpcnet

SOURCE = Path(erpcnet.__file__).parent
ROOMS = ("model", "data", "inference", "evaluation", "training", "experiments")  # from the top


def imported(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "erpcnet"}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    below = ROOMS[ROOMS.index(room) + 1 :]
    wrong = {
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in (SOURCE / room).rglob("*.py")
        for name in imported(path)
        if name.split(".")[1:2] and name.split(".")[1] in (*below, "cli", "runs", "pipeline")
    }
    allowed = {"runs", "pipeline"} if room == "experiments" else set()
    assert {line for line in wrong if line.rpartition(".")[2] not in allowed} == set()


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders == {*ROOMS, "presets"}
