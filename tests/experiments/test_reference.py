"""The pages that are written by script say what the code says."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from erpcnet.config import Stage2Settings
from erpcnet.experiments.reference import IMPORTS, commands_page, imports_table, list_settings, settings_table
from erpcnet.experiments.rows import read_rows

ROOT = Path(__file__).resolve().parents[2]


def test_every_setting_is_listed_with_what_it_is_for() -> None:
    settings = {one.name: one for one in list_settings()}
    assert {f"stage2.{field.name}" for field in fields(Stage2Settings)} <= set(settings)
    assert settings["model.joint.sharpness"].default == 8.0
    assert all(len(one.about) > 3 for one in settings.values())


def test_the_page_of_settings_is_the_codes() -> None:
    table = settings_table()
    assert table in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    (line,) = (line for line in table.splitlines() if line.startswith("| `data.image_size` |"))
    assert line.split("|")[2:4] == [" 224 ", " 112: creatures; 448: cub-448; 160: cub-zoom-fast "]


def test_the_page_of_commands_has_every_flag() -> None:
    """Versions of Python, and of what is installed, lay help out differently; what there is stays the same."""

    def flags(page: str) -> dict[str, set[str]]:
        sections = page.split("\n## ")[1:]
        return {section.partition("\n")[0]: set(re.findall(r"--[a-z][\w.-]+", section)) for section in sections}

    page = commands_page()
    found = flags(page)
    assert found["erpcnet predict"] >= {"--classes", "--picture", "--crops", "--device"}
    assert "<function" not in page
    assert flags((ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("<!-- /commands")[0]) == found


def test_the_page_of_imports_holds_what_was_measured() -> None:
    table = imports_table(read_rows(ROOT / IMPORTS))
    assert table in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
