"""The campaigns of `python -m trust` in their short form; `make trust` runs all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ray_jobs
from erpcnet.experiments.rows import read_rows
from trust import clusters, kills
from trust.__main__ import SEED, main, page_table
from trust.cases import Row
from trust.drawn import drawn_headers, examples, right_tables
from trust.sabotage import Moment

# `processes` is in tests/training, and what `ray` does in tests/inference/test_ray_data.py.
CAMPAIGNS = ("kills", "inputs", "soak", "server")


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_of_a_short_campaign_fails(name: str, tmp_path: Path) -> None:
    """In a process of one thread, whatever this one has: those of many cannot be forked."""
    rows = tmp_path / "rows.csv"
    words = [sys.executable, "-m", "trust", "--short", "--only", name, "--seed", str(SEED), "--out", str(rows)]
    here = str(Path(__file__).parent)
    ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": here}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = read_rows(rows)
    assert sum(int(row["tried"]) for row in found) >= 2
    assert all(row["held"] == row["tried"] for row in found)


def test_a_broken_promise_is_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("kills", "of two", "both hold")
    row.count(None)
    row.count("it did not", "second")
    monkeypatch.setattr("trust.__main__.CAMPAIGNS", {"kills": lambda *_: iter([row])})
    page = tmp_path / "page.md"
    page.write_text("<!-- trust -->\n<!-- /trust -->\n", encoding="utf-8")
    words = ["--only", "kills", "--out", str(tmp_path / "rows.csv"), "--page", str(page)]
    assert main(words) == 1
    told = capsys.readouterr()
    assert "2 tried, 1 held" in told.out
    assert "did not hold: kills, of two, case second: it did not" in told.err
    assert "| kills | of two | both hold | 2 | 1 |" in page.read_text(encoding="utf-8")
    assert "1 of 2 held" in page_table([row], SEED, 0.5)
    assert "second" not in (tmp_path / "rows.csv").read_text(encoding="utf-8")


def some_moments(random: np.random.Generator) -> list[Moment]:
    """Up to thirty places of every kind, some of which are passed often."""
    kinds = [kind for kinds in kills.GROUPS.values() for kind in kinds]
    places = [Moment(kind, f"file {number}") for kind in kinds for number in range(int(random.integers(1, 9)))]
    return [
        places[number]
        for number in random.permutation(np.repeat(range(len(places)), random.geometric(0.3, len(places))))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_every_place_is_chosen_before_any_twice(seed: int) -> None:
    random = np.random.default_rng(seed)
    moments = some_moments(random)
    places = set(moments)
    assert len(places) < len(moments)
    for count in (0, 4, len(places) // 2, len(places), len(places) + 3, len(moments), len(moments) + 5):
        chosen = kills.choose(moments, count, random)
        assert len(set(chosen)) == len(chosen) == min(count, len(moments))
        assert len({moments[number] for number in chosen}) == min(count, len(places))
    few = {moments[number].kind for number in kills.choose(moments, 4, random)}
    assert [len(few & set(kinds)) for kinds in kills.GROUPS.values()] == [1, 1, 1, 1]
    assert kills.places_of([moments[0], moments[0]], moments) == f"1 of {len(places)} places"


def test_drawn_inputs_follow_the_seed() -> None:
    tables = right_tables(("ant", "bee"), ("furry", "winged"))
    first, again, other = (examples(tables, 20, seed, "tables") for seed in (1, 1, 2))
    assert first == again != other
    assert len({table.content for table in first}) == len(first) == 20
    for table in first:
        assert sorted(row[0] for row in table.rows) == ["ant", "bee", "class"]
        assert min(float(cell) for row in table.rows[1:] for cell in row[1:]) > 0
    contents = examples(drawn_headers(), 30, 1, "headers")
    assert {len(content) >= 8 for content in contents} == {True}


def test_without_ray_the_table_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_jobs, "HAS_RAY", False)
    (row,) = clusters.run("full", SEED, tmp_path)
    assert (row.tried, row.note) == (0, "not tried: Ray is not installed")


def test_a_cluster_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def one_case(model: Path, pictures: Path, folder: Path, places: object, notes: Path) -> int:
        notes.write_text('null\n"lost"\n', encoding="utf-8")
        raise RuntimeError("the cluster is gone")

    monkeypatch.setattr(clusters, "_all_cases", one_case)
    monkeypatch.setattr(ray_jobs, "HAS_RAY", True)
    (row,) = clusters.run("full", SEED, tmp_path)
    assert (row.tried, row.held) == (3, 1)
    assert "stopped after" in row.problems[0]
    assert "the cluster is gone" in row.problems[1]
