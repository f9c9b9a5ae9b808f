"""`erpcnet predict` as a person gives it, on a run that nobody trained; what a trained one says is tested elsewhere."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from erpcnet.cli import main, predict
from erpcnet.cli.parser import read_candidates
from erpcnet.errors import InputError
from erpcnet.inference import Prediction, load
from untrained import CLASSES, untrained_run

NONE = "none of these"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that always takes all steps, and rejects nothing."""
    return untrained_run(tmp_path_factory.mktemp("runs") / "run", sigma=math.inf)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five pictures in a folder, one of them in a folder inside."""
    rng = np.random.default_rng(3)
    for name in ("a.png", "b.jpg", "c.png", "d.png", "inside/e.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((80, 60)).save(path)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tables fold no name."""
    monkeypatch.setenv("COLUMNS", "400")


def expected_of(run: Path, photos: Path, *classes: str) -> dict[str, Prediction]:
    """What the library predicts of every picture, in order."""
    paths = [*sorted(photos.glob("*.*")), photos / "inside" / "e.png"]
    found = load(run).predict(paths, list(classes) or "all")
    return {str(path): one for path, one in zip(paths, found, strict=True)}


def table_of(text: str) -> list[list[str]]:
    """The cells of a printed table, row by row."""
    lines = [line for line in text.splitlines() if "│" in line]
    return [[cell.strip() for cell in line.strip().strip("│").split("│")] for line in lines]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_table_names_the_likeliest(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = expected_of(run, photos)
    for top in (1, 3, 5):
        assert main(["predict", str(run), str(photos), "--top", str(top)]) == 0
        told = capsys.readouterr().out
        cells = table_of(told)
        assert len(cells) == top * len(expected)
        for number, (path, one) in enumerate(expected.items()):
            first, *others = cells[top * number : top * (number + 1)]
            assert (first[0], first[1], first[3]) == (path, one.name, "6")
            assert float(first[2].rstrip("%")) == pytest.approx(100 * one.confidence, abs=0.2)
            assert [(cell[0], cell[1], cell[3]) for cell in others] == [("", name, "") for name, _ in one.top[1:top]]
            for cell, (_, chance) in zip(others, one.top[1:top], strict=True):
                assert float(cell[2].rstrip("%")) == pytest.approx(100 * chance, abs=0.2)
        assert "among all 9 classes, 4 of which were never seen in training" in told
    assert main(["predict", str(run), str(photos), "--top", "6"]) == 2
    assert "top is '6'; it must be one of 1, 2, 3, 4, 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("classes", "count", "told"),
    [
        ("unseen", 4, "among the 4 unseen classes; --classes all also knows the seen ones"),
        ("class 1; class 7,class 1", 0, "there is no class 'class 7,class 1'"),
        ("class 1; class 7;class 8", 3, "among the 3 classes that were named"),
        ("class 1,class 7", 2, "among the 2 classes that were named"),
    ],
)
def test_it_says_among_which_classes(
    classes: str, count: int, told: str, run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run), str(photos / "a.png"), "--classes", classes, "--top", "5"]) == (0 if count else 2)
    said = capsys.readouterr()
    assert told in said.out + said.err
    assert len(table_of(said.out)) == count


def test_added_classes_are_among_them(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = next(iter(expected_of(run, photos).values()))
    table = photos.parent / "more.csv"
    values = ";".join(f"{value:.6f}".replace(".", ",") for value in first.attributes.values())
    table.write_text(f"class;{';'.join(first.attributes)}\nas predicted, nearly;{values}\n")
    words = ["predict", str(run), str(photos / "a.png"), "--add-classes", str(table)]
    assert main([*words, "--json", "--classes", "as predicted, nearly; class 5"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["name"], one["among"]) == ("as predicted, nearly", 2)
    assert main([*words, "--classes", "as predicted, nearly"]) == 0  # a name may hold a comma
    assert "100.0%" in capsys.readouterr().out
    assert main(words) == 0
    assert "among all 10 classes, 5 of which were never seen in training" in capsys.readouterr().out
    table.write_text(f"{table.read_text()}class 5;{';'.join('0' for _ in first.attributes)[:-1]}1\n")
    assert main([*words[:3], "--classes", str(table)]) == 0  # those of the table, of which one is known
    assert "among the 2 classes that were named" in capsys.readouterr().out
    table.write_text("class,a,bb\nfox,1,0\n")
    assert main(words) == 2
    assert "there is no attribute 'bb'; did you mean 'b'?" in capsys.readouterr().err
    table.write_text("class,a\nclass 3,1\n")
    assert main(words) == 2
    assert "class 'class 3' is known already" in capsys.readouterr().err


@pytest.mark.parametrize("threshold", [1e6, -1e6])
def test_what_fits_none_is_said_to_be_none(
    threshold: float, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With thresholds that no picture reaches, and that every one does."""
    run = untrained_run(tmp_path / "run", reject=threshold, sigma=math.inf)
    expected, rejects = expected_of(run, photos), threshold > 0
    names = [one.name for one in expected.values()]
    for words, answers in {("--reject",): [NONE] * 5 if rejects else names, (): names}.items():
        assert main(["predict", str(run), str(photos), *words]) == 0
        assert [cells[1] for cells in table_of(capsys.readouterr().out)] == answers
        out = tmp_path / f"found{len(words)}.csv"
        assert main(["predict", str(run), str(photos), "--top", "2", "--out", str(out), *words]) == 0
        rows = read_csv(out)
        assert [row["class"] for row in rows] == answers
        assert [row["class_2"] for row in rows] == [one.top[1][0] for one in expected.values()]
        capsys.readouterr()
        assert main(["predict", str(run), str(photos), "--json", *words]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [(one["name"], one["rejected"]) for one in told] == [(name, rejects) for name in names]


def test_rejecting_needs_a_threshold(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), str(photos), "--reject"]) == 2
    assert "no threshold for --reject was chosen in this run" in capsys.readouterr().err
    assert main(["predict", str(run), str(photos / "a.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rejected"] is None


def test_files_hold_what_is_printed(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON, JSON lines and CSV of the same pictures, with the drawing or without."""
    expected = expected_of(run, photos)
    lines, rows, drawn = (photos.parent / name for name in ("found.jsonl", "found.csv", "where.png"))
    assert main(["predict", str(run), str(photos), "--json", "--out", str(lines)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [json.loads(line) for line in lines.read_text().splitlines()] == printed
    assert [one["image"] for one in printed] == list(expected)
    for one, own in zip(printed, expected.values(), strict=True):
        assert (one["name"], one["among"], one["crops"], one["zoom"]) == (own.name, 9, 1, 1)
        assert one["confidence"] == pytest.approx(own.confidence, abs=1e-3)
        assert one["attributes"] == pytest.approx(own.attributes, abs=1e-2)
        assert [step["answer"] for step in one["localities"]] == [step.answer for step in own.localities]
        assert [name for name, _ in one["top"]] == [name for name, _ in own.top]
    words = ["--out", str(rows), "--picture", str(drawn), "--top", "2"]
    assert main(["predict", str(run), str(photos), *words]) == 0
    assert len(table_of(capsys.readouterr().out)) == 10
    told = read_csv(rows)
    assert list(told[0]) == ["image", "class", "confidence", "steps", "class_2", "confidence_2"]
    for row, (path, own) in zip(told, expected.items(), strict=True):
        assert (row["image"], row["class"], row["steps"], row["class_2"]) == (path, own.name, "6", own.top[1][0])
        assert float(row["confidence"]) == pytest.approx(own.confidence, abs=2e-3)
        assert float(row["confidence_2"]) == pytest.approx(own.top[1][1], abs=2e-3)
    with Image.open(drawn) as picture:  # three beside each other, in two rows
        assert picture.width > 1000
    rows.write_text("mine")
    assert main(["predict", str(run), str(photos), "--out", str(rows)]) == 2
    assert rows.read_text() == "mine"
    assert main(["predict", str(run), str(photos), "--out", str(rows), "--overwrite"]) == 0
    assert list(read_csv(rows)[0]) == ["image", "class", "confidence", "steps"]


def test_batches_come_in_order(
    run: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a whole batch is broken."""
    monkeypatch.setattr(predict, "BATCH", 2)
    expected = expected_of(run, photos)
    for broken in ([], ["c.png"], ["c.png", "d.png"]):
        for name in broken:
            (photos / name).write_bytes(b"no picture")
        assert main(["predict", str(run), str(photos), "--json"]) == (1 if broken else 0)
        said = capsys.readouterr()
        told = json.loads(said.out)
        whole = {path: one for path, one in expected.items() if Path(path).name not in broken}
        assert [(one["image"], one["name"]) for one in told] == [(path, one.name) for path, one in whole.items()]
        errors = said.err.splitlines()
        assert len(errors) == len(broken)
        for error, name in zip(errors, broken, strict=True):
            assert error.startswith(f"erpcnet: {photos / name} does not decode as an image")


@pytest.mark.parametrize("words", [[], ["--json"], ["--out", "found.csv"], ["--out", "found.jsonl"]])
def test_the_exit_code_says_how_many_were_broken(
    words: list[str], run: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos)
    (photos / "a.png").write_bytes(b"")
    given = ["predict", str(run), *words, "--overwrite"]
    assert main([*given, "a.png", "nowhere.png", "c.png"]) == 1
    said = capsys.readouterr()
    assert [line.split(" ")[1] for line in said.err.splitlines()] == ["a.png", "nowhere.png"]
    assert "nowhere.png is not there" in said.err
    assert ("c.png" in said.out) == ("--out" not in words)
    assert main([*given, "a.png", "nowhere.png"]) == 2
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 2
    assert "c.png" not in said.out
    assert main([*given, "c.png"]) == 0
    assert capsys.readouterr().err == ""


def test_files_folders_and_patterns_are_taken_together(
    run: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos)
    (photos / "notes.txt").write_text("no picture by its name")
    assert main(["predict", str(run), "inside", "[ab].*", "**/e.png", "d.png", "--json"]) == 0
    told = [one["image"] for one in json.loads(capsys.readouterr().out)]
    assert told == ["inside/e.png", "a.png", "b.jpg", "inside/e.png", "d.png"]
    (photos / "empty").mkdir()
    for words, message in {
        ("empty",): "empty holds no picture; endings that are read are .jpg",
        ("*.gif",): "no file matches *.gif",
        ("",): "a picture is empty; give a path",
        ("a.png", "--picture", "where.jpg"): "--picture is where.jpg; its ending must be .png",
        ("a.png", "--out", "found.txt"): "--out is found.txt; its ending must be .csv or .jsonl",
        ("a.png", "--out", "a.png"): "a.png is one of the files to read",
    }.items():
        assert main(["predict", str(run), *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", str(run), *["a.png"] * 61, "--picture", "where.png"]) == 2
    assert "--picture draws up to 60 pictures, and these are 61" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_what_is_no_picture_in_a_folder_is_told(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "notes.txt").write_text("of where")
    assert main(["predict", str(run), str(photos)]) == 0
    assert "1 file in" in (told := " ".join(capsys.readouterr().err.split()))
    assert "passed over as no picture, such as notes.txt" in told


def test_names_that_are_no_text_are_escaped(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = os.fsdecode(os.fsencode(photos) + b"/\xff.png")
    try:
        (photos / "a.png").rename(odd)
    except OSError:
        pytest.skip("this file system takes no such names")
    out = photos.parent / "found.csv"
    assert main(["predict", str(run), odd, "--out", str(out)]) == 0
    assert read_csv(out)[0]["image"].endswith("\\udcff.png")
    assert main(["predict", str(run), odd]) == 0
    assert "\\udcff.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", "all"),
        ("unseen", "unseen"),
        ("owl", ["owl"]),
        ("owl, snowy", ["owl, snowy"]),
        ("owl,  snowy , zebra", ["owl", "snowy", "zebra"]),
        ("owl, snowy; zebra", ["owl, snowy", "zebra"]),
        ("all, owl", ["all", "owl"]),
    ],
)
def test_names_are_separated_by_semicolons_or_commas(text: str, expected: object) -> None:
    assert read_candidates(text, ("owl", "owl, snowy", "zebra")) == expected


@pytest.mark.parametrize("text", ["", " ", "owl,", "owl;;zebra", ","])
def test_names_must_not_be_empty(text: str) -> None:
    with pytest.raises(InputError, match="it takes 'all', 'unseen', or names separated by commas"):
        read_candidates(text, CLASSES)
