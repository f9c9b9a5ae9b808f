"""Reading a dataset whole, and saying everything that is wrong with it, and what of the folder is not used."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.folder import read_attributes
from erpcnet.data.images import ENDINGS, HEIC_ENDINGS, find_files, find_images, is_image, load_image
from erpcnet.data.readers import read_dataset
from erpcnet.data.tables import closest
from erpcnet.errors import InputError, MissingImagesError, ProblemsError
from erpcnet.utils.progress import track

TWINS = 0.999  # the cosine of attribute rows, from the mean of all, above which little tells classes apart
LARGER, SMALLER = 8.0, 20.0  # how many times so the largest value of a row may be than is usual
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
        problems = [f"{path} is not there." for path in error.missing]
        return Report({"missing images": len(problems), "where from": error.source or "see docs/datasets.md"}, problems)
    except ProblemsError as error:
        return Report({"folder": str(root)}, list(error.problems))
    read = _read_images(dataset)
    broken = [one for one in read if isinstance(one, str)]
    problems = [*_miscounted(dataset), *broken, *_repeated(dataset), *_identical(dataset), *_copied(dataset, read)]
    warnings = [*_unused(dataset), *_few(dataset), *_unlearnable(dataset), *_scales(dataset), *_twins(dataset)]
    return Report(_facts(dataset), problems, warnings)


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


def _read_images(dataset: ZeroShotDataset) -> list[bytes | str]:
    """A digest of the pixels of every image; or what is wrong, where it does not decode."""
    boxes = dataset.boxes if dataset.boxes is not None else [None] * len(dataset.image_paths)
    jobs = [(dataset.root / name, box) for name, box in zip(dataset.image_paths, boxes, strict=True)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(track(pool.map(_read_image, jobs), total=len(jobs), what="Reading images"))


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


def _identical(dataset: ZeroShotDataset) -> Iterable[str]:
    """Classes that no attribute tells apart."""
    rows = np.ascontiguousarray(dataset.unit_attributes.round(6))
    first: dict[bytes, str] = {}
    for name, row in zip(dataset.classes, rows, strict=True):
        other = first.setdefault(row.tobytes(), name)
        if other != name:
            yield f"classes '{other}' and '{name}' have the same attributes, so nothing tells them apart."


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
    unused = [file for file in find_images(root) if str(file) not in used]
    if not (root / "attributes.csv").is_file():
        if unused:
            yield f"{_count(len(unused), 'picture')} below {root} are in no split, such as {unused[0]}."
    else:
        yield from _unused_of_folder(dataset, unused)
    yield from _unread(root)


def _unused_of_folder(dataset: ZeroShotDataset, unused: list[PurePosixPath]) -> Iterator[str]:
    classes = read_attributes(dataset.root / "attributes.csv")[0]
    in_splits = {dataset.classes[label] for label in dataset.labels}
    loose = [file for file in unused if len(file.parts) == 1]
    if loose:
        yield f"{_count(len(loose), 'picture')} lie in no class folder, such as {loose[0]}; none of them is used."
    folders = Counter(file.parts[-2] for file in unused if len(file.parts) > 1)
    for name, count in folders.items():
        pictures = f"{_count(count, 'picture')} in the folder '{name}' {'is' if count == 1 else 'are'} not used"
        if name not in classes:
            near = closest(name, classes) or "; add one."
            yield f"{pictures}: no class '{name}' has a row in attributes.csv{near}"
        elif name not in in_splits:
            yield f"{pictures}: no line of splits.csv is for '{name}'."
        else:
            yield f"{pictures}: splits.csv does not name them."


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
        told = f"{len(files)} {f'{ending} {noun}' if ending else f'{noun} without an ending'} {verb} not read"
        what = UNREAD.get(ending, "endings that are read are " + ", ".join(ENDINGS))
        yield f"{told}, such as {files[0]}; {what}."
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
        yield f"{_named(few)} {'has' if len(few) == 1 else 'have'} fewer than {FEW_IMAGES} training images."


def _unlearnable(dataset: ZeroShotDataset) -> Iterator[str]:
    """Attributes in which no two seen classes differ, but some unseen class does."""
    seen, rest = dataset.attributes[dataset.seen], dataset.attributes
    alike = np.ptp(seen, axis=0) == 0
    differs = np.ptp(rest, axis=0) > 0
    names = [name for name, one in zip(dataset.attribute_names, alike & differs, strict=True) if one]
    if names:
        named = f"{_named(names, 'attribute')} {'is' if len(names) == 1 else 'are'}"
        yield f"{named} the same for every seen class, so nothing teaches what it looks like."
    useless = [name for name, one in zip(dataset.attribute_names, ~differs, strict=True) if one]
    if useless and len(dataset.classes) > 1:
        yield f"{_named(useless, 'attribute')} {'is' if len(useless) == 1 else 'are'} the same for all classes."


def _scales(dataset: ZeroShotDataset) -> Iterator[str]:
    """Rows that seem to be in other units, such as per cent beside shares."""
    largest = np.abs(dataset.attributes).max(axis=1)
    usual = float(np.median(largest))
    odd = [
        name
        for name, own in zip(dataset.classes, largest, strict=True)
        if own > LARGER * usual or own < usual / SMALLER
    ]
    if odd:
        yield (
            f"the attributes of {_named(odd)} are on another scale than the other rows, whose largest value is about "
            f"{usual:g}; use one scale, such as 0 to 1, for all."
        )


def _twins(dataset: ZeroShotDataset) -> Iterator[str]:
    """Classes whose rows are nearly the same."""
    rows = dataset.unit_attributes
    away = rows - rows.mean(axis=0)
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    away = away / np.maximum(lengths, 1e-12)
    near = np.triu(away @ away.T > TWINS, k=1) & ~np.triu((rows[:, None] == rows[None]).all(axis=2), k=1)
    for one, other in np.argwhere(near)[:20]:
        yield f"classes '{dataset.classes[one]}' and '{dataset.classes[other]}' have nearly the same attributes."


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _named(names: list[str], what: str = "class") -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    plural = {"class": "classes"}.get(what, f"{what}s")
    return f"{what if len(names) == 1 else plural} {shown}{more}"
