"""Rooms import from rooms above them, never from those below; and nobody waits for what is not used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import erpcnet

SOURCE = Path(erpcnet.__file__).parent
# From the top; `errors` stands above all of them.
ROOMS = ("config", "utils", "model", "data", "inference", "evaluation", "training", "experiments", "cli")
HEAVY = ("accelerate", "tensorboard", "sklearn", "matplotlib", "jsonargparse", "scipy", "timm", "torchvision")


class _AtRunTime(ast.NodeTransformer):
    """Leaves out what is imported for type checkers alone."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node


def imported(path: Path, types: bool = True) -> set[str]:
    """The modules of this package that a file imports, anywhere in it; with or without those only for their types."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree if types else _AtRunTime().visit(tree)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "erpcnet"}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    allowed = {"errors", *ROOMS[: ROOMS.index(room) + 1]}
    wrong = {
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in (SOURCE / room).rglob("*.py")
        for name in imported(path)
        if name != "erpcnet" and name.split(".")[1] not in allowed
    }
    assert wrong == set()


def test_modules_of_a_room_import_no_circle() -> None:
    files = {
        ".".join(("erpcnet", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in SOURCE.rglob("*.py")
    }
    graph = {
        name: imported(path, types=False) & files.keys() for name, path in files.items() if path.stem != "__init__"
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert len(done) > 60


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders == {*ROOMS, "presets"}


def loaded_by(statement: str) -> set[str]:
    """The modules that a new interpreter has loaded after a statement."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_loading_and_predicting_need_no_training_code() -> None:
    modules = loaded_by("from erpcnet import load, ZeroShotClassifier, Prediction")
    assert "torch" in modules
    assert not modules & set(HEAVY)
    rooms = {name.split(".")[1] for name in modules if name.startswith("erpcnet.")}
    assert rooms == {"errors", "config", "utils", "model", "data", "inference"}


def test_the_server_needs_no_training_code() -> None:
    modules = loaded_by(
        "from erpcnet.data import read_dataset; import erpcnet.inference.app, erpcnet.inference.server; "
        "import erpcnet.inference.examples; "
        "from erpcnet.inference.run_files import dataset_of"
    )
    assert not modules & {*HEAVY, "filelock", "psutil"}


@pytest.mark.parametrize(
    "statement", ["import erpcnet.cli", "from erpcnet import load_config, read_dataset", "import erpcnet.data.check"]
)
def test_commands_do_not_wait_for_torch(statement: str) -> None:
    assert "torch" not in loaded_by(statement)
