"""Reference pages of the documentation that are written by script: settings, commands, imports.

python -m erpcnet.experiments.reference           # settings and commands
python -m erpcnet.experiments.reference imports   # measures, and writes benchmarks/results/imports.csv too
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import erpcnet.config
from erpcnet.config import Config, list_presets, read_values
from erpcnet.config.config import flatten
from erpcnet.experiments.report import fill, markdown_table
from erpcnet.experiments.rows import read_rows, write_rows

DOCS, IMPORTS = Path("docs"), Path("benchmarks/results/imports.csv")
REPEATS = 5
# What is timed, and the modules that take long to import.
STATEMENTS = {
    "import erpcnet; erpcnet.load": "import erpcnet; erpcnet.load",
    "erpcnet --help": "from erpcnet.cli import main; main(['--help'])",
    "erpcnet presets": "from erpcnet.cli import main; main(['presets'])",
    "erpcnet train --help": "from erpcnet.cli import main; main(['train', '--help'])",
    "erpcnet data init DIR": "from erpcnet.cli import main; main(['data', 'init', DIR])",
}
HEAVY = ("torch", "torchvision", "accelerate", "tensorboard", "sklearn", "matplotlib", "scipy", "jsonargparse")


class Setting(NamedTuple):
    """One setting: its dotted name, its default, and what its docstring says."""

    name: str
    default: Any
    about: str


def list_settings(kind: type = Config, above: str = "") -> Iterator[Setting]:
    """Every setting, in the order of declaration; groups are gone into."""
    about = _docstrings(kind)
    default = kind()
    for field in fields(kind):
        value = getattr(default, field.name)
        if is_dataclass(value):
            yield from list_settings(type(value), f"{above}{field.name}.")
        else:
            yield Setting(f"{above}{field.name}", value, about[field.name])


def _docstrings(kind: type) -> dict[str, str]:
    """The strings below the fields of a dataclass."""
    source = Path(sys.modules[kind.__module__].__file__ or "").read_text(encoding="utf-8")
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    (body,) = (node.body for node in classes if node.name == kind.__name__)
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            found[node.target.id] = " ".join(str(after.value.value).split())
    return found


def settings_table() -> str:
    """Every setting with its default, the presets that change it, and what it is for."""
    changes = {name: flatten(read_values(name)) for name in list_presets()}

    def changed(setting: Setting) -> str:
        values = {name: own.get(setting.name, setting.default) for name, own in changes.items()}
        groups: dict[str, list[str]] = {}
        for name, value in values.items():
            if _shown(value) != _shown(setting.default):
                groups.setdefault(_shown(value), []).append(name)
        return "; ".join(f"{value}: {', '.join(names)}" for value, names in groups.items())

    rows = [(f"`{one.name}`", _shown(one.default), changed(one), one.about) for one in list_settings()]
    return f"{len(rows)} settings.\n\n" + markdown_table(("setting", "default", "presets that change it", ""), rows)


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else str(value)


def commands_page() -> str:
    """What `--help` says, command by command; of settings, their own page."""
    overview = _help()
    names = re.findall(r"^    (\w+)  ", overview, re.MULTILINE)
    parts = [f"```\n{overview}\n```"]
    for name in names:
        text = _help(name)
        parts.append(f"## erpcnet {name}\n\n```\n{_without_settings(text) if '--stage1.epochs' in text else text}\n```")
    return "\n\n".join(parts)


def _help(*words: str) -> str:
    command = [sys.executable, "-m", "erpcnet", *words, "--help"]
    wide = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, env=wide, capture_output=True, text=True, check=True).stdout.strip()


def _without_settings(text: str) -> str:
    """Help less the groups of settings."""
    first, options, rest = text.partition("\noptions:")
    own = rest.partition("\n\n")[0]
    return f"{first}{options}{own}\n\nAnd every setting, as --GROUP.NAME VALUE: docs/settings.md."


def measure_imports(version: str) -> list[dict[str, Any]]:
    """Seconds until a statement is done in a new interpreter, and the modules that it loads."""
    rows = []
    for name, statement in STATEMENTS.items():
        taken, modules = [], list[str]()
        for _ in range(REPEATS):
            seconds, modules = _run(statement)
            taken.append(seconds)
        loaded = [module for module in HEAVY if module in modules]
        row = {"version": version, "what": name, "seconds": median(taken), "modules": len(modules)}
        rows.append({**row, "heavy": " ".join(loaded)})
    return rows


def _run(statement: str) -> tuple[float, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "photos" / "crow"
        inside.mkdir(parents=True)
        (inside / "a.jpg").write_bytes(b"")
        program = (
            f"import contextlib, io, json, sys\nDIR = {str(inside.parent)!r}\n"
            f"with contextlib.redirect_stdout(io.StringIO()):\n    {statement}\n"
            "print(json.dumps(sorted(sys.modules)))"
        )
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return time.perf_counter() - started, json.loads(done.stdout)


def imports_table(rows: list[dict[str, str]]) -> str:
    """Before and after, side by side."""
    versions = list(dict.fromkeys(row["version"] for row in rows))
    by = {(row["version"], row["what"]): row for row in rows}
    header = ["", *(f"{what}, {version}" for version in versions for what in ("seconds", "modules", "heavy ones"))]
    table = []
    for name in dict.fromkeys(row["what"] for row in rows):
        cells = [f"`{name}`"]
        for version in versions:
            row = by[version, name]
            cells += [f"{float(row['seconds']):.2f}", row["modules"], row["heavy"].replace(" ", ", ") or "none"]
        table.append(cells)
    return markdown_table(header, table)


def main() -> None:
    """Write the pages."""
    if sys.argv[1:] == ["imports"]:
        before = [row for row in read_rows(IMPORTS) if row["version"] != erpcnet.__version__]
        write_rows(IMPORTS, [*before, *measure_imports(erpcnet.__version__)])
    fill(DOCS / "settings.md", "settings", settings_table())
    fill(DOCS / "cli.md", "commands", commands_page())
    fill(DOCS / "architecture.md", "imports", imports_table(read_rows(IMPORTS)))


if __name__ == "__main__":
    main()
