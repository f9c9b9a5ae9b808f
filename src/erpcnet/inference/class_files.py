"""Classes from a table, as people keep them: a CSV file like attributes.csv."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erpcnet.data.folder import read_attributes
from erpcnet.data.tables import closest
from erpcnet.errors import InputError
from erpcnet.utils.files import as_path

if TYPE_CHECKING:
    from erpcnet.inference.classifier import ZeroShotClassifier


def read_classes(path: str | Path, known: Sequence[str]) -> dict[str, dict[str, float]]:
    """The classes of a table with their attributes, all of which must be `known`."""
    classes, names, values = read_attributes(as_path(path, "the table of classes"))
    unknown = [name for name in names if name not in known]
    if unknown:
        near = closest(unknown[0], known) or "; the run knows the attributes that it was trained with."
        raise InputError(f"{path}: there is no attribute '{unknown[0]}'{near}")
    return {name: dict(zip(names, row.tolist(), strict=True)) for name, row in zip(classes, values, strict=True)}


def choose_from(classifier: ZeroShotClassifier, path: str | Path) -> list[str]:
    """The names of a table's classes, to choose among; those that are not known yet are made known."""
    rows = read_classes(path, classifier.classes.attribute_names)
    classifier.add_classes({name: row for name, row in rows.items() if name not in classifier.classes})
    return list(rows)


def add_classes_from(classifier: ZeroShotClassifier, path: str | Path) -> tuple[str, ...]:
    """Make the classes of a table known.

    Args:
        classifier: Whose classes are added to.
        path: A CSV file with the columns `class` and any of the run's attributes; those that are left out are 0.

    Returns:
        The names of the classes.

    Raises:
        InputError: A class is known already, or an attribute is not.

    Examples:
        >>> add_classes_from(model, "new.csv")
    """
    rows = read_classes(path, classifier.classes.attribute_names)
    classifier.add_classes(rows)
    return tuple(rows)
