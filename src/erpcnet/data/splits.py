"""splits.csv of a folder, as far as it can be read, and everything that is wrong with it.

image,class,split    split is train, test_seen or test_unseen
class,split          split is seen or unseen; images lie in folders named like the classes
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from erpcnet.data.images import ENDINGS, find_images
from erpcnet.data.tables import Problems, Table, closest, collect_table, columns
from erpcnet.errors import InputError

SPLITS, CLASS_SPLITS = ("train", "test_seen", "test_unseen"), ("seen", "unseen")
IMAGE_COLUMNS, CLASS_COLUMNS = ("image", "class", "split"), ("class", "split")
Known = Mapping[str, int] | None  # the lines of the classes that have attributes; None if nobody can say which have


@dataclass
class Splits:
    """splits.csv, as far as it can be read.

    Attributes:
        by_image: Whether it has a line per image, not one per class.
        paths: The images of lines that are right, relative to the dataset.
        owners: The class of each.
        rows: Which of them are in which split.
        lines: Class by class, the first line that puts it into a split.
        images: What all lines mean, right or wrong.
        read: How many lines were read.
        whole: Whether all lines were, and each has a class and a split that there are.
    """

    by_image: bool
    paths: list[str] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    images: set[str] = field(default_factory=set)
    read: int = 0
    whole: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """What the first line names."""
        return IMAGE_COLUMNS if self.by_image else CLASS_COLUMNS

    def keep(self, file: str, owner: str, split: str) -> None:
        """One more image that is right."""
        self.rows[split].append(len(self.paths))
        self.paths.append(file)
        self.owners.append(owner)

    def declare(self, name: str | None, split: str | None, line: int) -> None:
        """A line puts a class into a split; None where it names what there is not."""
        self.read += 1
        if name is None or split is None:
            self.whole = False
        else:
            self.lines[name].setdefault(split, line)

    def in_split(self, split: str) -> list[str]:
        """The classes that a line puts there."""
        return [name for name, lines in self.lines.items() if split in lines]

    @property
    def seen(self) -> list[str]:
        """The seen classes, as the lines say."""
        return self.in_split("train" if self.by_image else "seen")


def read_splits(root: Path, known: Known, problems: Problems) -> Splits | None:
    """Read splits.csv.

    Args:
        root: The folder it is in.
        known: The lines of the classes that have attributes; None if nobody can say which have.
        problems: Collects what is wrong.

    Returns:
        What it says; None if nothing of it can be read.
    """
    path = root / "splits.csv"
    if not path.exists():
        problems.tell(f"{path} is not there; `erpcnet data init {root}` starts it from a folder of class folders.")
        return None
    table = collect_table(path, problems)
    if table is None:
        return None
    splits = Splits(_is_by_image(table))
    read, check = (_read_images, _check_images) if splits.by_image else (_read_classes, _check_classes)
    read(root, table, splits, known, problems)
    headed = all(table.header.count(name) == 1 for name in splits.columns)
    splits.whole = splits.whole and headed and splits.read == len(table.rows)
    check(table, splits, problems)
    return splits if headed or splits.read else None


def _is_by_image(table: Table) -> bool:
    """Whether lines are of images, also where the first line does not say so rightly."""
    if "image" in table.header or set(CLASS_COLUMNS) == set(table.header):
        return "image" in table.header
    values = {value for _, line in table.rows for value in line}
    return "image" in table.shown_header() or (not values.isdisjoint(SPLITS) and values.isdisjoint(CLASS_SPLITS))


def _read_images(root: Path, table: Table, splits: Splits, known: Known, problems: Problems) -> None:
    """A line per image."""
    missing: list[tuple[int, str]] = []
    lines: dict[str, int] = {}
    for line, (image, class_name, split_name) in columns(table, IMAGE_COLUMNS, problems):
        where = table.where(line)
        name = _check_class(class_name, known, where, root, problems)
        split = _check_split(split_name, SPLITS, where, problems)
        splits.declare(name, split, line)
        file = None if image is None else _find_image(root, image, where, problems)
        if image is None or file is None:
            continue
        if not file:
            missing.append((line, image))
        elif file in lines:
            problems.add(where, f"'{image}' is the image of line {lines[file]} already; keep one.")
        else:
            lines[file] = line
            if name is not None and split is not None:
                splits.keep(file, name, split)
    splits.images.update(lines)
    if missing:
        _tell_missing(root, table, missing, splits.images, problems)


def _read_classes(root: Path, table: Table, splits: Splits, known: Known, problems: Problems) -> None:
    """A line per class, whose images lie in folders of its name."""
    found = images_by_class(root)
    for line, (class_name, split_name) in columns(table, CLASS_COLUMNS, problems):
        where = table.where(line)
        name = _check_class(class_name, known, where, root, problems)
        split = _check_split(split_name, CLASS_SPLITS, where, problems)
        splits.declare(name, split, line)
        if class_name is None:
            continue
        own = found.get(class_name, [])
        splits.images.update(own)
        if split == "seen" and not own:
            near = closest(class_name, found) or "; put its images there."
            problems.add(where, f"there is no image in a folder '{class_name}' below {root}{near}")
        elif name is not None and split is not None:
            for file in own:
                splits.keep(file, name, split)


def _check_class(name: str | None, known: Known, where: str, root: Path, problems: Problems) -> str | None:
    """The class, if it has attributes, or if nobody can say which have."""
    if name == "":
        problems.add_empty(where, "class")
        return None
    if name is None or known is None or name in known:
        return name
    near = closest(name, known) or "; add one with its attributes."
    problems.add(where, f"class '{name}' has no row in {root / 'attributes.csv'}{near}")
    return None


def _check_split(split: str | None, names: Sequence[str], where: str, problems: Problems) -> str | None:
    """The split, if it is one of those that there are."""
    if split is None or split in names:
        return split
    if split:
        near = closest(split, names) or "."
        problems.add(where, f"split '{split[:40]}' is none of {', '.join(names)}{near}")
    else:
        problems.add(where, f"the column 'split' is empty; write one of {', '.join(names)}.")
    return None


def _check_images(table: Table, splits: Splits, problems: Problems) -> None:
    """What no line of an image is alone to blame for."""
    for name, lines in splits.lines.items():
        if "train" in lines and "test_unseen" in lines:
            problems.add(
                table.where(max(lines["train"], lines["test_unseen"])),
                f"class '{name}' is both seen (line {lines['train']} puts an image in train) and unseen (line "
                f"{lines['test_unseen']}, in test_unseen); put all of its images on one side.",
            )
    if not splits.whole:
        return
    if not table.rows:
        problems.tell(f"{table.path} names no image; it needs a line image,class,split for each.")
        return
    for name, lines in splits.lines.items():
        if "test_seen" in lines and "train" not in lines and splits.seen:
            problems.add(
                table.where(lines["test_seen"]),
                f"class '{name}' has images in test_seen but none in train; move some to train or all to test_unseen.",
            )
    for split in ("train", "test_unseen"):
        if not splits.in_split(split):
            problems.add(str(table.path), f"no image is in the split '{split}'; it needs at least one.")


def _check_classes(table: Table, splits: Splits, problems: Problems) -> None:
    """What no line of a class is alone to blame for."""
    if not splits.whole:
        return
    if not table.rows:
        problems.tell(f"{table.path} names no class; it needs a line class,split for each.")
        return
    unseen = splits.in_split("unseen")
    if not splits.seen:
        problems.tell(f"{table.path} names no seen class, so there is nothing to learn from; write 'seen' for some.")
    if not unseen:
        problems.tell(
            f"{table.path} names no unseen class; write 'unseen' for the classes to recognise without training images."
        )
    elif not splits.rows["unseen"]:
        problems.add(
            table.where(splits.lines[unseen[0]]["unseen"]),
            f"no unseen class has an image to test with; put some below {table.path.parent}, in a folder "
            f"'{unseen[0]}'.",
        )


def _find_image(root: Path, image: str, where: str, problems: Problems) -> str | None:
    """The file that a line means; empty if it is not there, None if it may not be one."""
    inside = PurePosixPath(image.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts:
        problems.add(where, f"'{image}' leaves the folder; paths are relative to {root} and stay inside.")
        return None
    try:
        return _locate(root, inside) or ""
    except InputError as error:
        problems.add(where, str(error))
        return None


def _tell_missing(
    root: Path, table: Table, missing: Sequence[tuple[int, str]], named: set[str], problems: Problems
) -> None:
    """Images that are not there, and where the only one of that name is that no other line means."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in find_images(root):
        if str(file) not in named:
            places[file.name.casefold()].append(str(file))
    for line, image in missing:
        others = places.get(PurePosixPath(image.replace("\\", "/")).name.casefold(), [])
        remedy = f"did you mean '{others[0]}'?" if len(others) == 1 else f"put it below {root}, or take the line out."
        problems.add(table.where(line), f"image '{image}' is not there, under that or another image ending; {remedy}")


def _locate(root: Path, inside: PurePosixPath) -> str | None:
    """The file that a line means, which may have another image ending; None if there is none.

    Raises:
        InputError: It may not be read.
    """
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
