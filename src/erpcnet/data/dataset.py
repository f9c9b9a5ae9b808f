"""What a zero-shot dataset is, whatever files it came from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from erpcnet.config.ranges import shorten
from erpcnet.errors import InputError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
# The largest value of an attribute row lies between these, so that its length is an ordinary number in float32.
LEAST_VALUE, LARGEST_VALUE = 1e-9, 1e9
LONGEST_NAME = 300  # characters of a class or an attribute
ENOUGH_CLASSES = 20  # validation classes, of which one more or less says little


def check_attribute_row(row: npt.NDArray[Any], name: str, where: str = "") -> None:
    """Refuse a row of attributes that cannot be brought to length 1.

    Args:
        row: The values [A] of one class.
        name: The class.
        where: What a complaint begins with, such as the dataset's folder.

    Raises:
        InputError: A value is not finite, all are 0, or they are too small or too large.
    """
    largest = float(np.abs(np.asarray(row, dtype=np.float64)).max(initial=0.0))
    if not np.isfinite(largest):
        raise InputError(f"{where}an attribute of class '{name}' is {largest}; every one must be a finite number.")
    if largest == 0:
        raise InputError(
            f"{where}every attribute of class '{name}' is 0, so nothing tells it apart; give it at least one attribute "
            "that is not 0."
        )
    if not LEAST_VALUE <= largest <= LARGEST_VALUE:
        raise InputError(
            f"{where}the largest attribute of class '{name}' is {largest:g}; give values on an ordinary scale, such as "
            "0 to 1 or 0 to 100."
        )


@dataclass(frozen=True)
class Fold:
    """Seen classes parted once more, to choose settings on classes that training never saw."""

    train: IntArray
    val: IntArray


def check_names(names: Sequence[object], what: str, where: str = "") -> None:
    """Refuse names that no line can show, that are too long, or that stand there twice.

    Args:
        names: Of all classes, or of all attributes.
        what: They are names of: "class" or "attribute".
        where: What a complaint begins with, such as the dataset's folder.
    """
    for name in names:
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
            article = "an" if what == "attribute" else "a"
            raise InputError(
                f"{where}the name of {article} {what} is {shorten(name)}; it must be a text of up to {LONGEST_NAME} "
                "printable characters."
            )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{where}{what} '{twice[0]}' is there twice; give each a name of its own.")


@dataclass(frozen=True)
class ZeroShotDataset:
    """Images with class labels, a table of class attributes, and who is seen and unseen; N instances of C classes.

    Attributes:
        name: What tables call it.
        root: The folder that the paths of images are below.
        classes: The names of all C classes, seen and unseen.
        attribute_names: The names of the A attributes.
        attributes: The table [C, A], whatever its scale; `unit_attributes` has its rows at length 1.
        image_paths: The file of each of the N instances, below `root`.
        labels: The class of each instance [N], as a number of `classes`.
        train: Which instances are trained on; their classes are the seen ones.
        test_seen: Further instances of seen classes, for the test; there may be none.
        test_unseen: Instances of the unseen classes.
        folds: Seen classes parted into training and validation classes, to choose the operating point on.
        boxes: Left, upper, right and lower [N, 4] in pixels of the image, where an instance is a part of it, as in
            aPY.
        extras: What a reader has beside, such as where parts are.

    Raises:
        InputError: Two parts do not fit each other; the message says which.

    Examples:
        >>> dataset = read_dataset("data/creatures")
        >>> dataset.attributes.shape, [dataset.classes[number] for number in dataset.unseen]
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    attribute_names: tuple[str, ...]
    attributes: FloatArray
    image_paths: tuple[str, ...]
    labels: IntArray
    train: IntArray
    test_seen: IntArray
    test_unseen: IntArray
    folds: tuple[Fold, ...] = ()
    boxes: IntArray | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_names()
        self._check_attributes()
        object.__setattr__(self, "attributes", self.attributes.astype(np.float32, copy=False))
        self._check_splits()

    def _check_names(self) -> None:
        for what, names in (("class", self.classes), ("attribute", self.attribute_names)):
            check_names(names, what, f"{self.root}: ")
        count = len(self.image_paths)
        labels = np.asarray(self.labels)
        if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
            raise InputError(
                f"{self.root}: {count} images have labels of shape {labels.shape} and type {labels.dtype}."
            )
        if count and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classes):
            raise InputError(f"{self.root}: a label is none of the {len(self.classes)} classes.")
        if self.boxes is not None and self.boxes.shape != (count, 4):
            raise InputError(f"{self.root}: there are {count} images, and the boxes are {self.boxes.shape}.")

    def _check_attributes(self) -> None:
        shape = (len(self.classes), len(self.attribute_names))
        if self.attributes.shape != shape:
            raise InputError(
                f"{self.root}: the attribute table is {self.attributes.shape}, but there are {shape[0]} classes "
                f"and {shape[1]} attribute names; give every class one row with one value per attribute."
            )
        if self.attributes.dtype.kind not in "fiub":
            raise InputError(f"{self.root}: the attributes are of type {self.attributes.dtype}; they must be numbers.")
        if not np.isfinite(self.attributes).all():
            row, column = np.argwhere(~np.isfinite(self.attributes))[0]
            raise InputError(
                f"{self.root}: attribute '{self.attribute_names[column]}' of class '{self.classes[row]}' is "
                f"{self.attributes[row, column]}; every attribute must be a finite number."
            )
        for name, row in zip(self.classes, self.attributes, strict=True):
            check_attribute_row(row, name, f"{self.root}: ")

    def _check_splits(self) -> None:
        for name in ("train", "test_unseen"):
            if getattr(self, name).size == 0:
                raise InputError(f"{self.root}: no image is in the split '{name}'; it needs at least one.")
        self._check_rows()
        both = np.intersect1d(self.seen, self.unseen)
        if both.size:
            raise InputError(
                f"{self.root}: class '{self.classes[both[0]]}' is both seen (it has training images) and unseen "
                "(it has images in test_unseen); put all of its images on one side."
            )
        foreign = np.setdiff1d(self.labels[self.test_seen], self.seen)
        if foreign.size:
            raise InputError(
                f"{self.root}: class '{self.classes[foreign[0]]}' has images in test_seen but none in train; "
                "move some to train or all to test_unseen."
            )
        for number, fold in enumerate(self.folds):
            self._check_fold(number, fold)

    def _check_rows(self) -> None:
        """Every split counts existing images, each of them in one split, once."""
        rows = np.concatenate([self.train, self.test_seen, self.test_unseen])
        outside = rows[(rows < 0) | (rows >= len(self.image_paths))]
        if outside.size:
            raise InputError(
                f"{self.root}: a split counts image {outside[0] + 1}, but there are {len(self.image_paths)} images."
            )
        numbers, counts = np.unique(rows, return_counts=True)
        if (counts > 1).any():
            row = int(numbers[counts > 1][0])
            splits = [
                name for name in ("train", "test_seen", "test_unseen") for own in getattr(self, name) if own == row
            ]
            raise InputError(
                f"{self.root}: image {row + 1}, '{self.image_paths[row]}', is in {' and in '.join(splits)}; an image "
                "belongs to one split, once."
            )

    def _check_fold(self, number: int, fold: Fold) -> None:
        """Validation classes are seen classes that the fold does not train on."""
        both = np.intersect1d(fold.train, fold.val)
        if both.size:
            raise InputError(
                f"{self.root}: class '{self.classes[both[0]]}' is a training and a validation class of fold {number}, "
                "which would choose sigma and delta on classes that it was trained on."
            )
        if not fold.train.size or not fold.val.size:
            raise InputError(f"{self.root}: fold {number} needs a training class and a validation class at least.")

    @cached_property
    def seen(self) -> IntArray:
        """Classes with training images, in ascending order."""
        return np.unique(self.labels[self.train])

    @cached_property
    def unseen(self) -> IntArray:
        """Classes met at test only, in ascending order."""
        return np.unique(self.labels[self.test_unseen])

    @cached_property
    def unit_attributes(self) -> FloatArray:
        """phi(y): attribute rows of length 1."""
        norms = np.linalg.norm(self.attributes, axis=1, keepdims=True)
        return (self.attributes / norms).astype(np.float32)

    def fingerprint(self) -> str:
        """Eight characters that change with the images' names, classes, attributes, splits and folds."""
        digest = hashlib.sha256("\n".join((*self.classes, *self.attribute_names, *self.image_paths)).encode())
        for array in (self.attributes, self.labels, self.train, self.test_seen, self.test_unseen):
            digest.update(np.ascontiguousarray(array).tobytes())
        for fold in self.folds:
            digest.update(f"fold of {len(fold.train)}".encode() + fold.train.tobytes() + fold.val.tobytes())
        return digest.hexdigest()[:8]

    def fold(self, number: int, holdout: float = 0.2, seed: int = 0) -> ZeroShotDataset:
        """This dataset with validation classes in the place of the unseen ones; test images are not in it.

        A share `holdout` of the images of the remaining seen classes plays the part of test_seen.
        """
        if type(number) is not int or not 0 <= number < len(self.folds):
            raise InputError(f"{self.root}: there is no validation fold {shorten(number)}; it has {len(self.folds)}.")
        fold = self.folds[number]
        rows = self.train[np.isin(self.labels[self.train], fold.train)]
        train, held_out = hold_out(rows, self.labels, holdout, seed)
        return replace(
            self,
            name=f"{self.name}-fold{number}",
            train=train,
            test_seen=held_out,
            test_unseen=self.train[np.isin(self.labels[self.train], fold.val)],
            folds=(),
        )

    def validation(self, folds: int | None = None, seed: int = 0) -> tuple[ZeroShotDataset, ...]:
        """The first so many folds; by default as many as hold `ENOUGH_CLASSES` validation classes together.

        Raises:
            InputError: There are fewer folds than were asked for, or none.
        """
        if not self.folds:
            raise InputError(
                f"{self.root} has no validation folds (too few seen classes, or no lists of them); set --model.sigma "
                "and --model.delta, or give the lists (docs/datasets.md)."
            )
        if folds is not None and (type(folds) is not int or folds < 1):
            raise InputError(f"{self.root}: folds is {shorten(folds)}; it must be a whole number, 1 or more.")
        if folds is None:
            together = np.cumsum([len(fold.val) for fold in self.folds])
            folds = min(int((together < ENOUGH_CLASSES).sum()) + 1, len(self.folds))
        if folds > len(self.folds):
            raise InputError(f"{self.root} has {len(self.folds)} validation folds; evaluation.folds is {folds}.")
        return tuple(self.fold(number, seed=seed) for number in range(folds))


def hold_out(rows: IntArray, labels: IntArray, share: float, seed: int) -> tuple[IntArray, IntArray]:
    """Part `rows` into (the rest, held out), class by class; of each class one image at least is in the rest."""
    random = np.random.default_rng(seed)
    rest: list[IntArray] = []
    held_out: list[IntArray] = []
    for label in np.unique(labels[rows]):
        own = random.permutation(rows[labels[rows] == label])
        count = min(round(len(own) * share), len(own) - 1)
        held_out.append(own[:count])
        rest.append(own[count:])
    return np.sort(np.concatenate(rest)), np.sort(np.concatenate(held_out))


def draw_folds(seen: IntArray, count: int = 3, share: float = 0.25, seed: int = 0) -> tuple[Fold, ...]:
    """Folds for a dataset that brings none: each holds out `share` of the seen classes, at least two, and no class is
    held out twice.
    """
    if len(seen) < 4:
        return ()
    size = max(2, round(len(seen) * share))
    order = np.random.default_rng(seed).permutation(seen)
    held_out = [np.sort(order[start : start + size]) for start in range(0, min(count * size, len(seen)), size)]
    return tuple(Fold(train=np.setdiff1d(seen, val), val=val) for val in held_out if len(val) == size)
