"""The project's own format: a folder of images with `attributes.csv` and `splits.csv`.

attributes.csv   class,ATTRIBUTE,ATTRIBUTE,...   one row per class, raw values
splits.csv       image,class,split               split is train, test_seen or test_unseen
             or  class,split                     split is seen or unseen; images lie in folders named like the classes
folds.csv        fold,class                      optional: the validation classes of each fold
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from erpcnet.data.dataset import Fold, IntArray, ZeroShotDataset, draw_folds, hold_out
from erpcnet.data.images import ENDINGS, find_images
from erpcnet.errors import InputError, MissingImagesError

SPLITS = ("train", "test_seen", "test_unseen")
TEST_SHARE = 0.2  # of a seen class's images, where only the unseen classes are named


def read_folder(root: Path) -> ZeroShotDataset:
    """Read a dataset in the project's own format."""
    classes, attribute_names, attributes = read_attributes(root / "attributes.csv")
    index = {name: number for number, name in enumerate(classes)}
    path = root / "splits.csv"
    if not path.is_file():
        raise InputError(f"{path} is not there; `erpcnet data init {root}` starts it from a folder of class folders.")
    read = _read_images if "image" in _header(path) else _read_classes
    paths, labels, rows = read(root, path, index)
    return ZeroShotDataset(
        name=root.resolve().name,
        root=root,
        classes=tuple(classes),
        attribute_names=tuple(attribute_names),
        attributes=attributes,
        image_paths=tuple(paths),
        labels=labels,
        folds=_folds(root / "folds.csv", index, np.unique(labels[rows["train"]])),
        extras={"parts": root / "parts.csv"} if (root / "parts.csv").is_file() else {},
        **rows,
    )


def init_folder(root: Path) -> tuple[Path, Path]:
    """Start attributes.csv and splits.csv from a folder of class folders; neither is overwritten."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder.")
    found = _by_class(root)
    if not found:
        raise InputError(
            f"{root} holds no images in class folders; make one folder per class and put its images there."
        )
    targets = root / "attributes.csv", root / "splits.csv"
    for target in targets:
        if target.exists():
            raise InputError(f"{target} is there already; it is left as it is.")
    lines = ["class,ATTRIBUTE", *(f"{_quoted(name)}," for name in sorted(found))]
    targets[0].write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = ["class,split", *(f"{_quoted(name)},seen" for name in sorted(found))]
    targets[1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return targets


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n') else name


Images = tuple[list[str], IntArray, dict[str, IntArray]]


def _read_images(root: Path, path: Path, index: dict[str, int]) -> Images:
    """A line per image. Returns paths, labels and the rows of each split."""
    paths: list[str] = []
    labels: list[int] = []
    missing: list[str] = []
    rows: dict[str, list[int]] = {split: [] for split in SPLITS}
    for line, (image, class_name, split) in _rows(path, ("image", "class", "split")):
        where = f"{path}, line {line}"
        _check_class(class_name, index, where, root)
        if split not in rows:
            raise InputError(f"{where}: split '{split}' is none of {', '.join(SPLITS)}.")
        file = _locate(root, image, where)
        if file is None:
            missing.append(image)
            continue
        rows[split].append(len(paths))
        paths.append(file)
        labels.append(index[class_name])
    if missing:
        raise MissingImagesError(root, missing)
    if not paths:
        raise InputError(f"{path} names no image; it needs a line image,class,split for each.")
    return paths, np.asarray(labels, dtype=np.int64), {k: np.asarray(v, dtype=np.int64) for k, v in rows.items()}


def _read_classes(root: Path, path: Path, index: dict[str, int]) -> Images:
    """A line per class; the images of a seen class are split for training and test, alike every time."""
    found = _by_class(root)
    paths: list[str] = []
    labels: list[int] = []
    seen: list[int] = []
    unseen: list[int] = []
    for line, (class_name, split) in _rows(path, ("class", "split")):
        where = f"{path}, line {line}"
        _check_class(class_name, index, where, root)
        if split not in ("seen", "unseen"):
            raise InputError(f"{where}: split '{split}' is neither 'seen' nor 'unseen'.")
        if split == "seen" and not found.get(class_name):
            raise InputError(f"{where}: there is no image in a folder '{class_name}' below {root}.")
        for file in found.get(class_name, []):
            (seen if split == "seen" else unseen).append(len(paths))
            paths.append(file)
            labels.append(index[class_name])
    label_array = np.asarray(labels, dtype=np.int64)
    if not seen:
        raise InputError(f"{path} names no seen class, so there is nothing to learn from.")
    train, test_seen = hold_out(np.asarray(seen, dtype=np.int64), label_array, TEST_SHARE, seed=0)
    rows = {"train": train, "test_seen": test_seen, "test_unseen": np.asarray(unseen, dtype=np.int64)}
    return paths, label_array, rows


def _check_class(name: str, index: dict[str, int], where: str, root: Path) -> None:
    if name not in index:
        raise InputError(
            f"{where}: class '{name}' has no row in {root / 'attributes.csv'}; add one with its attributes."
        )


def _locate(root: Path, image: str, where: str) -> str | None:
    """The file that a line means, which may have another image ending; None if there is none."""
    inside = PurePosixPath(image.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts:
        raise InputError(f"{where}: '{image}' leaves the folder; paths are relative to {root} and stay inside.")
    if (root / inside).is_file():
        return str(inside)
    others = [inside.with_suffix(ending) for ending in ENDINGS]
    return next((str(other) for other in others if (root / other).is_file()), None)


def _by_class(root: Path) -> dict[str, list[str]]:
    """Images by the folder they lie in."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in find_images(root):
        if len(file.parts) > 1:
            found[file.parts[-2]].append(str(file))
    return found


def read_attributes(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Class names, attribute names and the raw table of `attributes.csv`."""
    lines = [line for _, line in _lines(path)]
    if not lines or len(lines[0]) < 2 or lines[0][0] != "class":
        raise InputError(
            f"{path}: the first line must be 'class' and the attributes' names, separated by commas; "
            f"it is '{','.join(lines[0]) if lines else ''}'."
        )
    names = lines[0][1:]
    classes: list[str] = []
    table: list[list[float]] = []
    for number, line in enumerate(lines[1:], start=2):
        if not any(line):
            continue
        if len(line) != len(names) + 1:
            raise InputError(
                f"{path}, line {number}: class '{line[0]}' has {len(line) - 1} values, but there are {len(names)} "
                "attributes."
            )
        if line[0] in classes:
            raise InputError(f"{path}, line {number}: class '{line[0]}' has a row already; keep one.")
        classes.append(line[0])
        table.append([_number(value, path, number, name) for value, name in zip(line[1:], names, strict=True)])
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


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file with their numbers, spaces around values taken off."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            return [(reader.line_num, [value.strip() for value in line]) for line in reader]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not in UTF-8; save it as CSV in UTF-8.") from None


def _header(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0][1] if lines else []


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the asked columns of every row of a CSV file with a header; a row may stand there once."""
    header = _header(path)
    missing = [column for column in columns if column not in header]
    if missing:
        raise InputError(
            f"{path}: the first line has no column '{missing[0]}'; "
            f"it must name {','.join(columns)}, separated by commas."
        )
    places = [header.index(column) for column in columns]
    lines: dict[str, int] = {}
    for number, line in _lines(path)[1:]:
        if not any(line):
            continue
        values = tuple(line[place] if place < len(line) else "" for place in places)
        if not values[0]:
            raise InputError(f"{path}, line {number}: the column '{columns[0]}' is empty.")
        if columns[0] != "fold" and values[0] in lines:
            raise InputError(
                f"{path}, line {number}: '{values[0]}' stands in line {lines[values[0]]} already; keep one."
            )
        lines[values[0]] = number
        yield number, values


def _folds(path: Path, index: dict[str, int], seen: IntArray) -> tuple[Fold, ...]:
    if not path.is_file():
        return draw_folds(seen)
    held: dict[str, list[int]] = {}
    for line, (fold, name) in _rows(path, ("fold", "class")):
        if index.get(name) not in seen:
            raise InputError(f"{path}, line {line}: class '{name}' is not one of the seen classes.")
        held.setdefault(fold, []).append(index[name])
    vals = [np.unique(np.asarray(val, dtype=np.int64)) for val in held.values()]
    if any(len(val) == len(seen) for val in vals):
        raise InputError(f"{path}: a fold holds every seen class, so none is left to train on.")
    return tuple(Fold(train=np.setdiff1d(seen, val), val=val) for val in vals)
