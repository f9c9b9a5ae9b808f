"""The Proposed Split (xlsa17) of CUB, SUN, AwA2 and aPY, as Xian et al. publish it.

A folder with `att_splits.mat`, the class lists (`trainclasses1.txt`, `valclasses1.txt`, ...), the images anywhere
below it, and the order of the images: `res101.mat`, whose `image_files` are absolute paths of another machine, or
`image_files.txt`, a path a line. Features are not needed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from erpcnet.data.dataset import Fold, IntArray, ZeroShotDataset
from erpcnet.data.images import find_images
from erpcnet.data.matlab import check_matlab
from erpcnet.errors import InputError, MissingImagesError
from erpcnet.utils.files import open_plain

# (classes, attributes): name and images in train, test_seen, test_unseen.
KNOWN = {
    (200, 312): ("CUB", (7057, 1764, 2967)),
    (717, 102): ("SUN", (10320, 2580, 1440)),
    (50, 85): ("AwA2", (23527, 5882, 7913)),
    (32, 64): ("aPY", (5932, 1483, 7924)),
}
SOURCES = {
    "CUB": "CUB's images are in CUB_200_2011.tgz, from Caltech Vision Lab's page of CUB-200-2011.",
    "SUN": "SUN's images are in SUNAttributeDB_Images.tar.gz, from Brown University's page of SUN Attributes.",
    "AwA2": "AwA2's images are in AwA2-data.zip, from ISTA's page of Animals with Attributes 2.",
    "aPY": "aPY's images are PASCAL VOC 2008's JPEGImages and ayahoo_test_images, from UIUC's attribute datasets page.",
}
SPLITS = {"train": "trainval_loc", "test_seen": "test_seen_loc", "test_unseen": "test_unseen_loc"}
NAMES = ("attributes.txt", "predicates.txt")  # CUB's and AwA2's own lists of attribute names
LARGEST = 2**28  # bytes of a list
PART_FOLDERS = ("parts", "CUB_200_2011/parts")
# aPY's own lists of objects, in the order of its instances: image, class, box, attributes.
ANNOTATIONS = ("apascal_train.txt", "apascal_test.txt", "ayahoo_test.txt")


@dataclass(frozen=True)
class Instance:
    """One line of the order: the path as listed, its class if the line says it, its box if it is part of an image."""

    path: str
    class_name: str | None = None
    box: tuple[int, int, int, int] | None = None


def read_xlsa17(root: Path) -> ZeroShotDataset:
    """Read a dataset in the form of the Proposed Split.

    Raises:
        InputError: It is in another form.
    """
    try:
        return _read(root)
    except InputError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        why = " ".join(str(error).split())[:120]
        raise InputError(
            f"{root}: att_splits.mat, or a list beside it, is not in the form of the Proposed Split ({why})."
        ) from None


def _read(root: Path) -> ZeroShotDataset:
    splits = _mat(root / "att_splits.mat", ("att", "allclasses_names", *SPLITS.values()))
    classes = tuple(str(name[0]) for name in splits["allclasses_names"].ravel())
    attributes = _attributes(splits)
    instances = _instances(root, classes)
    labels = _labels(instances, classes, root)
    rows = {name: _counted_from_1(splits[key], root, key) for name, key in SPLITS.items()}
    last = max(int(own.max(initial=0)) for own in rows.values())
    if last >= len(instances):
        raise InputError(
            f"{root}: att_splits.mat points at image {last + 1}, but only {len(instances)} images are listed; "
            "the list and the splits are of different datasets."
        )
    has_boxes = any(instance.box is not None for instance in instances)
    boxless = [instance.path for instance in instances if has_boxes and instance.box is None]
    if boxless:
        raise InputError(f"{root}: '{boxless[0]}' has no box, but others have; give every instance one.")
    known = KNOWN.get((len(classes), attributes.shape[1]))
    name = known[0] if known else root.resolve().name
    return ZeroShotDataset(
        name=name,
        root=root,
        classes=classes,
        attribute_names=_attribute_names(root, attributes.shape[1]),
        attributes=attributes,
        image_paths=tuple(_match([instance.path for instance in instances], root, SOURCES.get(name, ""))),
        labels=labels,
        folds=_folds(root, classes, np.unique(labels[rows["train"]])),
        boxes=np.array([instance.box for instance in instances], dtype=np.int64) if has_boxes else None,
        extras=_extras(root, known[1] if known else None),
        **rows,
    )


def _counted_from_1(found: np.ndarray, root: Path, key: str) -> IntArray:
    """MATLAB's numbers of images, 1 being the first, as rows."""
    if not np.issubdtype(np.asarray(found).dtype, np.number) or np.iscomplexobj(found):
        raise InputError(f"{root}: {key} of att_splits.mat holds no numbers of images.")
    numbers = np.asarray(found, dtype=np.float64).ravel()
    wrong = numbers[~((numbers >= 1) & (numbers == np.floor(numbers)) & (numbers < 2**53))]
    if wrong.size:
        raise InputError(f"{root}: {key} of att_splits.mat counts an image {wrong[0]:g}; they are counted 1, 2, 3, ...")
    return numbers.astype(np.int64) - 1


def _extras(root: Path, counts: tuple[int, ...] | None) -> dict[str, Any]:
    """The known number of images in each split, and where CUB says its parts are."""
    extras: dict[str, Any] = {"counts": dict(zip(SPLITS, counts, strict=True))} if counts else {}
    for folder in PART_FOLDERS:
        if (root / folder / "part_locs.txt").is_file():
            extras["parts"] = root / folder / "part_locs.txt"
    return extras


def _mat(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    import scipy.io  # only these datasets need it

    names = [*keys, "original_att"]
    try:
        check_matlab(path, names)
        found = scipy.io.loadmat(path, variable_names=names)
    except Exception as error:
        raise InputError(f"{path} is no MATLAB 5 file, or damaged ({' '.join(str(error).split())[:200]}).") from None
    missing = [key for key in keys if key not in found]
    if missing:
        raise InputError(f"{path} has no '{missing[0]}'; it needs {', '.join(keys)}.")
    return found


def _attributes(splits: dict[str, Any]) -> np.ndarray:
    """[C, A]: the raw `original_att` where `att` is that at unit length, or else `att`."""
    if not np.issubdtype(np.asarray(splits["att"]).dtype, np.floating) or splits["att"].ndim != 2:
        raise InputError("att_splits.mat: 'att' is no table of numbers.")
    unit = splits["att"].T
    raw = splits.get("original_att")
    if raw is not None and raw.T.shape == unit.shape:
        lengths = np.linalg.norm(raw.T, axis=1, keepdims=True)
        if (lengths > 0).all() and np.allclose(raw.T / lengths, unit, atol=1e-4):
            return _single(raw.T)
    return _single(unit)


def _single(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large is refused with the dataset
        return values.astype(np.float32)


def _read_list(path: Path) -> str:
    """The text of a list of names."""
    try:
        with open_plain(path, LARGEST) as file:
            text = file.read().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not in UTF-8; save it as UTF-8.") from None
    if "\0" in text:
        raise InputError(f"{path} holds NUL bytes, so it is no list of names.")
    return text


def _attribute_names(root: Path, count: int) -> tuple[str, ...]:
    """One a line, with or without its number in front."""
    path = next((root / name for name in NAMES if (root / name).is_file()), None)
    if path is None:
        return tuple(f"attribute {number + 1}" for number in range(count))
    lines = [line.strip() for line in _read_list(path).splitlines() if line.strip()]
    if len(lines) != count:
        raise InputError(f"{path} names {len(lines)} attributes, but att_splits.mat has {count}.")
    numbered = [re.match(rf"{number}\s+(.+)", line) for number, line in enumerate(lines, start=1)]
    names = tuple(found.group(1) for found in numbered if found)
    return names if len(names) == count else tuple(lines)


def _instances(root: Path, classes: Sequence[str]) -> list[Instance]:
    """Every image (or object of an image) in the order that the splits count in."""
    listed = root / "image_files.txt"
    if listed.is_file():
        lines = _read_list(listed).splitlines()
        return [_parse(line) for line in lines if line.strip() and not line.startswith("#")]
    features = root / "res101.mat"
    if not features.is_file():
        raise InputError(
            f"{root} has neither res101.mat nor image_files.txt, so nobody knows which image the splits count as the "
            "first; put one of them beside att_splits.mat (see docs/datasets.md)."
        )
    found = _mat(features, ("image_files", "labels"))
    names = [str(name[0]).replace("\\", "/") for name in found["image_files"].ravel()]
    labels = np.asarray(found["labels"])
    if labels.dtype.kind not in "iufb" or not (np.abs(labels.astype(np.float64)) < 2**53).all():
        raise InputError(f"{features}: labels must be a class number, 1 to {len(classes)}, for each of image_files.")
    numbers = labels.ravel().astype(np.int64) - 1
    if len(names) != len(numbers) or numbers.min(initial=0) < 0 or numbers.max(initial=0) >= len(classes):
        raise InputError(f"{features}: labels must be a class number, 1 to {len(classes)}, for each of image_files.")
    instances = [Instance(name, classes[number]) for name, number in zip(names, numbers.tolist(), strict=True)]
    return _with_boxes(instances, root)


def _parse(line: str) -> Instance:
    """`path`, or `image class x1 y1 x2 y2` as aPY needs it."""
    words = line.split()
    if len(words) >= 6 and all(word.lstrip("-").isdigit() for word in words[2:6]):
        left, upper, right, lower = map(int, words[2:6])
        return Instance(words[0], words[1], (left, upper, right, lower))
    return Instance(line.strip())


def _with_boxes(instances: list[Instance], root: Path) -> list[Instance]:
    """aPY: the n-th instance of an image and class has the n-th box that the annotations give these."""
    lists = [found for name in ANNOTATIONS for found in sorted(root.rglob(name))]
    if not lists:
        return instances
    boxes: dict[tuple[str, str], list[tuple[int, int, int, int]]] = defaultdict(list)
    for path in lists:
        for line in _read_list(path).splitlines():
            entry = _parse(line)
            if entry.box is not None and entry.class_name is not None:
                boxes[PurePosixPath(entry.path).stem, entry.class_name].append(entry.box)
    found = []
    for instance in instances:
        own = boxes[PurePosixPath(instance.path).stem, instance.class_name or ""]
        if not own:
            raise InputError(
                f"{root}: no annotation gives a box for '{instance.path}' of class '{instance.class_name}'."
            )
        found.append(Instance(instance.path, instance.class_name, own.pop(0)))
    return found


def _labels(instances: Sequence[Instance], classes: Sequence[str], root: Path) -> IntArray:
    index = {name: number for number, name in enumerate(classes)}
    labels = []
    for instance in instances:
        name = instance.class_name or _class_of(instance.path, index)
        if name not in index:
            raise InputError(f"{root}: '{instance.path}' is of none of the classes in att_splits.mat.")
        labels.append(index[name])
    return np.asarray(labels, dtype=np.int64)


def _class_of(path: str, index: dict[str, int]) -> str:
    """The class that the folders spell: `002.Laysan_Albatross`, or SUN's `b/bakery/shop` for bakery_shop."""
    folders = PurePosixPath(path).parts[:-1]
    for start in range(len(folders)):
        name = "_".join(folders[start:])
        if name in index:
            return name
    return ""


def _match(listed: Iterable[str], root: Path, source: str) -> list[str]:
    """Listed paths to files below `root`: the file that shares most trailing components, whatever its ending."""
    by_stem: dict[str, list[PurePosixPath]] = defaultdict(list)
    for file in find_images(root):
        by_stem[file.stem].append(file)
    found, missing = [], []
    for path in listed:
        best = _best(PurePosixPath(path), by_stem, root)
        if best is None:
            missing.append(path)
        else:
            found.append(str(best))
    if missing:
        raise MissingImagesError(root, missing, source)
    return found


def _best(path: PurePosixPath, by_stem: dict[str, list[PurePosixPath]], root: Path) -> PurePosixPath | None:
    candidates = by_stem.get(path.stem, [])
    if not candidates:
        return None
    folders = path.parts[-2::-1]

    def likeness(file: PurePosixPath) -> tuple[int, bool]:
        shared = 0
        for ours, theirs in zip(file.parts[-2::-1], folders, strict=False):
            if ours != theirs:
                break
            shared += 1
        return shared, file.suffix == path.suffix

    best = max(map(likeness, candidates))
    alike = [file for file in candidates if likeness(file) == best]
    if len(alike) > 1:
        raise InputError(
            f"'{path}' of the list may be '{alike[0]}' or '{alike[1]}' below {root}; keep one of the two, or the "
            "folders that the list names."
        )
    return alike[0]


def _folds(root: Path, classes: Sequence[str], seen: IntArray) -> tuple[Fold, ...]:
    """The three folds of the class lists, where they are there."""
    index = {name: number for number, name in enumerate(classes)}
    folds = []
    for number in (1, 2, 3):
        parts = [root / f"{kind}classes{number}.txt" for kind in ("train", "val")]
        if not all(part.is_file() for part in parts):
            continue
        train, val = (_class_list(part, index, seen) for part in parts)
        folds.append(Fold(train, val))
    return tuple(folds)


def _class_list(path: Path, index: dict[str, int], seen: IntArray) -> IntArray:
    names = _read_list(path).split()
    unknown = [name for name in names if index.get(name) not in seen]
    if unknown:
        raise InputError(f"{path}: class '{unknown[0]}' is not one of the seen classes.")
    return np.unique(np.array([index[name] for name in names], dtype=np.int64))
