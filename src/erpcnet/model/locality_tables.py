"""Every locality of every image, computed once: with Stage I frozen an image has only as many as the grid has cells."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from erpcnet.memory import free_gpu_memory
from erpcnet.model.network import ERPCNet
from erpcnet.model.walk import ParallelLocalities
from erpcnet.progress import bar

Place = Literal["device", "memory", "file"]
ROOM = 0.5  # of what is free, the share that a table may take: those who walk need some too
FETCHED = 256  # images whose descriptors are fetched at once from a table that lies elsewhere


class Images(Protocol):
    """A batch: `images` [N, 3, H, W], and `rows` [N], where they stand in their dataset."""

    @property
    def images(self) -> Tensor: ...

    @property
    def rows(self) -> Tensor: ...


@dataclass(frozen=True)
class LocalityTable:
    """e_g [R, D], a_g [R, A], descriptors [R, cells, F], beta [R, cells], localities e_l [R, cells, D].

    `rows` [R] says which instance of the dataset a row is a view of, and where it lies, walks take place. Descriptors
    and localities lie at `place`: elsewhere, if they are too large for that.
    """

    embedding: Tensor
    attributes: Tensor
    descriptors: Tensor
    beta: Tensor
    localities: Tensor
    rows: Tensor
    place: Place = "device"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def at_hand(self) -> bool:
        """Whether all of it lies where walks take place, in memory."""
        return self.place == "device" or (self.place == "memory" and self.rows.device.type == "cpu")

    def parts(self, size: int) -> Iterator[Tensor]:
        """Places [M] to walk over together: `size` at a time, or fewer, so that no large part of a table that lies
        elsewhere is fetched at once.
        """
        places = torch.arange(len(self), device=self.rows.device)
        for some in places.split(size):
            yield from (some,) if self.at_hand else some.split(FETCHED)

    def take(self, places: Tensor) -> TableLocalities:
        """Some rows of the table, to walk over."""
        return TableLocalities(self, places)

    def recall(self, places: Tensor, cells: Tensor) -> tuple[Recalled, Recalled]:
        """What the policy saw on walks from `places` [N] over `cells` [N, T], fetched only when rows of it are asked
        for: states e_g, e_l,1, ... [N, T, D], and descriptors [N, cells, F].
        """

        def states(rows: Tensor) -> Tensor:
            at, before = places[rows], cells[rows, :-1]
            looked_at = _fetch(self.localities, at[:, None].expand_as(before), before)
            return torch.cat([self.embedding[at][:, None], looked_at], dim=1).float()

        return Recalled(states), Recalled(lambda rows: _fetch(self.descriptors, places[rows]))


class Recalled:
    """Rows of something too large to hold, computed when they are asked for as if it were a tensor."""

    def __init__(self, rows: Callable[[Tensor], Tensor]) -> None:
        self._rows = rows

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self._rows(rows)


class TableLocalities:
    """Localities looked up; see `erpcnet.model.walk.Localities`."""

    def __init__(self, table: LocalityTable, places: Tensor) -> None:
        self._table, self._places = table, places
        self.embedding, self.attributes = table.embedding[places], table.attributes[places]
        self.descriptors, self.beta = _fetch(table.descriptors, places), table.beta[places]
        self.rows = table.rows[places]

    def look(self, rows: Tensor, cells: Tensor) -> Tensor:
        return _fetch(self._table.localities, self._places[rows], cells)


def _fetch(values: Tensor, *index: Tensor) -> Tensor:
    """values[index], where the index lies."""
    return values[tuple(one.to(values.device) for one in index)].to(index[0].device)


@torch.inference_mode()
def build_table(
    network: ERPCNet, batches: Iterable[Images], count: int, what: str = "Localities", place: Place | None = None
) -> LocalityTable:
    """Run the frozen network once over `batches` of `count` images in all, every cell of every image.

    What is large goes to `place`; unless that is given, to the first of device, memory and a file that has room.
    """
    network.eval()
    table: LocalityTable | None = None
    filled = 0
    with bar(what, count) as advance:
        for batch in batches:
            found = ParallelLocalities(network, batch.images)
            if table is None:
                table = _empty_table(found, count, place)
            part = slice(filled, filled + len(batch.rows))
            for name in ("embedding", "attributes", "descriptors", "beta", "localities"):
                getattr(table, name)[part] = getattr(found, name)
            table.rows[part] = batch.rows.to(table.rows.device)
            filled += len(batch.rows)
            advance(len(batch.rows))
    if table is None or filled != count:
        raise ValueError(f"there were {filled} images, not {count}")
    return table


def _empty_table(found: ParallelLocalities, count: int, place: Place | None) -> LocalityTable:
    large, device = (found.descriptors, found.localities), found.embedding.device
    place = place or roomy_place(sum(count * one[0].nbytes for one in large), device)
    descriptors, localities = (_empty(one, count, place) for one in large)
    embedding, attributes, beta = (
        _empty(one, count, "device") for one in (found.embedding, found.attributes, found.beta)
    )
    rows = torch.empty(count, dtype=torch.long, device=device)
    return LocalityTable(embedding, attributes, descriptors, beta, localities, rows, place)


def roomy_place(needed: int, device: torch.device) -> Place:
    """Where so many bytes may lie."""
    if device.type == "cuda" and needed <= ROOM * free_gpu_memory(device):
        return "device"
    return "memory" if needed <= ROOM * psutil.virtual_memory().available else "file"


def _empty(like: Tensor, count: int, place: Place) -> Tensor:
    """Room for `count` rows like those of a tensor."""
    shape = (count, *like.shape[1:])
    if place == "device":
        return like.new_empty(shape)
    if place == "memory":
        return torch.empty(shape, dtype=like.dtype)
    # Without a name: it is gone with the last tensor that reads it.
    with tempfile.TemporaryFile() as file:
        return torch.from_numpy(np.memmap(file, np.dtype(str(like.dtype).removeprefix("torch.")), "w+", shape=shape))
