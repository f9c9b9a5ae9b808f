"""`data check` ignores nothing in silence."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from erpcnet.cli import main
from erpcnet.data.check import Report, check_dataset

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox")
ROWS = {
    "ant": (0, 1, 0),
    "bee": (1, 1, 0),
    "cat": (0, 0, 1),
    "dog": (0.1, 0, 0.9),
    "eel": (0, 0.5, 0.2),
    "fox": (0.5, 0, 1),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four seen classes, two unseen ones, six pictures each, none like another."""
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(8):
            Image.new("RGB", (20, 20), (40 * number, 30 * image, 7)).save(tmp_path / "photos" / name / f"{image}.png")
    _write(tmp_path, ROWS)
    lines = [f"{name},{'seen' if number < 4 else 'unseen'}" for number, name in enumerate(CLASSES)]
    (tmp_path / "splits.csv").write_text("class,split\n" + "\n".join(lines) + "\n")
    return tmp_path


def _write(root: Path, rows: Mapping[str, tuple[float, ...]]) -> None:
    lines = [f"{name},{','.join(map(str, row))}" for name, row in rows.items()]
    (root / "attributes.csv").write_text("class,flies,crawls,furry\n" + "\n".join(lines) + "\n")


def _only_note(report: Report) -> str:
    notes = [note for note in report.warnings if "so few says little" not in note]  # of two unseen classes
    assert report.problems == []
    assert len(notes) == 1, notes
    return notes[0]


def test_a_good_folder_has_nothing_but_its_few_classes(folder: Path) -> None:
    report = check_dataset(folder)
    assert report.problems == []
    assert report.warnings == ["there are test images of 2 unseen classes: T1 among so few says little."]


def test_unused_pictures_are_told_with_the_reason(folder: Path) -> None:
    photos = folder / "photos"
    (photos / "gnu").mkdir()
    shutil.copy(photos / "ant" / "0.png", photos / "gnu" / "1.png")
    assert _only_note(check_dataset(folder)).startswith(
        "1 picture in the folder 'gnu' is not used: no class 'gnu' has a row in attributes.csv"
    )
    (photos / "gnu").rename(photos / "Ants")
    assert _only_note(check_dataset(folder)).endswith("has a row in attributes.csv; did you mean 'ant'?")
    shutil.rmtree(photos / "Ants")
    _write(folder, {**ROWS, "gnu": (0.2, 0.3, 1)})
    (photos / "gnu").mkdir()
    shutil.copy(photos / "ant" / "0.png", photos / "gnu" / "1.png")
    assert _only_note(check_dataset(folder)).endswith("is not used: no line of splits.csv is for 'gnu'.")
    shutil.rmtree(photos / "gnu")
    shutil.copy(photos / "ant" / "0.png", folder / "loose.png")
    assert _only_note(check_dataset(folder)) == (
        "1 picture lie in no class folder, such as loose.png; none of them is used."
    )
    (folder / "loose.png").unlink()
    (photos / "ant" / "IMG_1.CR2").write_bytes(b"raw")
    assert _only_note(check_dataset(folder)) == (
        "1 .cr2 file is not read, such as photos/ant/IMG_1.CR2; develop them to JPEG or PNG."
    )


def test_attributes_that_teach_nothing_or_mislead(folder: Path) -> None:
    _write(
        folder,
        {
            **ROWS,
            "eel": (0, 0.5, 0.2),
            "ant": (0, 1, 0.5),
            "bee": (1, 1, 0.5),
            "cat": (0.3, 0, 0.5),
            "dog": (0.1, 0.2, 0.5),
        },
    )
    assert _only_note(check_dataset(folder)).startswith("attribute 'furry' is the same for every seen class")
    _write(folder, {**ROWS, "fox": (50, 0, 100)})
    assert _only_note(check_dataset(folder)).startswith("the attributes of class 'fox' are on another scale")
    _write(folder, {**ROWS, "fox": (0.1, 0, 0.9001)})
    assert _only_note(check_dataset(folder)) == "classes 'dog' and 'fox' have nearly the same attributes."
    _write(folder, {**ROWS, "fox": (0.1, 0, 0.9)})
    assert check_dataset(folder).problems == [
        "classes 'dog' and 'fox' have the same attributes, so nothing tells them apart."
    ]


def test_the_same_picture_on_both_sides_is_a_problem(folder: Path) -> None:
    shutil.copy(folder / "photos/ant/0.png", folder / "photos/eel/copy.png")
    (problem,) = check_dataset(folder).problems
    assert "photos/ant/0.png" in problem
    assert "photos/eel/copy.png" in problem
    assert problem.endswith("are the same picture; keep one.")


def test_the_same_pixels_in_another_file_are_the_same_picture(folder: Path) -> None:
    with Image.open(folder / "photos" / "ant" / "0.png") as picture:
        picture.save(folder / "photos" / "eel" / "again.bmp")
    (problem,) = check_dataset(folder).problems
    assert "photos/ant/0.png" in problem
    assert "again.bmp' (eel, test_unseen) are the same picture" in problem


def test_every_other_file_is_told(folder: Path) -> None:
    """Whatever its ending; those of JPEG under a rarer name are read."""
    for name in ("x.jfif", "y.JPE"):
        Image.new("RGB", (20, 20), (250, len(name), ord(name[0]))).save(folder / "photos" / "ant" / name, "JPEG")
    assert check_dataset(folder).facts["images"] == 6 * 8 + 2
    for name in ("p.ppm", "q.ppm", "noted"):
        (folder / "photos" / "bee" / name).write_bytes(b"x")
    told = [note for note in check_dataset(folder).warnings if "not read" in note]
    assert len(told) == 2
    assert told[1].startswith("2 .ppm files are not read, such as photos/bee/p.ppm; endings that are read are .jpg, ")
    assert told[0].startswith("1 file without an ending is not read, such as photos/bee/noted; ")


def test_a_row_ten_times_as_large_is_told(folder: Path) -> None:
    _write(folder, {**ROWS, "dog": (1, 0, 10)})
    assert "class 'dog' are on another scale" in _only_note(check_dataset(folder))


def test_few_classes_and_few_pictures(folder: Path) -> None:
    for number in range(3, 8):
        (folder / "photos/ant" / f"{number}.png").unlink()
    assert _only_note(check_dataset(folder)) == "class 'ant' has fewer than 5 training images."
    text = (folder / "splits.csv").read_text().replace("cat,seen", "cat,unseen").replace("dog,seen\n", "")
    (folder / "splits.csv").write_text(text)
    assert any(note.startswith("there are 2 seen classes: fewer than 4") for note in check_dataset(folder).warnings)


def test_the_command_tells_all_and_exits_accordingly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(folder)]) == 0
    assert "note: there are test images of 2 unseen classes" in capsys.readouterr().out
    (folder / "photos/ant/0.png").write_bytes(b"no picture")
    (folder / "photos/bee/0.png").write_bytes(b"no picture either")
    assert main(["data", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "ant/0.png does not decode" in out
    assert "bee/0.png does not decode" in out
    (folder / "splits.csv").write_text("class,split\nant,sen\nbea,seen\n")
    assert main(["data", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "line 2: split 'sen'" in out
    assert "did you mean 'bee'?" in out
