from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest

from erpcnet.utils import progress
from erpcnet.utils.progress import Phase, Plan, bar, console_log, enter, planned

BAR = re.compile("[━╸╺]{3,}")


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that it shows."""
        lines, row = [""], 0
        for code, text in re.findall(r"(\x1b\[\??[\d;]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", self.getvalue()):
            if code == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif code.endswith("A"):
                row -= int(code[2:-1] or 1)
            elif code.endswith("K"):
                lines[row] = ""
            lines[row] += text
        return lines

    def bars(self) -> list[str]:
        """Those of the lines that are bars."""
        return [line for line in self.screen() if BAR.search(line)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is, to be set by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What the console writes to, of 80 columns."""
    found = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "console", progress._LoggedConsole(file=found, width=80, highlight=False))
    return found


def shown(terminal: Terminal, text: str) -> str:
    """The only bar, once it shows this text: it is drawn ten times a second."""
    deadline = time.perf_counter() + 20
    while not any(text in line for line in terminal.bars()):
        assert time.perf_counter() < deadline, f"'{text}' is not in {terminal.bars()}"
        time.sleep(0.02)
    (line,) = terminal.bars()
    return line


def percent(line: str) -> int:
    """How far a bar is."""
    found = re.search(r"(\d+)%", line)
    assert found is not None
    return int(found[1])


def training(folds: int) -> Plan:
    """Two stages of every fold and of the whole, after what they share."""
    parts = [*(f"fold {number + 1}" for number in range(folds)), "the whole"]
    stages = [Phase(kind, units, part) for part in parts for kind, units in (("Stage I", 8), ("Stage II", 30))]
    return Plan([Phase("Embeddings", 100), *stages], {"Embeddings": 0.5, "Stage I": 20.0, "Stage II": 1.0})


def test_the_time_left_is_of_all_phases(clock: list[float]) -> None:
    phases = [Phase("a", 10), Phase("b", 4), Phase("a", 20), Phase("c", 6)]
    plan = Plan(phases, {"a": 1.0, "b": 5.0, "c": 2.0})
    with planned(plan):
        with bar("a", 10) as advance:
            assert advance.times() == "0:00 elapsed"
            clock[0] += 20
            advance(10)
        # A unit of a takes 2 seconds, twice its guess: so b takes 10 a unit, and c 4.
        with bar("b", 4) as advance:
            assert advance.times() == f"0:20 elapsed, {progress._clock(4 * 10 + 20 * 2 + 6 * 4)} left"
            clock[0] += 6
            advance(2)
            # b takes 3 seconds a unit: c is guessed from a and b, (2 + 0.6) / 2 times its guess.
            assert advance.times() == f"0:26 elapsed, {progress._clock(6 + 20 * 2 + 6 * 2 * 1.3)} left"
        # The second a was not needed: it had been done before.
        with bar("c", 6):
            assert plan.phases == []


def test_one_bar_is_drawn_over_all_phases(terminal: Terminal) -> None:
    with planned(training(2)):
        progress.console.print("before")
        with bar("Embeddings", 100) as advance:
            advance(50)
            assert percent(shown(terminal, "Embeddings: 50 of 100")) == round(100 * 25 / (50 + 3 * 190))
        done = 50
        for part in ("fold 1", "fold 2", "the whole"):
            with bar("Stage I", 8) as advance:
                for epoch in range(1, 4):
                    advance(note=f"loss {9 - epoch}")
                line = shown(terminal, f"Stage I, {part}: 3 of 8 loss 6")
                assert percent(line) == round(100 * (done + 3 * 20) / (50 + 3 * 190))
                assert re.search(r"\d+:\d\d left", line)  # of everything: nothing else is measured
                advance(5)
            progress.console.print(f"between, {part}")
            with bar("Stage II", 30) as advance:
                advance(30)
            done += 190
        assert len(terminal.bars()) == 1
    said = [line for line in terminal.screen() if line and not BAR.search(line)]
    assert said == ["before", "between, fold 1", "between, fold 2", "between, the whole"]
    (line,) = terminal.bars()
    assert percent(line) == 100
    assert "Stage II, the whole: 30 of 30" in line
    assert all(len(one) <= 80 for one in terminal.screen())


def test_the_bar_never_falls(terminal: Terminal) -> None:
    """Whatever takes longer than was guessed, has other units than were planned, or was not planned at all."""
    with planned(training(1)):
        for what, total in (("Embeddings", 3), ("Stage I", 40), ("a surprise", 5), ("Stage II", 10)):
            with bar(what, total) as advance:
                shown(terminal, f": 0 of {total}")
                for number in range(1, total + 1):
                    advance()
                    if number in (1, total):
                        shown(terminal, f": {number} of {total}")
    seen = [int(one) for one in re.findall(r"(\d+)%", terminal.getvalue())]
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 100)
    assert "a surprise: 5 of 5" in terminal.getvalue()


def test_a_resumed_run_starts_where_it_is(terminal: Terminal) -> None:
    work = 50 + 3 * 190
    with planned(training(2)):
        enter("fold 2")
        assert terminal.bars() == []  # nothing is at its beginning
        with bar("Embeddings", 100) as advance:  # which were computed for the other fold, and are again
            advance(40)
            assert percent(shown(terminal, "Embeddings: 40 of 100")) == round(100 * (190 + 20) / work)
        with bar("Stage II", 30) as advance:  # Stage I was done
            advance(12)
            line = shown(terminal, "Stage II, fold 2: 12 of 30")
            assert percent(line) == round(100 * (50 + 190 + 160 + 12) / work)
            advance(18)
        enter("the whole")
        with bar("Stage II", 30) as advance:
            assert percent(shown(terminal, "Stage II, the whole: 0 of 30")) == round(100 * (work - 30) / work)
            advance(30)
    assert percent(terminal.bars()[0]) == 100


def test_a_plan_that_fails_keeps_its_place(terminal: Terminal) -> None:
    with pytest.raises(RuntimeError, match="broken"), planned(training(0)), bar("Stage I", 8) as advance:  # noqa: PT012
        advance(4)
        raise RuntimeError("broken")
    (line,) = terminal.bars()
    assert percent(line) == round(100 * (50 + 80) / 240)
    with bar("Later", 3) as advance:  # has a bar of its own
        advance(3)
    assert [("Later" in line) for line in terminal.bars()] == [False, True]


@pytest.mark.parametrize("quiet", [False, True])
def test_outside_a_plan_each_has_a_bar(quiet: bool, terminal: Terminal) -> None:
    with progress.quietly(quiet):
        for what in ("Reading", "Drawing"):
            with bar(what, 4) as advance:
                advance(4, note="well")
    lines = [] if quiet else [r"Reading ━+ 4/4 .*well", r"Drawing ━+ 4/4 .*well"]
    assert len(terminal.bars()) == len(lines)
    for line, expected in zip(terminal.bars(), lines, strict=True):
        assert re.match(expected, line)


def test_a_narrow_terminal_shows_the_count(terminal: Terminal) -> None:
    plan = Plan(
        [Phase("Localities of the training images", 5994, "all seen classes"), Phase("Stage I", 8, "fold 1")], {}
    )
    with planned(plan):
        with bar("Localities of the training images", 5994) as advance:
            advance(512)
            assert "Localities of the training images" in shown(terminal, "… 512 of 5994")
        with bar("Stage I", 528) as advance:
            advance(242, note="loss 11.853, validation T1 50.0%")
            assert "loss 11.853, val" in shown(terminal, "Stage I, fold 1: 242 of 528")
    assert all(len(line) <= 80 for line in terminal.screen())


def test_what_is_resumed_counts_for_nothing(clock: list[float]) -> None:
    with bar("some", 100) as advance:
        advance(90)  # at once: these were done before
        clock[0] += 5
        advance(5)
        assert advance.times() == "0:05 elapsed, 0:05 left"


@pytest.mark.parametrize("seconds", [0.0, 0.001, 4.0, 60.0])
def test_without_a_terminal_every_epoch_has_a_line(
    seconds: float, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """However short, also where the units are batches."""
    with bar("Stage II", 30) as advance:
        for epoch in range(30):
            clock[0] += seconds
            advance(note=f"return {epoch}")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [f"Stage II: {n + 1} of 30, return {n}" for n in range(30)]
    with bar("Stage I", 300) as advance:
        for epoch in range(3):
            for _ in range(100):
                clock[0] += seconds / 100
                advance()
            advance(0, note=f"loss {epoch}")
    lines = capsys.readouterr().err.splitlines()
    ends = [
        line for line in lines if line.startswith(tuple(f"Stage I: {100 * n} of 300, loss {n - 1}" for n in (1, 2, 3)))
    ]
    assert len(ends) == 3
    assert len(lines) == (3 if seconds < 10 else 3 + 3 * 5)  # of a minute, every ten seconds


def test_batches_have_a_line_now_and_then(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with bar("Pictures", 10_240) as advance:
        for _ in range(10_240):
            clock[0] += 1 / 256
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4  # of 40 seconds
    assert lines[1] == "Pictures: 5120 of 10240; 0:20 elapsed, 0:20 left"


def test_lines_name_the_part_of_the_plan(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with planned(training(1)), bar("Stage I", 8) as advance:
        clock[0] += 40
        advance(2, note="loss 1.5")
    assert capsys.readouterr().err == "Stage I, fold 1: 2 of 8, loss 1.5; 0:40 elapsed, 5:40 left\n"


def test_the_console_is_kept_in_a_file(tmp_path: Path) -> None:
    with console_log(tmp_path / "console.log"):
        progress.console.print("one")
    progress.console.print("two")
    assert (tmp_path / "console.log").read_text() == "one\n"


def test_a_bar_leaves_the_file_alone(terminal: Terminal, tmp_path: Path) -> None:
    with planned(training(0)), console_log(tmp_path / "console.log"), bar("Stage I", 8) as advance:
        progress.console.print("one")
        advance(8)
        shown(terminal, "8 of 8")
        progress.console.print("two")
    assert (tmp_path / "console.log").read_text() == "one\ntwo\n"
