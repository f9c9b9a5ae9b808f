"""The classes that a classifier chooses from, by their attributes."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.dataset import check_attribute_row, check_names
from erpcnet.errors import InputError

Candidates = Literal["unseen", "all"] | Sequence[str]
Attributes = Sequence[float] | Mapping[str, float]
NEVER = np.iinfo(np.int64).max
# Of a row: from which moment on it is gone, where it stands among others, the row that its class had before, its kind.
MARKS = np.dtype([("gone", np.int64), ("place", np.int64), ("before", np.int64), ("seen", np.bool_)])
SPARE = 64  # rows that may be gone, whatever the number of classes


class _Rows:
    """The rows of a table and of all tables that came of it by changes, each of which is a moment.

    Rows are added behind the others or marked as gone from a moment on, and never overwritten: what a table sees stays
    as it is while others go on, which needs no lock. Only the latest moment can be gone on from.

    Args:
        names: [C], those of the first table.
        attributes: [C, A].
        seen: [C].

    Attributes:
        lock: Held by whoever goes on.
        moment: The latest; none while somebody goes on.
        count: How many rows have come so far.
    """

    def __init__(self, names: Sequence[str], attributes: np.ndarray, seen: np.ndarray) -> None:
        self.lock, self.moment, self.count = threading.Lock(), 0, len(names)
        self._names, self._values = list(names), attributes
        self._numbers = {name: row for row, name in enumerate(names)}  # each the latest of its name
        self._marks = np.empty(len(names), MARKS)
        self._marks["gone"], self._marks["place"], self._marks["before"] = NEVER, np.arange(len(names)), -1
        self._marks["seen"] = seen

    def find(self, name: str, moment: int, count: int) -> int:
        """The row of a class at a moment by which so many had come; -1 if there was none."""
        row = self._numbers.get(name, -1)
        marks = self._marks
        while row >= 0 and not (row < count and moment < marks["gone"][row]):
            row = int(marks["before"][row])
        return row

    def at(self, moment: int, count: int) -> np.ndarray:
        """The rows of all classes at a moment by which so many had come, in the classes' order."""
        marks = self._marks[:count]
        rows = np.flatnonzero(moment < marks["gone"])
        return rows[np.argsort(marks["place"][rows], kind="stable")]

    def names(self, rows: np.ndarray) -> tuple[str, ...]:
        return tuple(map(self._names.__getitem__, rows.tolist()))

    def values(self, rows: np.ndarray) -> np.ndarray:
        return self._values[rows]

    def seen(self, rows: np.ndarray) -> np.ndarray:
        return self._marks["seen"][rows]

    def go_on(self, gone: Collection[str], come: Mapping[str, np.ndarray]) -> None:
        """From the latest moment to the next; who goes on holds the lock.

        Args:
            gone: Names of classes that are there.
            come: New rows by their names. One that is gone at the same time keeps its place and its kind; others are
                unseen classes, behind those that are there.
        """
        self._make_room(len(come))
        moment, self.moment = self.moment, NEVER  # whoever is interrupted here leaves rows that nobody goes on from
        marks, count = self._marks, self.count
        left = [self._numbers[name] for name in gone]
        for row, (name, values) in enumerate(come.items(), start=count):
            before = self._numbers.get(name, -1)
            stays = name in gone
            self._values[row] = values
            marks[row] = (NEVER, marks["place"][before] if stays else row, before, stays and marks["seen"][before])
            self._names.append(name)
            self._numbers[name] = row
        marks["gone"][left] = moment + 1
        self.moment, self.count = moment + 1, count + len(come)

    def _make_room(self, more: int) -> None:
        needed, capacity = self.count + more, len(self._marks)
        if needed > capacity:
            self._marks, self._values = (
                _grown(array, max(needed, 2 * capacity)) for array in (self._marks, self._values)
            )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClassTable:
    """Classes by their attributes.

    A table stays as it is. A change gives another one, which shares the rows that are the same, and costs as much as it
    changes; a second change of the same table costs a copy.

    Args:
        names: [C].
        attributes: [C, A], raw values.
        seen: [C] bool, the classes that training had images of.
        attribute_names: [A].

    Raises:
        InputError: They do not fit together, or a class cannot be brought to length 1.

    Examples:
        >>> table = ClassTable(("zebra",), np.ones((1, 2), np.float32), np.array([True]), ("striped", "winged"))
        >>> table.add({"owl": {"winged": 1.0}}).names
        ('zebra', 'owl')
    """

    attribute_names: tuple[str, ...]
    _rows: _Rows
    _moment: int
    _count: int  # of the rows that had come by then
    _size: int

    def __init__(
        self, names: tuple[str, ...], attributes: np.ndarray, seen: np.ndarray, attribute_names: tuple[str, ...]
    ) -> None:
        for what, given in (("class", names), ("attribute", attribute_names)):
            check_names(given, what)
            if not given:
                raise InputError(f"there is no {what}; there must be one at least.")
        if attributes.shape != (len(names), len(attribute_names)) or attributes.dtype != np.float32:
            raise InputError(f"the attributes are {attributes.shape}; every class has a value of each attribute.")
        if seen.shape != (len(names),) or seen.dtype != np.bool_:
            raise InputError("every class is a seen or an unseen one.")
        for name, row in zip(names, attributes, strict=True):
            check_attribute_row(row, name)
        self._begin(names, attributes, seen, attribute_names)

    def _begin(
        self, names: tuple[str, ...], attributes: np.ndarray, seen: np.ndarray, attribute_names: tuple[str, ...]
    ) -> None:
        own = {"names": names, "attributes": attributes, "seen": seen, "attribute_names": attribute_names}
        rows = _Rows(names, attributes, seen)
        vars(self).update(own, _rows=rows, _moment=0, _count=len(names), _size=len(names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the classes, [C]."""
        return self._rows.names(self._own)

    @cached_property
    def attributes(self) -> np.ndarray:
        """Raw values, [C, A]."""
        return self._rows.values(self._own)

    @cached_property
    def seen(self) -> np.ndarray:
        """The classes that training had images of, [C] bool."""
        return self._rows.seen(self._own)

    @cached_property
    def _own(self) -> np.ndarray:
        return self._rows.at(self._moment, self._count)

    @cached_property
    def _known_attributes(self) -> frozenset[str]:
        return frozenset(self.attribute_names)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._row_of(name) >= 0

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassTable, (self.names, self.attributes, self.seen, self.attribute_names)

    def phi(self) -> Tensor:
        """Rows of length 1, [C, A]."""
        norms = np.linalg.norm(self.attributes, axis=1, keepdims=True)
        return torch.from_numpy((self.attributes / norms).astype(np.float32))

    def select(self, candidates: Candidates) -> ClassTable:
        """The unseen classes, all of them, or those named."""
        if isinstance(candidates, str):
            if candidates not in ("unseen", "all"):
                raise InputError(f"candidates are 'unseen', 'all' or a list of names, not {candidates[:60]!r}.")
            if candidates == "all":
                return self
            rows = self._own[~self.seen]
            if not len(rows):
                raise InputError("there is no unseen class; add one, or choose among 'all'.")
            return self._select(rows)
        names = _listed(candidates, "candidates are 'unseen', 'all' or a list of names")
        if not names:
            raise InputError("the list of candidates is empty; name a class, or give 'unseen' or 'all'.")
        return self._select(np.array(list(dict.fromkeys(map(self._find, names)))))

    def add(self, attributes: Mapping[str, Attributes]) -> ClassTable:
        """With more classes, unseen ones: a list in the table's order, or name to value (others 0)."""
        if not isinstance(attributes, Mapping):
            raise InputError("new classes are given as {name: attributes}.")
        return self._then((), {name: self._new_row(name, given) for name, given in attributes.items()})

    def change(self, name: str, attributes: Attributes) -> ClassTable:
        """With other attributes for one class; those that a mapping does not name stay as they are."""
        row = self._find(name)
        if isinstance(attributes, Mapping):
            self._check_attributes(name, attributes)
            before = self._rows.values(np.array(row)).tolist()
            attributes = {**dict(zip(self.attribute_names, before, strict=True)), **attributes}
        return self._then((name,), {name: self._values(name, attributes)})

    def remove(self, names: Sequence[str]) -> ClassTable:
        """Without some classes; one at least stays."""
        gone = {str(name): self._find(name) for name in _listed(names, "classes to remove are a list of names")}
        if len(gone) == len(self):
            raise InputError("one class at least has to stay.")
        return self._then(gone, {})

    def _then(self, gone: Collection[str], come: Mapping[str, np.ndarray]) -> ClassTable:
        """Another table, on the same rows; on rows of its own, if another has gone on or most of them are gone."""
        rows = self._rows
        with rows.lock:
            if rows.moment == self._moment and rows.count <= 2 * len(self) + SPARE:
                rows.go_on(gone, come)
                table, size = ClassTable.__new__(ClassTable), len(self) - len(gone) + len(come)
                own = {"attribute_names": self.attribute_names, "_known_attributes": self._known_attributes}
                vars(table).update(own, _rows=rows, _moment=rows.moment, _count=rows.count, _size=size)
                return table
        return self._take(self.names, self.attributes, self.seen)._then(gone, come)

    def _take(self, names: tuple[str, ...], attributes: np.ndarray, seen: np.ndarray) -> ClassTable:
        """A table of rows that are known to be right."""
        table = ClassTable.__new__(ClassTable)
        table._begin(names, attributes, seen, self.attribute_names)
        return table

    def _select(self, rows: np.ndarray) -> ClassTable:
        found = self._rows
        return self._take(found.names(rows), found.values(rows), found.seen(rows))

    def _row_of(self, name: str) -> int:
        return self._rows.find(name, self._moment, self._count)

    def _find(self, name: object) -> int:
        if not isinstance(name, str) or name not in self:
            shown = str(name)[:60]
            close = difflib.get_close_matches(shown, self.names, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else "; add it with its attributes first."
            raise InputError(f"there is no class '{shown}'{hint}")
        return self._row_of(name)

    def _new_row(self, name: str, given: Attributes) -> np.ndarray:
        check_names([name], "class")
        if name in self:
            raise InputError(f"class '{name}' is known already.")
        return self._values(name, given)

    def _check_attributes(self, name: str, given: Mapping[str, float]) -> None:
        wrong = [key for key in given if key not in self._known_attributes]
        if wrong:
            close = difflib.get_close_matches(str(wrong[0])[:60], self.attribute_names, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else "."
            raise InputError(f"class '{name}': there is no attribute '{str(wrong[0])[:60]}'{hint}")

    def _values(self, name: str, given: Attributes) -> np.ndarray:
        """A row of the table."""
        known = self.attribute_names
        if isinstance(given, Mapping):
            self._check_attributes(name, given)
            given = [given.get(key, 0.0) for key in known]
        try:
            numeric = not isinstance(given, str) and all(isinstance(one, int | float | np.number) for one in given)
            values = np.asarray(given, dtype=float) if numeric else np.empty(0)
        except (TypeError, ValueError, OverflowError):
            values = np.empty(0)
        if values.shape != (len(known),):
            raise InputError(f"class '{name}': it needs {len(known)} numbers, one for each attribute.")
        check_attribute_row(values, name)
        row = values.astype(np.float32)
        check_attribute_row(row, name)  # rounded, it may lie beyond what is allowed
        return row


def _listed(names: object, what: str) -> list[object]:
    """Names of classes; one alone is a list of one."""
    if isinstance(names, str):
        return [names]
    single = isinstance(names, bytes) or (isinstance(names, np.ndarray) and not names.ndim)
    if single or not isinstance(names, Iterable):
        raise InputError(f"{what}, not {type(names).__name__}.")
    return list(names)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    """A copy with room for more rows."""
    larger = np.empty((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
