"""The table of trained families in docs/backbones.md, against its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from erpcnet.evaluation.metrics import harmonic_mean
from erpcnet.experiments.reference import FAMILIES
from erpcnet.experiments.rows import read_rows

DOCS = Path(__file__).parents[2] / "docs"
METHODS = ("GlobalNet", "PCNet", "ERPCNet")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_table_of_families_matches_its_rows() -> None:
    rows = read_rows(DOCS / "results" / "backbones.csv")
    backbones = list(dict.fromkeys(row["backbone"] for row in rows))
    assert [(row["backbone"], row["method"]) for row in rows] == [(name, of) for name in backbones for of in METHODS]
    assert set(backbones) <= set(FAMILIES.values())
    section = (DOCS / "backbones.md").read_text(encoding="utf-8").partition("## Trained from scratch")[2]
    lines = [cells(line) for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert len(lines) == len(backbones)
    for line, name in zip(lines, backbones, strict=True):
        own = {row["method"]: row for row in rows if row["backbone"] == name}
        figures = [f"{100 * float(own[method]['t1']):.1f}" for method in METHODS]
        figures += [f"{100 * float(own['ERPCNet']['h']):.1f}", f"{float(own['ERPCNet']['mean_steps']):.1f}"]
        assert line[0] == f"`{name}`"
        assert line[1] == own["ERPCNet"]["epochs"]
        assert line[-5:] == figures


def test_every_trained_family_is_above_chance() -> None:
    """Of 36 unseen classes with 40 images each, by more than three standard errors."""
    chance = 1 / 36
    error = (chance * (1 - chance) / 1440) ** 0.5
    for row in read_rows(DOCS / "results" / "backbones.csv"):
        assert float(row["t1"]) > chance + 3 * error, row["backbone"]
        assert float(row["h"]) == pytest.approx(harmonic_mean(float(row["u"]), float(row["s"])), abs=1e-5)
