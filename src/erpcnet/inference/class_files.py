"""Classes from a table, as people keep them: a CSV file like attributes.csv."""

from __future__ import annotations

from pathlib import Path

from erpcnet.data.folder import read_attributes
from erpcnet.data.tables import closest
from erpcnet.errors import InputError
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.utils.files import as_path


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
    classes, names, values = read_attributes(as_path(path, "the table of classes"))
    known = classifier.classes.attribute_names
    unknown = [name for name in names if name not in known]
    if unknown:
        near = closest(unknown[0], known) or "; the run knows the attributes that it was trained with."
        raise InputError(f"{path}: there is no attribute '{unknown[0]}'{near}")
    rows = {name: dict(zip(names, row.tolist(), strict=True)) for name, row in zip(classes, values, strict=True)}
    classifier.add_classes(rows)
    return tuple(rows)
