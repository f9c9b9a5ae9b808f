"""The classes that a classifier chooses from, by their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.dataset import check_attribute_row
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

    def phi(self) -> Tensor:
        """Rows of length 1, [C, A]."""
        norms = np.linalg.norm(self.attributes, axis=1, keepdims=True)
        return torch.from_numpy((self.attributes / norms).astype(np.float32))

    def select(self, candidates: Candidates) -> ClassTable:
        """The unseen classes, all of them, or those named."""
        if not candidates or (isinstance(candidates, str) and candidates not in ("unseen", "all")):
            raise InputError(f"candidates are 'unseen', 'all' or a list of names, not {candidates!r}.")
        if candidates == "all":
            return self
        if candidates == "unseen":
            rows = np.flatnonzero(~self.seen)
        else:
            unknown = [name for name in candidates if name not in self.names]
            if unknown:
                raise InputError(f"there is no class '{unknown[0]}'; add it with its attributes first.")
            rows = np.array([self.names.index(name) for name in candidates])
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            attributes=self.attributes[rows],
            seen=self.seen[rows],
        )

    def add(self, attributes: Mapping[str, Attributes]) -> ClassTable:
        """With more classes, unseen ones: a list in the table's order, or name to value (others 0)."""
        rows = [self._row(name, given) for name, given in attributes.items()]
        return replace(
            self,
            names=(*self.names, *attributes),
            attributes=np.vstack([self.attributes, *rows]),
            seen=np.concatenate([self.seen, np.zeros(len(rows), dtype=bool)]),
        )

    def _row(self, name: str, given: Attributes) -> np.ndarray:
        if name in self.names:
            raise InputError(f"class '{name}' is known already.")
        known = self.attribute_names
        wrong = [key for key in given if key not in known] if isinstance(given, Mapping) else []
        if wrong:
            raise InputError(f"class '{name}': there is no attribute '{wrong[0]}'.")
        row = [given.get(key, 0.0) for key in known] if isinstance(given, Mapping) else given
        values = np.asarray(row, dtype=float)
        if values.shape != (len(known),):
            raise InputError(f"class '{name}': it needs {len(known)} values, one for each attribute.")
        check_attribute_row(values, name)
        return values.astype(np.float32)
