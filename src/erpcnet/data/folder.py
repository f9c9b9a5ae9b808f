"""The project's own format: a folder of images with `attributes.csv` and `splits.csv`.

attributes.csv   class,ATTRIBUTE,ATTRIBUTE,...   one row per class, raw values
splits.csv       image,class,split               split is train, test_seen or test_unseen
             or  class,split                     split is seen or unseen; images lie in folders named like the classes
folds.csv        fold,class                      optional: the validation classes of each fold
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from erpcnet.data.dataset import (
    FloatArray,
    Fold,
    IntArray,
    ZeroShotDataset,
    check_attribute_row,
    check_names,
    draw_folds,
    hold_out,
)
from erpcnet.data.splits import SPLITS, Known, Splits, images_by_class, read_splits
from erpcnet.data.tables import Problems, Table, closest, collect_table, columns, parse_number
from erpcnet.errors import InputError, ProblemsError
from erpcnet.utils.files import write_atomically

TEST_SHARE = 0.2  # of a seen class's images, where only the unseen classes are named
SHOWN = 5  # problems of a table that is not one of a dataset

EXAMPLE = "EXAMPLE"  # begins the column that `data init` starts with
HINT = f"{EXAMPLE} striped (0: not at all, 1: very; name your own attributes, as many as you like)"


@dataclass(frozen=True)
class Attributes:
    """attributes.csv, as far as it can be read.

    Attributes:
        path: The file.
        names: Of the attributes.
        lines: In which each class has its row, whatever is wrong with that.
        values: The rows of the classes in which nothing is wrong.
    """

    path: Path
    names: list[str]
    lines: dict[str, int]
    values: dict[str, list[float]]

    @property
    def whole(self) -> bool:
        """Whether there is a class, and every one has a row of which all can be read."""
        return len(self.values) == len(self.lines) > 0

    def matrix(self) -> FloatArray:
        """The raw table [C, A]."""
        values = np.asarray(list(self.values.values()), dtype=np.float64).reshape(len(self.values), len(self.names))
        with np.errstate(over="ignore"):  # what is too large is refused with the dataset
            return values.astype(np.float32)


@dataclass(frozen=True)
class FolderTables:
    """What the tables of a folder say, as far as they can be read.

    Attributes:
        attributes: None if attributes.csv cannot be read.
        splits: None if splits.csv cannot be read.
        folds: Names of the validation classes of each fold; None without folds.csv.
        problems: Everything that is wrong with them: a sentence each.
    """

    attributes: Attributes | None
    splits: Splits | None
    folds: dict[str, list[str]] | None
    problems: list[str]


def read_folder(root: Path) -> ZeroShotDataset:
    """Read a dataset in the project's own format.

    Raises:
        ProblemsError: Something in the tables is wrong; it holds all that is.
    """
    tables = read_tables(root)
    attributes, splits = tables.attributes, tables.splits
    if tables.problems or attributes is None or splits is None:
        raise ProblemsError(tables.problems, f"erpcnet data check {root}")
    index = {name: number for number, name in enumerate(attributes.lines)}
    labels = np.asarray([index[name] for name in splits.owners], dtype=np.int64)
    rows = _rows(splits, labels)
    return ZeroShotDataset(
        name=root.resolve().name,
        root=root,
        classes=tuple(index),
        attribute_names=tuple(attributes.names),
        attributes=attributes.matrix(),
        image_paths=tuple(splits.paths),
        labels=labels,
        folds=_folds(tables.folds, index, np.unique(labels[rows["train"]])),
        extras={"parts": root / "parts.csv"} if (root / "parts.csv").is_file() else {},
        **rows,
    )


def read_tables(root: Path) -> FolderTables:
    """Read attributes.csv, splits.csv and folds.csv; what is wrong in one does not hide what is in the others.

    Args:
        root: The folder.

    Returns:
        What they say, and everything that is wrong with them.

    Examples:
        >>> for problem in read_tables(Path("photos")).problems:
        ...     print(problem)
    """
    problems = Problems()
    attributes = _read_attributes(root / "attributes.csv", problems)
    if attributes is not None:
        _check_lengths(attributes, problems)
    known = None if attributes is None else attributes.lines
    splits = read_splits(root, known, problems)
    folds = _read_folds(root / "folds.csv", known, splits, problems)
    return FolderTables(attributes, splits, folds, problems.found)


def init_folder(root: Path) -> tuple[Path, Path]:
    """Start attributes.csv and splits.csv, or that of the two which is not there, from a folder of class folders.

    Neither is overwritten.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a folder.")
    found = images_by_class(root)
    if not found:
        raise InputError(
            f"{root} holds no images in class folders; make one folder per class and put its images there."
        )
    lines = [f"class,{_quoted(HINT)}", *(f"{_quoted(name)}," for name in sorted(found))]
    splits = ["class,split", *(f"{_quoted(name)},seen" for name in sorted(found))]
    targets = root / "attributes.csv", root / "splits.csv"
    contents = [("\n".join(table) + "\n").encode() for table in (lines, splits)]
    there = [target for target in targets if target.exists()]
    for target, content in zip(targets, contents, strict=True):
        # Or as this command leaves it, if it was killed on the way.
        if len(there) == 2 and not (target.is_file() and target.read_bytes() == content):
            raise InputError(f"{target} is there already; it is left as it is.")
    try:
        for target, content in zip(targets, contents, strict=True):
            if target not in there:
                write_atomically(target, content)
    except OSError as error:
        raise InputError(f"{root} cannot be written to ({error.strerror}).") from None
    return targets


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',;"\n') else name


def _rows(splits: Splits, labels: IntArray) -> dict[str, IntArray]:
    """The rows of each split; where lines are of classes, those of the seen ones are split alike every time."""
    rows = {split: np.asarray(numbers, dtype=np.int64) for split, numbers in splits.rows.items()}
    if splits.by_image:
        return {split: rows.get(split, np.zeros(0, dtype=np.int64)) for split in SPLITS}
    train, test_seen = hold_out(rows["seen"], labels, TEST_SHARE, seed=0)
    return {"train": train, "test_seen": test_seen, "test_unseen": rows["unseen"]}


def _folds(named: dict[str, list[str]] | None, index: dict[str, int], seen: IntArray) -> tuple[Fold, ...]:
    if named is None:
        return draw_folds(seen)
    vals = [np.unique(np.asarray([index[name] for name in names], dtype=np.int64)) for names in named.values()]
    return tuple(Fold(train=np.setdiff1d(seen, val), val=val) for val in vals)


def read_attributes(path: Path) -> tuple[list[str], list[str], FloatArray]:
    """Class names, attribute names and the raw table of a file like `attributes.csv`.

    Raises:
        InputError: Something in it is wrong; it tells the first few things that are.
    """
    problems = Problems()
    found = _read_attributes(path, problems)
    if problems.found or found is None:
        more = len(problems.found) - SHOWN
        rest = [f"And {more} more {'problem' if more == 1 else 'problems'}."] if more > 0 else []
        raise InputError(" ".join([*problems.found[:SHOWN], *rest]))
    return list(found.lines), found.names, found.matrix()


def _read_attributes(path: Path, problems: Problems) -> Attributes | None:
    table = collect_table(path, problems)
    if table is None:
        return None
    table = _with_header(table, problems)
    if len(table.header) < 2:
        return None
    place = table.header.index("class") if "class" in table.header else 0
    names, rows = [*table.header[:place], *table.header[place + 1 :]], table.rows
    _check_attribute_names(names, place, table, problems)
    found = Attributes(path, names, {}, {})
    for number, line in rows:
        name = line[place] if place < len(line) else ""
        row = _row(name, [*line[:place], *line[place + 1 :]], found, table, number, problems)
        if row is not None:
            found.values[name] = row
        if name:
            found.lines.setdefault(name, number)
    if not rows:
        problems.tell(f"{path} has no class; it needs a row with attributes for each.")
    return found


def _with_header(table: Table, problems: Problems) -> Table:
    """The table with the header that it has: `class` and the attributes' names; anything but that in line 1 is told."""
    header = table.header
    if len(header) > 1 and header[0] == "class":
        return table
    other = next((row for row in table.rows if row[1][0] == "class" and "class" not in header), None)
    stands = f"; line {other[0]} seems to be it" if other else ""
    problems.add(
        table.where(table.first),
        "the first line must be 'class' and the attributes' names, separated by commas; it is "
        f"'{table.shown_header()}'{stands}.",
    )
    rows = [(table.first, header), *table.rows]
    if other is not None:  # as after sorting
        return replace(table, header=other[1], rows=[row for row in rows if row is not other], first=other[0])
    if "class" not in header and any(parse_number(name) is not None for name in header[1:]):  # it is a row
        return replace(table, header=["class", *(f"column {n}" for n in range(2, len(header) + 1))], rows=rows)
    return table


def _check_attribute_names(names: list[str], place: int, table: Table, problems: Problems) -> None:
    """Names of attributes; `place` is where the column of the classes stands among them."""
    where = table.where(table.first)
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        column = number + 1 + (number >= place)
        if not name:
            problems.add(where, f"column {column} has no name; every attribute needs one.")
        elif name in first:
            problems.add(where, f"attribute '{name}' stands in columns {first[name]} and {column}; keep one.")
        elif name.startswith(EXAMPLE):
            problems.add(
                where,
                "the example column is still there; name your attributes in the first line, a column each, and give "
                "every class a value for each.",
            )
        else:
            _check_name(name, "attribute", where, problems)
        first.setdefault(name, column)


def _check_name(name: str, what: str, where: str, problems: Problems) -> None:
    try:
        check_names([name], what, f"{where}: ")
    except InputError as error:
        problems.tell(str(error))


def _row(
    name: str, texts: list[str], found: Attributes, table: Table, line: int, problems: Problems
) -> list[float] | None:
    """The values of a class; None if something is wrong with its line."""
    where, before = table.where(line), len(problems.found)
    if not name:
        problems.add_empty(where, "class")
        return None
    if name in found.lines:
        problems.add(where, f"class '{name}' has a row already, in line {found.lines[name]}; keep one.")
        return None
    _check_name(name, "class", where, problems)
    if len(texts) != len(found.names):
        comma = " (a number like 0,5 takes quotes, or semicolons between values)" if table.delimiter == "," else ""
        count = f"{len(texts)} values, but there are {len(found.names)} attributes"
        problems.add(where, f"class '{name}' has {count}{comma}.")
        return None
    row = [parse_number(text) for text in texts]
    for attribute, text, value in zip(found.names, texts, row, strict=True):
        if value is None and not attribute.startswith(EXAMPLE):
            said = f"'{text[:40]}'" if text else "empty"
            problems.add(where, f"attribute '{attribute}' is {said}; it must be a finite number, such as 0.5 or 50 %.")
    numbers = [value for value in row if value is not None]
    return numbers if len(numbers) == len(row) and len(problems.found) == before else None


def _check_lengths(attributes: Attributes, problems: Problems) -> None:
    """Take out, and tell, rows that cannot be brought to length 1."""
    for name, row in list(attributes.values.items()):
        try:
            check_attribute_row(np.asarray(row), name, f"{attributes.path}, line {attributes.lines[name]}: ")
        except InputError as error:
            del attributes.values[name]
            problems.tell(str(error))


def _read_folds(path: Path, known: Known, splits: Splits | None, problems: Problems) -> dict[str, list[str]] | None:
    """Names of the validation classes of each fold; None without the file."""
    if not path.exists() and not path.is_symlink():  # a link to nothing is told, not passed over
        return None
    held: dict[str, list[str]] = defaultdict(list)
    table = collect_table(path, problems)
    if table is None:
        return held
    for line, (fold, name) in columns(table, ("fold", "class"), problems):
        if not name:
            if name is not None:
                problems.add_empty(table.where(line), "class")
        elif _may_be_seen(name, known, splits):
            held[fold or ""].append(name)
        else:
            names = [one for one in known or () if _may_be_seen(one, known, splits)]
            near = closest(name, names) or "; a validation class is one that is trained on, but for its fold."
            problems.add(table.where(line), f"class '{name}' is not one of the seen classes{near}")
    for fold, names in held.items():
        if splits is not None and splits.whole and set(names) == set(splits.seen):
            problems.add(str(path), f"fold '{fold}' holds every seen class, so none is left to train on; take one out.")
    return held


def _may_be_seen(name: str, known: Known, splits: Splits | None) -> bool:
    """Whether a class is a seen one, as far as the other tables could be read."""
    if splits is not None and splits.whole and splits.seen:
        return name in splits.seen
    lines = set() if splits is None else set(splits.lines.get(name, ()))
    return (known is None or name in known) and not (lines and lines <= {"unseen", "test_unseen"})
