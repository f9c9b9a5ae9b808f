from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from erpcnet.data import read_dataset
from erpcnet.data.folder import read_attributes
from erpcnet.data.tables import parse_number, read_table
from erpcnet.errors import InputError, ProblemsError

PLAIN = "class,striped,winged\nzebra,1,0\nbird,0,1\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("0,5", 0.5),
        (" 50 % ", 0.5),
        ("12,5%", 0.125),
        ("\u22121", -1.0),
        ("1e-3", 0.001),
        ("1,000.5", None),
        ("1_0", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("yes", None),
    ],
)
def test_numbers_as_spreadsheets_write_them(text: str, value: float | None) -> None:
    assert parse_number(text) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    "raw",
    [
        PLAIN.encode(),
        b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace(",", ";").replace("1", "1,0").encode(),
        PLAIN.replace(",", "\t").encode("utf-16"),
        PLAIN.replace("zebra,1,0", '"zebra","1,0","0 %"').encode(),
        b"\n\n" + PLAIN.encode() + b",,\n",
    ],
    ids=["plain", "mark", "semicolons", "UTF-16 tabs", "quoted", "empty lines"],
)
def test_every_spreadsheet_gives_the_same_table(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "attributes.csv").write_bytes(raw)
    classes, names, values = read_attributes(tmp_path / "attributes.csv")
    assert (classes, names) == (["zebra", "bird"], ["striped", "winged"])
    np.testing.assert_array_equal(values, [[1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"class,a\nz\0,1\n", "NUL bytes"),
        (b'class,a\n"zebra,1\nbird,0\n', "it is no CSV file"),
        (b"class,a\n" + b"x" * 200_000 + b",1\n", "it is no CSV file .*field larger"),
        ("class,a\nBär,1\n".encode("latin-1"), "not in UTF-8"),
        (b"", "the first line must be 'class'"),
    ],
    ids=["NUL", "unclosed quote", "huge field", "latin-1", "empty"],
)
def test_what_is_no_table_is_told_in_a_sentence(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "attributes.csv").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_attributes(tmp_path / "attributes.csv")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")  # reading it would wait for ever
    for name in ("folder.csv", "pipe.csv"):
        with pytest.raises(InputError, match="no plain file"):
            read_table(tmp_path / name)
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not there"):
        read_table(tmp_path / "dangling.csv")


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    lines = ["class,striped,,striped", "zebra,1,0,x", "bird,1", ",1,1,1", "zebra,1,1,1"]
    (tmp_path / "attributes.csv").write_text("\n".join(lines))
    listed = ["image,class,split", "a.png,zebar,train", "b.png,bird,trian", "../c.png,bird,train"]
    (tmp_path / "splits.csv").write_text("\n".join(listed))
    with pytest.raises(ProblemsError) as caught:
        read_dataset(tmp_path)
    attributes, splits = (f"{tmp_path / name}.csv, line" for name in ("attributes", "splits"))
    assert caught.value.problems == (
        f"{attributes} 1: column 3 has no name; every attribute needs one.",
        f"{attributes} 1: attribute 'striped' stands in columns 2 and 4; keep one.",
        f"{attributes} 2: attribute 'striped' is 'x'; it must be a finite number, such as 0.5 or 50 %.",
        f"{attributes} 3: class 'bird' has 1 values, but there are 3 attributes (a number like 0,5 takes quotes, or "
        "semicolons between values).",
        f"{attributes} 4: the column 'class' is empty; fill it in, or take the line out.",
        f"{attributes} 5: class 'zebra' has a row already, in line 2; keep one.",
        f"{splits} 2: class 'zebar' has no row in {tmp_path / 'attributes.csv'}; did you mean 'zebra'?",
        f"{splits} 3: split 'trian' is none of train, test_seen, test_unseen; did you mean 'train'?",
        f"{splits} 4: '../c.png' leaves the folder; paths are relative to {tmp_path} and stay inside.",
        f"{splits} 2: image 'a.png' is not there, under that or another image ending; put it below {tmp_path}, or take "
        "the line out.",
        f"{splits} 3: image 'b.png' is not there, under that or another image ending; put it below {tmp_path}, or take "
        "the line out.",
    )
    assert str(caught.value).endswith(f"And 10 more problems; `erpcnet data check {tmp_path}` lists all.")
