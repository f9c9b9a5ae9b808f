from __future__ import annotations

import time
from pathlib import Path

import pytest

from erpcnet.utils import progress
from erpcnet.utils.progress import Plan, bar, console, console_log, planned


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_of_all_phases(clock: list[float]) -> None:
    plan = Plan([("a", 10), ("b", 4), ("a", 20), ("c", 6)], {"a": 1.0, "b": 5.0, "c": 2.0})
    with planned(plan):
        with bar("a", 10) as advance:
            clock[0] += 20
            advance(10)
        # A unit of a takes 2 seconds, twice its guess: so b takes 10 a unit, and c 4.
        assert plan.ahead() == pytest.approx(4 * 10 + 20 * 2 + 6 * 4)
        with bar("b", 4) as advance:
            clock[0] += 6
            advance(2)
            # b takes 3 seconds a unit: c is guessed from a and b, (2 + 0.6) / 2 times its guess.
            assert advance._times() == f"0:26 elapsed, {progress._clock(6 + 20 * 2 + 6 * 2 * 1.3)} left"
        # The second a was not needed: it had been done before.
        with bar("c", 6):
            assert plan.ahead() == 0


def test_what_is_resumed_counts_for_nothing(clock: list[float]) -> None:
    with bar("some", 100) as advance:
        advance(90)  # at once: these were done before
        clock[0] += 5
        advance(5)
        assert advance._times() == "0:05 elapsed, 0:05 left"


def test_without_a_terminal_there_are_lines(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with bar("Stage I", 30) as advance:
        for _ in range(3):
            clock[0] += 4
            advance(10, note="loss 1.5")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Stage I: 10 of 30, loss 1.5; 0:04 elapsed, 0:08 left"
    assert lines[-1] == "Stage I: 30 of 30, loss 1.5; 0:12 elapsed, 0:00 left"


def test_the_console_is_kept_in_a_file(tmp_path: Path) -> None:
    with console_log(tmp_path / "console.log"):
        console.print("one")
    console.print("two")
    assert (tmp_path / "console.log").read_text() == "one\n"
