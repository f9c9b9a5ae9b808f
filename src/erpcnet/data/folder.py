"""The project's own format: a folder of images with `attributes.csv` and `splits.csv`.

attributes.csv   class,ATTRIBUTE,ATTRIBUTE,...   one row per class, raw values
splits.csv       image,class,split               split is train, test_seen or test_unseen
folds.csv        fold,class                      optional: the validation classes of each fold
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from erpcnet.data.dataset import Fold, IntArray, ZeroShotDataset, draw_folds
from erpcnet.errors import InputError

SPLITS = ("train", "test_seen", "test_unseen")


def read_folder(root: Path) -> ZeroShotDataset:
    """Read a dataset in the project's own format."""
    classes, attribute_names, attributes = read_attributes(root / "attributes.csv")
    index = {name: number for number, name in enumerate(classes)}
    paths: list[str] = []
    labels: list[int] = []
    rows: dict[str, list[int]] = {split: [] for split in SPLITS}
    for line, (image, class_name, split) in _rows(root / "splits.csv", ("image", "class", "split")):
        where = f"{root / 'splits.csv'}, line {line}"
        if class_name not in index:
            raise InputError(
                f"{where}: class '{class_name}' has no row in {root / 'attributes.csv'}; add one with its attributes."
            )
        if split not in rows:
            raise InputError(f"{where}: split '{split}' is none of {', '.join(SPLITS)}.")
        if not (root / image).is_file():
            raise InputError(
                f"{where}: image '{image}' is not there; put it into {root} or take the line out."
            )
        rows[split].append(len(paths))
        paths.append(image)
        labels.append(index[class_name])
    if not paths:
        raise InputError(f"{root / 'splits.csv'} names no image; it needs a line image,class,split for each.")
    label_array = np.asarray(labels, dtype=np.int64)
    split_rows = {split: np.asarray(own, dtype=np.int64) for split, own in rows.items()}
    return ZeroShotDataset(
        name=root.name,
        root=root,
        classes=tuple(classes),
        attribute_names=tuple(attribute_names),
        attributes=attributes,
        image_paths=tuple(paths),
        labels=label_array,
        folds=_folds(root / "folds.csv", index, np.unique(label_array[split_rows["train"]])),
        extras={"parts": root / "parts.csv"} if (root / "parts.csv").is_file() else {},
        **split_rows,
    )


def read_attributes(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Class names, attribute names and the raw table of `attributes.csv`."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = list(csv.reader(file))
    if not lines or len(lines[0]) < 2 or lines[0][0] != "class":
        raise InputError(
            f"{path}: the first line must be 'class' and the attributes' names, separated by commas; "
            f"it is '{','.join(lines[0]) if lines else ''}'."
        )
    names = lines[0][1:]
    classes: list[str] = []
    table: list[list[float]] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        if len(line) != len(names) + 1:
            raise InputError(
                f"{path}, line {number}: class '{line[0]}' has {len(line) - 1} values, but there are {len(names)} attributes."
            )
        if line[0] in classes:
            raise InputError(f"{path}, line {number}: class '{line[0]}' has a row already; keep one.")
        classes.append(line[0])
        table.append(
            [_number(value, path, number, name) for value, name in zip(line[1:], names, strict=True)]
        )
    if not classes:
        raise InputError(f"{path} has no class; it needs a row with attributes for each.")
    return classes, names, np.asarray(table, dtype=np.float32)


def _number(text: str, path: Path, line: int, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise InputError(f"{path}, line {line}: attribute '{name}' is '{text}'; it must be a finite number.")
    return value


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the asked columns of every row of a CSV file with a header."""
    if not path.is_file():
        raise InputError(f"{path} is not there; it needs the columns {','.join(columns)}.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for column in columns:
            if column not in (reader.fieldnames or ()):
                raise InputError(
                    f"{path}: the first line has no column '{column}'; it must name {','.join(columns)}, separated by commas."
                )
        for row in reader:
            yield reader.line_num, tuple(row[column] or "" for column in columns)


def _folds(path: Path, index: dict[str, int], seen: IntArray) -> tuple[Fold, ...]:
    if not path.is_file():
        return draw_folds(seen)
    held: dict[str, list[int]] = {}
    for line, (fold, name) in _rows(path, ("fold", "class")):
        if index.get(name) not in seen:
            raise InputError(f"{path}, line {line}: class '{name}' is not one of the seen classes.")
        held.setdefault(fold, []).append(index[name])
    vals = [np.unique(np.asarray(val, dtype=np.int64)) for val in held.values()]
    return tuple(Fold(train=np.setdiff1d(seen, val), val=val) for val in vals)
