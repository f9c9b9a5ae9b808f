"""`data check` ignores nothing in silence."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from erpcnet.cli import main
from erpcnet.data.check import Report, check_dataset
from erpcnet.data.folder import read_tables

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
        "1 picture lies in no class folder, such as loose.png; it is not used."
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
    assert (
        _only_note(check_dataset(folder))
        == "classes 'dog' and 'fox' have nearly the same attributes; add one in which they differ."
    )
    _write(folder, {**ROWS, "fox": (0.1, 0, 0.9)})
    assert check_dataset(folder).problems == [
        "classes 'dog' and 'fox' have the same attributes, so nothing tells them apart; give one other values, or add "
        "an attribute in which they differ."
    ]


def test_the_same_picture_on_both_sides_is_a_problem(folder: Path) -> None:
    shutil.copy(folder / "photos/ant/0.png", folder / "photos/eel/copy.png")
    (problem,) = check_dataset(folder).problems
    assert "photos/ant/0.png" in problem
    assert "photos/eel/copy.png" in problem
    assert problem.endswith("are the same picture; keep one.")


def test_the_same_pixels_are_the_same_picture(folder: Path) -> None:
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
    assert _only_note(check_dataset(folder)) == "class 'ant' has fewer than 5 training images; bring more."
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


def _change(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)


# What may be wrong with the tables of `folder`, each with nothing to do with the others, and how it is told.
WRONG = {
    "the first line": (
        "attributes.csv",
        "class,flies",
        "klass,flies",
        "attributes.csv, line 1: the first line must be",
    ),
    "a number": ("attributes.csv", "cat,0,0,1", "cat,0,many,1", "attributes.csv, line 4: attribute 'crawls' is 'many'"),
    "no length": ("attributes.csv", "eel,0,0.5,0.2", "eel,0,0,0", "line 6: every attribute of class 'eel' is 0"),
    "a column": ("splits.csv", "class,split", "class,part", "splits.csv, line 1: there is no column 'split'; the"),
    "a split": (
        "splits.csv",
        "ant,seen",
        "ant,sen",
        "line 2: split 'sen' is none of seen, unseen; did you mean 'seen'?",
    ),
    "a class": ("splits.csv", "bee,seen", "bea,seen", "attributes.csv; did you mean 'bee'?"),
    "a fold": ("folds.csv", "1,dog", "1,fox", "folds.csv, line 3: class 'fox' is not one of the seen classes"),
    "a column of folds": ("folds.csv", "fold,class", "fold,name", "folds.csv, line 1: there is no column 'class'"),
}


def test_no_table_hides_what_another_has(folder: Path) -> None:
    """All at once, they are told as one by one."""
    (folder / "folds.csv").write_text("fold,class\n0,cat\n1,dog\n")
    assert read_tables(folder).problems == []
    alone: set[str] = set()
    for file, old, new, message in WRONG.values():
        before = (folder / file).read_text()
        _change(folder / file, (old, new))
        problems = check_dataset(folder).problems
        assert any(message in problem for problem in problems)
        assert not alone & set(problems)
        alone |= set(problems)
        (folder / file).write_text(before)
    assert len(alone) == len(WRONG) + 1  # there are no images in a folder 'bea'
    for file, old, new, _ in WRONG.values():
        _change(folder / file, (old, new))
    problems = check_dataset(folder).problems
    assert len(problems) == len(alone)
    assert set(problems) == alone


@pytest.mark.parametrize("name", ["attributes.csv", "splits.csv", "folds.csv"])
@pytest.mark.parametrize("content", [b"\xff\xfd", b"a\0", b'"', b"", b"no|commas|here\n"])
def test_a_table_beyond_reading_hides_no_other(folder: Path, name: str, content: bytes) -> None:
    (folder / "folds.csv").write_text("fold,class\n0,cat\n1,nobody\n")
    _change(folder / "attributes.csv", ("ant,0,1,0", "ant,0,1,x"))
    _change(folder / "splits.csv", ("dog,seen", "dog,sene"))
    before = read_tables(folder).problems
    assert len(before) == 3
    (folder / name).write_bytes(content)
    problems = read_tables(folder).problems
    others = [problem for problem in before if not problem.startswith(str(folder / name))]
    if name == "attributes.csv":  # nobody can say then whether 'nobody' is a class
        others = [problem for problem in others if "'nobody'" not in problem]
    assert [problem for problem in problems if not problem.startswith(str(folder / name))] == others
    assert len(problems) == len(others) + 1


def test_a_missing_table_is_one_problem_of_several(folder: Path) -> None:
    _change(folder / "attributes.csv", ("ant,0,1,0", "ant,0,1,x"))
    (folder / "splits.csv").unlink()
    (folder / "photos" / "ant" / "0.png").write_bytes(b"no picture")
    report = check_dataset(folder)
    assert [problem.partition(str(folder))[2].split(" ", 1)[0] for problem in report.problems] == [
        *("/attributes.csv,", "/splits.csv", "/photos/ant/0.png")
    ]
    assert report.warnings == []  # nobody knows which pictures it would name
    assert main(["data", "init", str(folder)]) == 0  # which the sentence says, and starts that one alone
    assert len(check_dataset(folder).problems) == 3
    assert "ant,0,1,x" in (folder / "attributes.csv").read_text()


def test_wrong_tables_hide_no_pictures(folder: Path) -> None:
    _change(folder / "splits.csv", ("bee,seen", "bea,seen"))
    (folder / "photos" / "bee" / "3.png").write_bytes(b"no picture")
    (folder / "photos" / "dog" / "3.png").write_bytes(b"no picture")
    shutil.copy(folder / "photos" / "cat" / "0.png", folder / "loose.png")
    (folder / "photos" / "ant" / "x.cr2").write_bytes(b"raw")
    report = check_dataset(folder)
    assert [problem for problem in report.problems if "photos" in problem] == [
        f"{folder / 'photos' / name / '3.png'} does not decode as an image (of no known kind); replace the file or "
        "take it out."
        for name in ("bee", "dog")
    ]
    assert report.warnings == [
        "1 picture lies in no class folder, such as loose.png; it is not used.",
        "8 pictures in the folder 'bee' are not used: no line of splits.csv is for 'bee'.",
        "1 .cr2 file is not read, such as photos/ant/x.cr2; develop them to JPEG or PNG.",
    ]


def test_wrong_splits_hide_no_alike_classes(folder: Path) -> None:
    _write(folder, {**ROWS, "fox": (0.1, 0, 0.9), "eel": (0, 50, 20)})
    (folder / "splits.csv").unlink()
    report = check_dataset(folder)
    assert report.problems[1].startswith("classes 'dog' and 'fox' have the same attributes")
    assert report.warnings[0].startswith("the attributes of class 'eel' are on another scale")


def test_unlisted_pictures_of_a_list_of_images(folder: Path) -> None:
    """In a list of images, folders may have any name."""
    files = sorted((folder / "photos").glob("*/*.png"))
    lines = [f"{file.relative_to(folder)},{file.parent.name},{_split(file.parent.name)}" for file in files]
    (folder / "photos").rename(folder / "all")
    text = "image,class,split\n" + "\n".join(lines).replace("photos/", "all/")
    (folder / "splits.csv").write_text(text)
    shutil.copy(folder / "all" / "ant" / "0.png", folder / "all" / "copy.png")
    told = "1 picture is in no line of splits.csv, such as all/copy.png; none without one is used."
    assert _only_note(check_dataset(folder)) == told
    (folder / "splits.csv").write_text(text.replace("all/ant/1.png,ant", "all/ant/1.png,amt"))
    assert check_dataset(folder).warnings == [told]
    (folder / "all" / "ant" / "2.png").rename(folder / "all" / "ant" / "two.png")
    (folder / "all" / "ant" / "3.png").rename(folder / "3.png")
    (folder / "splits.csv").write_text(text)
    rest = "is not there, under that or another image ending"
    assert check_dataset(folder).problems == [
        f"{folder / 'splits.csv'}, line 4: image 'all/ant/2.png' {rest}; put it below {folder}, or take the line out.",
        f"{folder / 'splits.csv'}, line 5: image 'all/ant/3.png' {rest}; did you mean '3.png'?",
    ]


def _split(name: str) -> str:
    return "test_unseen" if name in CLASSES[4:] else "train"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("eel,unseen\nfox,unseen\n", "", "splits.csv names no unseen class; write 'unseen' for the classes"),
        ("eel,unseen\nfox,unseen\n", "yak,unseen\n", "line 6: no unseen class has an image to test with; put some"),
        ("class,split\n", "", "splits.csv, line 1: there is no column 'class', 'split'; the first line must name"),
        ("class,split\n", "class,split,split\n", "splits.csv, line 1: the column 'split' is there 2 times; keep one."),
        ("bee,seen", "bee,", "line 3: the column 'split' is empty; write one of seen, unseen."),
    ],
)
def test_splits_are_told_in_one_sentence(folder: Path, old: str, new: str, message: str) -> None:
    _write(folder, {**ROWS, "yak": (0.3, 0.2, 0.2)})
    _change(folder / "splits.csv", (old, new))
    (problem,) = check_dataset(folder).problems
    assert message in problem


def test_a_table_without_its_first_line(folder: Path) -> None:
    """Its first row is a row, so nothing is said of that class."""
    _change(folder / "attributes.csv", ("class,flies,crawls,furry\n", ""))
    _change(folder / "splits.csv", ("class,split\n", ""))
    report = check_dataset(folder)
    assert [problem.rpartition("and is ")[2].rpartition("it is ")[2] for problem in report.problems] == [
        *("'ant,0,1,0'.", "'ant,seen'.")
    ]
    assert report.warnings == []


def test_a_sorted_header_is_found_again(folder: Path) -> None:
    header, *rows = (folder / "attributes.csv").read_text().splitlines()
    (folder / "attributes.csv").write_text("\n".join([*rows[:3], header, *rows[3:-1], "fox,0.5,x,1"]) + "\n")
    (problem, second) = check_dataset(folder).problems
    assert problem.endswith("separated by commas; it is 'ant,0,1,0'; line 4 seems to be it.")
    assert "line 7: attribute 'crawls' is 'x'" in second
    header, *rows = (folder / "splits.csv").read_text().splitlines()
    (folder / "splits.csv").write_text("\n".join([*rows[:3], header, *rows[3:]]) + "\n")
    *_, third = check_dataset(folder).problems
    assert third.endswith("the first line must name class,split, separated by commas, and is 'ant,seen'.")
    assert len(check_dataset(folder).problems) == 3


def test_a_list_of_images_by_another_name(folder: Path) -> None:
    files = sorted((folder / "photos").glob("*/*.png"))
    lines = [f"{file.relative_to(folder)},{file.parent.name},{_split(file.parent.name)}" for file in files]
    (folder / "splits.csv").write_text("picture,class,split\n" + "\n".join(lines))
    (problem,) = check_dataset(folder).problems
    assert "line 1: there is no column 'image'; the first line must name image,class,split" in problem


def test_folds_are_told_as_far_as_known(folder: Path) -> None:
    """A class whose line is misspelt may be a seen one; one of an unseen class is none."""
    _change(folder / "splits.csv", ("bee,seen", "bee,sean"))
    (folder / "folds.csv").write_text("fold,class\n0,bee\n0,fox\n0,yak\n")
    told = [problem for problem in check_dataset(folder).problems if "folds.csv" in problem]
    assert len(told) == 2
    assert "line 3: class 'fox' is not one of the seen classes" in told[0]
    assert "line 4: class 'yak' is not one of the seen classes" in told[1]
