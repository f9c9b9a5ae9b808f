"""The page of dependencies beside pyproject.toml and what is installed."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from erpcnet.experiments.dependencies import direct_dependencies, licence_of

ROOT = Path(__file__).resolve().parents[2]


def test_every_direct_dependency_is_listed_with_its_licence() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    table = page.split("<!-- dependencies -->")[1].split("<!-- /dependencies -->")[0]
    rows = {cells[0]: cells[1:] for cells in (line.strip("| ").split(" | ") for line in table.split("\n")[3:-1])}
    asked = direct_dependencies(ROOT / "pyproject.toml")
    assert len({one.package for one in asked}) == len(asked)
    assert {name: (group, wanted.strip("`")) for name, (group, wanted, _, _) in rows.items()} == {
        one.package: (one.group, one.asked) for one in asked
    }
    for package, (_, _, licence, version) in rows.items():
        assert licence not in ("", "unknown")
        with suppress(PackageNotFoundError):  # of extras, and of what only the build needs
            told, installed = licence_of(package)
            assert installed != version or told == licence, "run `make licences`"


def test_packages_name_themselves_and_their_extras_only_once(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[build-system]\nrequires = ["builder>=1"]\n[project]\nname = "own"\ndependencies = ["a-b>=2", "c[d]"]\n'
        '[project.optional-dependencies]\nmore = ["e.f~=1"]\nall = ["own[more]"]\n'
    )
    assert [(one.package, one.group) for one in direct_dependencies(project)] == [
        ("a-b", "everyone"),
        ("c", "everyone"),
        ("e.f", "`more`"),
        ("builder", "building"),
    ]
