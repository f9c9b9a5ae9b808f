"""The classes that a classifier chooses from, by their attributes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.dataset import check_attribute_row, check_names
from erpcnet.errors import InputError

Candidates = Literal["unseen", "all"] | Sequence[str]
Attributes = Sequence[float] | Mapping[str, float]


@dataclass(frozen=True)
class ClassTable:
    """Classes by their attributes.

    Attributes:
        names: [C].
        attributes: [C, A], raw values.
        seen: [C] bool, the classes that training had images of.
        attribute_names: [A].
    """

    names: tuple[str, ...]
    attributes: np.ndarray
    seen: np.ndarray
    attribute_names: tuple[str, ...]

    def __post_init__(self) -> None:
        for what, names in (("class", self.names), ("attribute", self.attribute_names)):
            check_names(names, what)
            if not names:
                raise InputError(f"there is no {what}; there must be one at least.")
        if self.attributes.shape != (len(self.names), len(self.attribute_names)) or self.attributes.dtype != np.float32:
            raise InputError(f"the attributes are {self.attributes.shape}; every class has a value of each attribute.")
        if self.seen.shape != (len(self.names),) or self.seen.dtype != np.bool_:
            raise InputError("every class is a seen or an unseen one.")
        for name, row in zip(self.names, self.attributes, strict=True):
            check_attribute_row(row, name)

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
            rows = np.flatnonzero(~self.seen)
            if not len(rows):
                raise InputError("there is no unseen class; add one, or choose among 'all'.")
            return self._take(rows)
        names = _listed(candidates, "candidates are 'unseen', 'all' or a list of names")
        if not names:
            raise InputError("the list of candidates is empty; name a class, or give 'unseen' or 'all'.")
        return self._take(np.array(list(dict.fromkeys(map(self._find, names)))))

    def add(self, attributes: Mapping[str, Attributes]) -> ClassTable:
        """With more classes, unseen ones: a list in the table's order, or name to value (others 0)."""
        if not isinstance(attributes, Mapping):
            raise InputError("new classes are given as {name: attributes}.")
        rows = [self._row(name, given) for name, given in attributes.items()]
        return replace(
            self,
            names=(*self.names, *attributes),
            attributes=np.vstack([self.attributes, *rows]),
            seen=np.concatenate([self.seen, np.zeros(len(rows), dtype=bool)]),
        )

    def change(self, name: str, attributes: Attributes) -> ClassTable:
        """With other attributes for one class; those that a mapping does not name stay as they are."""
        place = self._find(name)
        if isinstance(attributes, Mapping):
            own = dict(zip(self.attribute_names, self.attributes[place].tolist(), strict=True))
            self._check_attributes(name, attributes)
            attributes = {**own, **attributes}
        changed = self.attributes.copy()
        changed[place] = self._values(name, attributes)
        return replace(self, attributes=changed)

    def remove(self, names: Sequence[str]) -> ClassTable:
        """Without some classes; one at least stays."""
        places = {self._find(name) for name in _listed(names, "classes to remove are a list of names")}
        if len(places) == len(self.names):
            raise InputError("one class at least has to stay.")
        return self._take(np.array([place for place in range(len(self.names)) if place not in places]))

    def _take(self, rows: np.ndarray) -> ClassTable:
        names = tuple(self.names[row] for row in rows)
        return replace(self, names=names, attributes=self.attributes[rows], seen=self.seen[rows])

    def _find(self, name: object) -> int:
        if not isinstance(name, str) or name not in self.names:
            shown = str(name)[:60]
            close = difflib.get_close_matches(shown, self.names, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else "; add it with its attributes first."
            raise InputError(f"there is no class '{shown}'{hint}")
        return self.names.index(name)

    def _row(self, name: str, given: Attributes) -> np.ndarray:
        check_names([name], "class")
        if name in self.names:
            raise InputError(f"class '{name}' is known already.")
        return self._values(name, given)

    def _check_attributes(self, name: str, given: Mapping[str, float]) -> None:
        wrong = [key for key in given if key not in self.attribute_names]
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
        return values.astype(np.float32)


def _listed(names: object, what: str) -> list[object]:
    """Names of classes; one alone is a list of one."""
    if isinstance(names, str):
        return [names]
    single = isinstance(names, bytes) or (isinstance(names, np.ndarray) and not names.ndim)
    if single or not isinstance(names, Iterable):
        raise InputError(f"{what}, not {type(names).__name__}.")
    return list(names)
