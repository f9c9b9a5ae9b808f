"""Rooms import from rooms above them, never from those below; and nobody waits for what is not used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import erpcnet
from untrained import untrained_run

SOURCE = Path(erpcnet.__file__).parent
# From the top; `errors` stands above all of them.
ROOMS = ("config", "utils", "model", "data", "inference", "evaluation", "training", "experiments", "cli")
OWN = {"erpcnet", "erpcnet.__version__", "erpcnet.__file__"}  # the package itself, and nothing of a room
TRAINING = ("accelerate", "tensorboard", "sklearn", "matplotlib", "jsonargparse", "scipy")  # what it takes
HEAVY = (*TRAINING, "timm", "torchvision")


class _AtRunTime(ast.NodeTransformer):
    """Leaves out what is imported for type checkers alone."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node


def imported(source: str, types: bool = True) -> set[str]:
    """The modules of this package that a program imports, anywhere in it; with or without those only for their types.

    Of a package both it and what is taken from it, which may be a module: `erpcnet.cli` and `erpcnet.cli.train`.
    """
    found: set[str] = set()
    tree = ast.parse(source)
    for node in ast.walk(tree if types else _AtRunTime().visit(tree)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno} imports by a relative name"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "erpcnet":
            found.add(f"erpcnet.{node.attr}")
    return {name for name in found if name.split(".")[0] == "erpcnet"} - OWN


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    allowed = {"errors", *ROOMS[: ROOMS.index(room) + 1]}
    wrong = {
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in (SOURCE / room).rglob("*.py")
        for name in imported(read(path))
        if name.split(".")[1] not in allowed
    }
    assert wrong == set()


def test_no_import_is_overlooked() -> None:
    """A room takes names from where they are, as what the package offers may be of a room below."""
    assert imported("from erpcnet import __version__, load") == {"erpcnet.load"}
    assert imported("def late():\n import erpcnet\n return erpcnet.load('runs/mine')") == {"erpcnet.load"}
    assert imported("from erpcnet.cli import train") == {"erpcnet.cli", "erpcnet.cli.train"}
    for relative in ("from . import model", "from ..training import runs"):
        with pytest.raises(AssertionError, match="relative name"):
            imported(relative)


def test_modules_of_a_room_import_no_circle() -> None:
    files = {
        ".".join(("erpcnet", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in SOURCE.rglob("*.py")
    }
    graph = {
        name: imported(read(path), types=False) & files.keys()
        for name, path in files.items()
        if path.stem != "__init__"
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


def rooms_of(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("erpcnet.")}


def test_names_to_predict_with_need_no_training_code() -> None:
    modules = loaded_by("from erpcnet import load, ZeroShotClassifier, Prediction")
    assert "torch" in modules
    assert not modules & set(HEAVY)
    assert rooms_of(modules) == {"errors", "config", "utils", "model", "data", "inference"}


def test_loading_and_predicting_need_no_training_code(picture: Path, tmp_path: Path) -> None:
    run = untrained_run(tmp_path / "run", crops=4)
    answer = erpcnet.load(run, "cpu").predict(picture)
    modules = loaded_by(
        "import erpcnet\n"
        f"found = erpcnet.load({str(run)!r}, 'cpu').predict({str(picture)!r})\n"
        f"assert (found.name, found.steps) == {(answer.name, answer.steps)!r}"
    )
    assert not modules & {*TRAINING, "timm"}
    assert rooms_of(modules) == {"errors", "config", "utils", "model", "data", "inference"}


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
