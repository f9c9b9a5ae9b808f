"""The campaigns of `python -m trust` in their short form; `make trust` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trust import inputs, kills, server, soak
from trust.__main__ import SEED, main, page_table
from trust.cases import Row, temporary

CAMPAIGNS = {"kills": kills, "inputs": inputs, "soak": soak, "server": server}  # `processes` is in tests/training


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_of_a_short_campaign_fails(name: str) -> None:
    rows = [row for folder in temporary() for row in CAMPAIGNS[name].run("short", SEED, folder)]
    assert [problem for row in rows for problem in row.problems] == []
    assert sum(row.tried for row in rows) >= 2
    assert all(row.held == row.tried for row in rows)


def test_a_promise_that_does_not_hold_is_counted_and_told(
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
