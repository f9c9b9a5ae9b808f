"""Reading a dataset whole, and saying everything that is wrong with it, and what of the folder is not used."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from erpcnet.data.dataset import FloatArray, ZeroShotDataset
from erpcnet.data.folder import FolderTables, read_tables
from erpcnet.data.images import ENDINGS, HEIC_ENDINGS, find_files, find_images, is_image, load_image
from erpcnet.data.readers import read_dataset
from erpcnet.data.tables import closest
from erpcnet.errors import InputError, MissingImagesError, ProblemsError
from erpcnet.utils.progress import track

TWINS = 0.999  # the cosine of attribute rows, from the mean of all, above which little tells classes apart
LARGER, SMALLER = 8.0, 20.0  # how many times so the largest value of a row may be than is usual
MOST_TWINS = 20  # pairs of them that are named
FEW_CLASSES, FEW_IMAGES = 4, 5
# Pictures that this program does not open, by their endings, and what to do.
UNREAD = {
    **dict.fromkeys((".avif", ".jxl", ".jp2", ".psd", ".svg", ".pdf", ".eps"), "convert them to JPEG or PNG"),
    **dict.fromkeys((".raw", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf"), "develop them to JPEG or PNG"),
    **dict.fromkeys((".mp4", ".mov", ".avi"), "take single pictures from them"),
}
TABLES = ("attributes.csv", "splits.csv", "folds.csv", "parts.csv", "creatures.json")


@dataclass(frozen=True)
class Report:
    """What a dataset holds.

    Attributes:
        facts: By name.
        problems: What is wrong: a sentence each.
        warnings: What is not wrong, but seldom meant: pictures that are not used, classes that are hard to tell apart.
    """

    facts: dict[str, Any]
    problems: list[str]
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is wrong, and nothing is ignored."""
        return not self.problems and not self.warnings

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def check_dataset(root: str | Path) -> Report:
    """Read tables and every image of a dataset."""
    root = Path(root)
    try:
        dataset = read_dataset(root)
    except MissingImagesError as error:
        problems = [f"{path} is not there, under that or another image ending." for path in error.missing]
        return Report({"missing images": len(problems), "where from": error.source or "see docs/datasets.md"}, problems)
    except ProblemsError:
        return _check_tables(root)
    boxes = dataset.boxes if dataset.boxes is not None else [None] * len(dataset.image_paths)
    read = _read_images([(root / name, box) for name, box in zip(dataset.image_paths, boxes, strict=True)])
    rows = dataset.classes, dataset.unit_attributes
    problems = [*_miscounted(dataset), *_broken(read), *_repeated(dataset), *_identical(*rows), *_copied(dataset, read)]
    scales = _scales(dataset.classes, dataset.attributes)
    warnings = [*_unused(dataset), *_few(dataset), *_unlearnable(dataset), *scales, *_twins(*rows)]
    return Report(_facts(dataset), problems, warnings)


def _check_tables(root: Path) -> Report:
    """Of a folder whose tables are wrong: all that is, and what can be said of its pictures and attributes so far."""
    tables = read_tables(root)
    splits = tables.splits
    meant: set[str] = set() if splits is None else set(splits.images)
    if splits is None or not splits.whole:  # it may mean any of them
        meant.update(map(str, find_images(root)))
    broken = _broken(_read_images([(root / name, None) for name in sorted(meant)]))
    problems, warnings = [*tables.problems, *broken], [*_unused_of_folder(root, tables), *_unread(root)]
    attributes = tables.attributes
    if attributes is not None and attributes.whole:
        classes, matrix = tuple(attributes.lines), attributes.matrix()
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        problems += _identical(classes, unit)
        warnings += [*_scales(classes, matrix), *_twins(classes, unit)]
    return Report({"folder": str(root)}, problems, warnings)


def _facts(dataset: ZeroShotDataset) -> dict[str, Any]:
    norms = np.linalg.norm(dataset.attributes, axis=1)
    return {
        "dataset": dataset.name,
        "images": len(dataset.image_paths),
        "train": len(dataset.train),
        "test_seen": len(dataset.test_seen),
        "test_unseen": len(dataset.test_unseen),
        "seen classes": len(dataset.seen),
        "unseen classes": len(dataset.unseen),
        "attributes": len(dataset.attribute_names),
        "attribute values": f"{dataset.attributes.min():g} to {dataset.attributes.max():g}",
        "attribute norms": f"{norms.min():.3f} to {norms.max():.3f}",
        "validation folds": len(dataset.folds),
    }


def _miscounted(dataset: ZeroShotDataset) -> Iterable[str]:
    """Splits of a known dataset that are not of the known size."""
    for split, known in dataset.extras.get("counts", {}).items():
        found = len(getattr(dataset, split))
        if found != known:
            yield f"{dataset.root}: {split} has {found} images; the Proposed Split of {dataset.name} has {known}."


def _read_images(jobs: Sequence[tuple[Path, Any]]) -> list[bytes | str]:
    """A digest of the pixels of every image, or of a box in it; or what is wrong, where it does not decode."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(track(pool.map(_read_image, jobs), total=len(jobs), what="Reading images"))


def _broken(read: Iterable[bytes | str]) -> list[str]:
    return [one for one in read if isinstance(one, str)]


def _read_image(job: tuple[Path, Any]) -> bytes | str:
    try:
        picture = load_image(*job)
    except InputError as error:
        return str(error)
    return hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).digest()


def _repeated(dataset: ZeroShotDataset) -> Iterable[str]:
    """One instance listed twice."""
    boxes = dataset.boxes
    listed: set[tuple[str, ...]] = set()
    for row, name in enumerate(dataset.image_paths):
        key = (name,) if boxes is None else (name, *map(str, boxes[row]))
        if key in listed:
            yield f"{dataset.root / name} is listed more than once."
        listed.add(key)


def _identical(classes: Sequence[str], unit: FloatArray) -> Iterable[str]:
    """Classes that no attribute tells apart."""
    rows = np.ascontiguousarray(unit.round(6))
    first: dict[bytes, str] = {}
    for name, row in zip(classes, rows, strict=True):
        other = first.setdefault(row.tobytes(), name)
        if other != name:
            yield (
                f"classes '{other}' and '{name}' have the same attributes, so nothing tells them apart; give one other "
                "values, or add an attribute in which they differ."
            )


def _copied(dataset: ZeroShotDataset, read: list[bytes | str]) -> Iterator[str]:
    """The same pixels in two splits or two classes; several instances of one image are no copies."""
    if dataset.boxes is not None:
        return
    split_of = {int(row): split for split in ("train", "test_seen", "test_unseen") for row in getattr(dataset, split)}
    first: dict[bytes, int] = {}
    for row, digest in enumerate(read):
        if isinstance(digest, str):
            continue
        other = first.setdefault(digest, row)
        same_class = dataset.labels[other] == dataset.labels[row]
        if other != row and not (same_class and split_of.get(other) == split_of.get(row)):
            names = [f"'{dataset.image_paths[one]}'" for one in (other, row)]
            kinds = [f"{dataset.classes[dataset.labels[one]]}, {split_of.get(one, 'no split')}" for one in (other, row)]
            yield f"{names[0]} ({kinds[0]}) and {names[1]} ({kinds[1]}) are the same picture; keep one."


def _unused(dataset: ZeroShotDataset) -> Iterator[str]:
    """Pictures in the folder that no split uses, and why."""
    root, used = dataset.root, set(dataset.image_paths)
    if (root / "att_splits.mat").is_file():
        unused = [file for file in find_images(root) if str(file) not in used]
        if unused:
            yield f"{_pictures(len(unused))} in no split, such as {unused[0]}."
    else:
        yield from _unused_of_folder(root, read_tables(root))
    yield from _unread(root)


def _unused_of_folder(root: Path, tables: FolderTables) -> Iterator[str]:
    """The same where the tables say so; where splits.csv cannot be read, nobody knows."""
    splits = tables.splits
    if splits is None:
        return
    unused = [file for file in find_images(root) if str(file) not in splits.images]
    if splits.by_image:
        if unused:
            yield f"{_pictures(len(unused))} in no line of splits.csv, such as {unused[0]}; none without one is used."
        return
    loose = [file for file in unused if len(file.parts) == 1]
    if loose:
        used = "it is not used" if len(loose) == 1 else "none of them is used"
        lie = "lies" if len(loose) == 1 else "lie"
        yield f"{_count(len(loose), 'picture')} {lie} in no class folder, such as {loose[0]}; {used}."
    folders = Counter(file.parts[-2] for file in unused if len(file.parts) > 1)
    known = tables.attributes.lines if tables.attributes is not None else folders
    for name, count in folders.items():
        pictures = f"{_count(count, 'picture')} in the folder '{name}' {'is' if count == 1 else 'are'} not used"
        if name not in known:
            near = closest(name, known) or "; add one."
            yield f"{pictures}: no class '{name}' has a row in attributes.csv{near}"
        else:
            yield f"{pictures}: no line of splits.csv is for '{name}'."


def _pictures(count: int) -> str:
    return f"{_count(count, 'picture')} {'is' if count == 1 else 'are'}"


def _unread(root: Path) -> Iterator[str]:
    """Files that are not read, by their endings; in folders of other sources those alone that are pictures."""
    own = (root / "attributes.csv").is_file()
    found: dict[str, list[PurePosixPath]] = defaultdict(list)
    for file in find_files(root):
        ending = file.suffix.lower()
        beside = file.name in TABLES or (len(file.parts) == 1 and ending in (".csv", ".txt", ".md", ".mat"))
        if not is_image(file) and not beside and (own or ending in UNREAD):
            found[ending].append(file)
    for ending, files in found.items():
        noun, verb = ("file", "is") if len(files) == 1 else ("files", "are")
        counted = f"{len(files)} {f'{ending} {noun}' if ending else f'{noun} without an ending'} {verb} not read"
        what = UNREAD.get(ending, "endings that are read are " + ", ".join(ENDINGS))
        yield f"{counted}, such as {files[0]}; {what}."
    if any(is_image(file) and file.suffix.lower() in HEIC_ENDINGS for file in find_files(root)):
        try:
            import pillow_heif  # noqa: F401
        except ModuleNotFoundError:
            yield "there are HEIC pictures, which need pip install 'erpcnet[heic]'."


def _few(dataset: ZeroShotDataset) -> Iterator[str]:
    if len(dataset.seen) < FEW_CLASSES:
        yield (
            f"there are {_count(len(dataset.seen), 'seen class', 'seen classes')}: fewer than {FEW_CLASSES} leave none "
            "to choose sigma and delta on; set --model.sigma and --model.delta, or bring more."
        )
    if len(dataset.unseen) < 3:
        yield (
            f"there are test images of {_count(len(dataset.unseen), 'unseen class', 'unseen classes')}: T1 among so "
            "few says little."
        )
    counts = np.bincount(dataset.labels[dataset.train], minlength=len(dataset.classes))
    few = [dataset.classes[number] for number in dataset.seen if counts[number] < FEW_IMAGES]
    if few:
        yield f"{_named(few)} {'has' if len(few) == 1 else 'have'} fewer than {FEW_IMAGES} training images; bring more."


def _unlearnable(dataset: ZeroShotDataset) -> Iterator[str]:
    """Attributes in which no two seen classes differ, but some unseen class does."""
    seen, rest = dataset.attributes[dataset.seen], dataset.attributes
    alike = np.ptp(seen, axis=0) == 0
    differs = np.ptp(rest, axis=0) > 0
    names = [name for name, one in zip(dataset.attribute_names, alike & differs, strict=True) if one]
    if names:
        named = f"{_named(names, 'attribute')} {'is' if len(names) == 1 else 'are'}"
        what = "it looks" if len(names) == 1 else "they look"
        yield f"{named} the same for every seen class, so nothing teaches what {what} like; choose others."
    useless = [name for name, one in zip(dataset.attribute_names, ~differs, strict=True) if one]
    if useless and len(dataset.classes) > 1:
        same = f"{_named(useless, 'attribute')} {'is' if len(useless) == 1 else 'are'} the same for all classes"
        yield f"{same}, which tells none apart; leave {'it' if len(useless) == 1 else 'them'} out."


def _scales(classes: Sequence[str], attributes: FloatArray) -> Iterator[str]:
    """Rows that seem to be in other units, such as per cent beside shares."""
    largest = np.abs(attributes).max(axis=1)
    usual = float(np.median(largest))
    odd = [name for name, own in zip(classes, largest, strict=True) if own > LARGER * usual or own < usual / SMALLER]
    if odd:
        yield (
            f"the attributes of {_named(odd)} are on another scale than the other rows, whose largest value is about "
            f"{usual:g}; use one scale, such as 0 to 1, for all."
        )


def _twins(classes: Sequence[str], unit: FloatArray) -> Iterator[str]:
    """Classes whose rows are nearly the same."""
    away = unit - unit.mean(axis=0)
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    away = away / np.maximum(lengths, 1e-12)
    near = np.triu(away @ away.T > TWINS, k=1) & ~np.triu((unit[:, None] == unit[None]).all(axis=2), k=1)
    pairs = np.argwhere(near)
    for one, other in pairs[:MOST_TWINS]:
        yield (
            f"classes '{classes[one]}' and '{classes[other]}' have nearly the same attributes; add one in which they "
            "differ."
        )
    if len(pairs) > MOST_TWINS:
        more = len(pairs) - MOST_TWINS
        yield f"{_count(more, 'more pair')} of classes {'has' if more == 1 else 'have'} nearly the same attributes."


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _named(names: list[str], what: str = "class") -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    plural = {"class": "classes"}.get(what, f"{what}s")
    return f"{what if len(names) == 1 else plural} {shown}{more}"
