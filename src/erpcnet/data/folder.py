"""The project's own format: a folder of images with `attributes.csv` and `splits.csv`.

attributes.csv   class,ATTRIBUTE,ATTRIBUTE,...   one row per class, raw values
splits.csv       image,class,split               split is train, test_seen or test_unseen
             or  class,split                     split is seen or unseen; images lie in folders named like the classes
folds.csv        fold,class                      optional: the validation classes of each fold
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path, PurePosixPath

import numpy as np

from erpcnet.data.dataset import Fold, IntArray, ZeroShotDataset, draw_folds, hold_out
from erpcnet.data.images import ENDINGS, find_images
from erpcnet.data.tables import Problems, Table, closest, columns, parse_number, read_table
from erpcnet.errors import InputError, MissingImagesError, ProblemsError
from erpcnet.utils.files import write_atomically

SPLITS = ("train", "test_seen", "test_unseen")
TEST_SHARE = 0.2  # of a seen class's images, where only the unseen classes are named


EXAMPLE = "EXAMPLE"  # begins the column that `data init` starts with
HINT = f"{EXAMPLE} striped (0: not at all, 1: very; name your own attributes, as many as you like)"


def read_folder(root: Path) -> ZeroShotDataset:
    """Read a dataset in the project's own format.

    Raises:
        ProblemsError: Something in the tables is wrong; it holds all that is.
    """
    problems = Problems()
    classes, attribute_names, attributes = _read_attributes(root / "attributes.csv", problems)
    index = {name: number for number, name in enumerate(classes)}
    path = root / "splits.csv"
    if not path.exists():
        raise InputError(f"{path} is not there; `erpcnet data init {root}` starts it from a folder of class folders.")
    table = read_table(path)
    read = _read_images if "image" in table.header else _read_classes
    paths, labels, rows = read(root, table, index, problems)
    folds = _folds(root / "folds.csv", index, np.unique(labels[rows["train"]]), problems)
    if problems.found:
        raise ProblemsError(problems.found, f"erpcnet data check {root}")
    return ZeroShotDataset(
        name=root.resolve().name,
        root=root,
        classes=tuple(classes),
        attribute_names=tuple(attribute_names),
        attributes=attributes,
        image_paths=tuple(paths),
        labels=labels,
        folds=folds,
        extras={"parts": root / "parts.csv"} if (root / "parts.csv").is_file() else {},
        **rows,
    )


def init_folder(root: Path) -> tuple[Path, Path]:
    """Start attributes.csv and splits.csv from a folder of class folders; neither is overwritten."""
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
    for target, content in zip(targets, contents, strict=True):
        # Or as this command leaves it, if it was killed on the way.
        if target.exists() and not (target.is_file() and target.read_bytes() == content):
            raise InputError(f"{target} is there already; it is left as it is.")
    try:
        for target, content in zip(targets, contents, strict=True):
            write_atomically(target, content)
    except OSError as error:
        raise InputError(f"{root} cannot be written to ({error.strerror}).") from None
    return targets


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',;"\n') else name


Images = tuple[list[str], IntArray, dict[str, IntArray]]


def _read_images(root: Path, table: Table, index: dict[str, int], problems: Problems) -> Images:
    """A line per image. Returns paths, labels and the rows of each split."""
    paths: list[str] = []
    labels: list[int] = []
    missing: list[str] = []
    rows: dict[str, list[int]] = {split: [] for split in SPLITS}
    for line, (image, class_name, split) in columns(table, ("image", "class", "split"), problems):
        where = table.where(line)
        known = _check_class(class_name, index, where, root, problems)
        if split not in rows:
            problems.add(where, f"split '{split}' is none of {', '.join(SPLITS)}{closest(split, SPLITS)}")
            continue
        inside = PurePosixPath(image.replace("\\", "/"))
        if inside.is_absolute() or ".." in inside.parts:
            problems.add(where, f"'{image}' leaves the folder; paths are relative to {root} and stay inside.")
            continue
        file = _locate(root, inside)
        if file is None:
            missing.append(image)
        elif known:
            rows[split].append(len(paths))
            paths.append(file)
            labels.append(index[class_name])
    if missing and not problems.found:
        raise MissingImagesError(root, missing)
    problems.found += [f"{table.path}: image '{image}' is not there." for image in missing]
    if not paths and not problems.found:
        raise InputError(f"{table.path} names no image; it needs a line image,class,split for each.")
    return paths, np.asarray(labels, dtype=np.int64), {k: np.asarray(v, dtype=np.int64) for k, v in rows.items()}


def _read_classes(root: Path, table: Table, index: dict[str, int], problems: Problems) -> Images:
    """A line per class; the images of a seen class are split for training and test, alike every time."""
    found = images_by_class(root)
    paths: list[str] = []
    labels: list[int] = []
    seen: list[int] = []
    unseen: list[int] = []
    for line, (class_name, split) in columns(table, ("class", "split"), problems):
        where = table.where(line)
        known = _check_class(class_name, index, where, root, problems)
        if split not in ("seen", "unseen"):
            problems.add(where, f"split '{split}' is neither 'seen' nor 'unseen'.")
        elif split == "seen" and not found.get(class_name):
            near = closest(class_name, found)
            problems.add(where, f"there is no image in a folder '{class_name}' below {root}{near or '.'}")
        elif known:
            for file in found.get(class_name, []):
                (seen if split == "seen" else unseen).append(len(paths))
                paths.append(file)
                labels.append(index[class_name])
    label_array = np.asarray(labels, dtype=np.int64)
    if not seen:
        if not problems.found:
            raise InputError(f"{table.path} names no seen class, so there is nothing to learn from.")
        return [], label_array, {split: np.zeros(0, dtype=np.int64) for split in SPLITS}
    train, test_seen = hold_out(np.asarray(seen, dtype=np.int64), label_array, TEST_SHARE, seed=0)
    rows = {"train": train, "test_seen": test_seen, "test_unseen": np.asarray(unseen, dtype=np.int64)}
    return paths, label_array, rows


def _check_class(name: str, index: dict[str, int], where: str, root: Path, problems: Problems) -> bool:
    """Whether a class has attributes."""
    if name not in index:
        near = closest(name, index) or "; add one with its attributes."
        problems.add(where, f"class '{name}' has no row in {root / 'attributes.csv'}{near}")
    return name in index


def _locate(root: Path, inside: PurePosixPath) -> str | None:
    """The file that a line means, which may have another image ending; None if there is none."""
    try:
        if (root / inside).is_file():
            return str(inside)
        others = [inside.with_suffix(ending) for ending in ENDINGS]
        return next((str(other) for other in others if (root / other).is_file()), None)
    except PermissionError as error:
        raise InputError(f"{root / inside} may not be read ({error.strerror}).") from None
    except (OSError, ValueError):  # a name that no file can have
        return None


def images_by_class(root: Path) -> dict[str, list[str]]:
    """Images by the folder they lie in."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in find_images(root):
        if len(file.parts) > 1:
            found[file.parts[-2]].append(str(file))
    return found


def read_attributes(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Class names, attribute names and the raw table of a file like `attributes.csv`.

    Raises:
        ProblemsError: Something in it is wrong; it holds all that is.
    """
    problems = Problems()
    found = _read_attributes(path, problems)
    if problems.found:
        raise ProblemsError(problems.found, "erpcnet data check")
    return found


def _read_attributes(path: Path, problems: Problems) -> tuple[list[str], list[str], np.ndarray]:
    table = read_table(path)
    if len(table.header) < 2 or table.header[0] != "class":
        raise InputError(
            f"{path}: the first line must be 'class' and the attributes' names, separated by commas; "
            f"it is '{','.join(table.header)[:100]}'."
        )
    names = table.header[1:]
    _check_names(names, path, problems)
    classes: dict[str, int] = {}
    rows: list[list[float]] = []
    for number, line in table.rows:
        name, where = line[0], table.where(number)
        if not name:
            problems.add(where, "the column 'class' is empty.")
        elif len(line) != len(names) + 1:
            comma = " (a number like 0,5 takes quotes, or semicolons between values)" if table.delimiter == "," else ""
            problems.add(
                where, f"class '{name}' has {len(line) - 1} values, but there are {len(names)} attributes{comma}."
            )
        elif name in classes:
            problems.add(where, f"class '{name}' has a row already, in line {classes[name]}; keep one.")
        else:
            rows.append(_row(line[1:], names, where, problems))
        classes.setdefault(name, number)
    if not classes:
        raise InputError(f"{path} has no class; it needs a row with attributes for each.")
    values = np.asarray(rows, dtype=np.float64).reshape(len(rows), len(names))
    with np.errstate(over="ignore"):  # what is too large is refused with the dataset
        return [name for name in classes if name], names, values.astype(np.float32)


def _check_names(names: list[str], path: Path, problems: Problems) -> None:
    first: dict[str, int] = {}
    for place, name in enumerate(names, start=2):
        if not name:
            problems.add(f"{path}, line 1", f"column {place} has no name; every attribute needs one.")
        elif name in first:
            problems.add(
                f"{path}, line 1", f"attribute '{name}' stands in columns {first[name]} and {place}; keep one."
            )
        elif name.startswith(EXAMPLE):
            problems.add(
                f"{path}, line 1",
                "the example column is still there; name your attributes in the first line, a column each, and give "
                "every class a value for each.",
            )
        first.setdefault(name, place)


def _row(texts: list[str], names: list[str], where: str, problems: Problems) -> list[float]:
    values = []
    for text, name in zip(texts, names, strict=True):
        value = parse_number(text)
        if value is None and not name.startswith(EXAMPLE):
            problems.add(where, f"attribute '{name}' is '{text[:40]}'; it must be a finite number.")
        values.append(value or 0.0)
    return values


def _folds(path: Path, index: dict[str, int], seen: IntArray, problems: Problems) -> tuple[Fold, ...]:
    if not path.exists() and not path.is_symlink():  # a link to nothing is told, not passed over
        return draw_folds(seen)
    table = read_table(path)
    held: dict[str, list[int]] = {}
    for line, (fold, name) in columns(table, ("fold", "class"), problems):
        if index.get(name, -1) not in seen:
            names = [known for known, number in index.items() if number in seen]
            near = closest(name, names) or "."
            problems.add(table.where(line), f"class '{name}' is not one of the seen classes{near}")
            continue
        held.setdefault(fold, []).append(index[name])
    vals = [np.unique(np.asarray(val, dtype=np.int64)) for val in held.values()]
    if any(len(val) == len(seen) for val in vals):
        problems.add(str(path), "a fold holds every seen class, so none is left to train on.")
        return ()
    return tuple(Fold(train=np.setdiff1d(seen, val), val=val) for val in vals)
