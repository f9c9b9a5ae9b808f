"""The page of what the package rests on: every direct dependency with its licence.

`make licences` runs `python -m erpcnet.experiments.dependencies` in an environment that has everything.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from typing import NamedTuple

from erpcnet.experiments.markdown import fill, markdown_table

PAGE = Path("docs/dependencies.md")


class Dependency(NamedTuple):
    """A package that pyproject.toml names: what for, and what is asked for."""

    package: str
    group: str
    asked: str


def direct_dependencies(project: Path = Path("pyproject.toml")) -> list[Dependency]:
    """Those of the package, of its extras, and of building it."""
    settings = tomllib.loads(project.read_text(encoding="utf-8"))
    groups = {
        "everyone": settings["project"]["dependencies"],
        **{f"`{extra}`": asked for extra, asked in settings["project"]["optional-dependencies"].items()},
        "building": settings["build-system"]["requires"],
    }
    found = []
    for group, requirements in groups.items():
        for requirement in requirements:
            name = re.match(r"[\w.-]+", requirement)
            assert name is not None, requirement
            if name[0] != settings["project"]["name"]:
                found.append(Dependency(name[0], group, requirement))
    return found


def licence_of(package: str) -> tuple[str, str]:
    """The licence that an installed package says it has, and its version.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    about = metadata(package)
    expression, text = ("".join(about.get_all(field) or [])[:500] for field in ("License-Expression", "License"))
    kinds = [kind.split(" :: ")[-1] for kind in about.get_all("Classifier") or [] if kind.startswith("License ::")]
    short = text if "\n" not in text and len(text) < 60 else ""  # some have the whole licence there
    return expression or short or ", ".join(kinds) or "unknown", about["Version"]


def dependencies_table() -> str:
    """A row each."""
    rows = [(one.package, one.group, f"`{one.asked}`", *licence_of(one.package)) for one in direct_dependencies()]
    return markdown_table(("package", "for", "asked for", "licence", "read from"), rows)


def main() -> None:
    """Write the page."""
    fill(PAGE, "dependencies", dependencies_table())


if __name__ == "__main__":
    main()
