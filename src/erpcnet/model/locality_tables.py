"""Locality tables: every locality of every image, computed once.

With Stage I frozen an image has only as many localities as the grid has cells, so rollouts become look-ups.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from erpcnet.model.localities import ParallelLocalities
from erpcnet.model.network import ERPCNet
from erpcnet.utils.memory import free_gpu_memory
from erpcnet.utils.processes import Share
from erpcnet.utils.progress import bar

Place = Literal["device", "memory", "file"]
MEMORY_SHARE = 0.5  # of what is free, the share that a table may take: rollouts need some too
FILLED = ("e_g", "a_g", "descriptors", "beta", "e_l")
FETCH_SIZE = 256  # images whose descriptors are fetched at once from a table that lies elsewhere


class Images(Protocol):
    """A batch: `images` [N, 3, H, W], and `rows` [N], where they stand in their dataset."""

    @property
    def images(self) -> Tensor: ...

    @property
    def rows(self) -> Tensor: ...


@dataclass(frozen=True)
class LocalityTable:
    """The localities of N images, each in K crops.

    Attributes:
        e_g: [K, N, D].
        a_g: [K, N, A].
        descriptors: [K, N, cells, F].
        beta: [K, N, cells].
        e_l: [K, N, cells, D].
        rows: [N], which instance of the dataset each image is; where it lies, rollouts take place.
        place: Where descriptors and e_l lie: elsewhere, if they are too large for that.
    """

    e_g: Tensor
    a_g: Tensor
    descriptors: Tensor
    beta: Tensor
    e_l: Tensor
    rows: Tensor
    place: Place = "device"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def crops(self) -> int:
        """K."""
        return self.e_g.shape[0]

    @property
    def in_memory(self) -> bool:
        """Whether all of it lies where rollouts take place, in memory."""
        return self.place == "device" or (self.place == "memory" and self.rows.device.type == "cpu")

    def batches(self) -> Iterator[Tensor]:
        """Images [M] to roll out together: all, or so few that no large part of a table that lies elsewhere is fetched
        at once.
        """
        return iter(torch.arange(len(self), device=self.rows.device).split(len(self) if self.in_memory else FETCH_SIZE))

    def take(self, crop: Tensor, images: Tensor) -> TableLocalities:
        """Some images [M], each in one of its crops [M], to roll out."""
        return TableLocalities(self, crop, images)

    def localities(self, crop: Tensor, images: Tensor, cells: Tensor) -> Tensor:
        """e_l [..., D] of cells [...] of images [...], each in one of its crops [...]; they may be broadcast."""
        which = torch.broadcast_tensors(crop, images, cells)
        return _fetch(self.e_l, *which)

    def reload(self, crop: Tensor, images: Tensor, cells: Tensor) -> tuple[LazyRows, LazyRows]:
        """What the policy saw on rollouts over `cells` [M, T], fetched only when rows of it are asked for: states e_g,
        e_l,1, ... [M, T, D], and descriptors [M, cells, F].
        """

        def states(rows: Tensor) -> Tensor:
            which, before = (crop[rows], images[rows]), cells[rows, :-1]
            e_l = _fetch(self.e_l, *(one[:, None].expand_as(before) for one in which), before)
            return torch.cat([self.e_g[which][:, None], e_l], dim=1).float()

        return LazyRows(states), LazyRows(lambda rows: _fetch(self.descriptors, crop[rows], images[rows]))


class LazyRows:
    """Rows of something too large to hold, computed when they are asked for as if it were a tensor."""

    def __init__(self, rows: Callable[[Tensor], Tensor]) -> None:
        self._rows = rows

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self._rows(rows)


class TableLocalities:
    """Localities looked up; see `erpcnet.model.localities.Localities`."""

    def __init__(self, table: LocalityTable, crop: Tensor, images: Tensor) -> None:
        self._table, self._crop, self._images = table, crop, images
        self.e_g, self.a_g = table.e_g[crop, images], table.a_g[crop, images]
        self.descriptors, self.beta = _fetch(table.descriptors, crop, images), table.beta[crop, images]
        self.rows = table.rows[images]

    def embed(self, rows: Tensor, cells: Tensor) -> Tensor:
        return _fetch(self._table.e_l, self._crop[rows], self._images[rows], cells)


def _fetch(values: Tensor, *index: Tensor) -> Tensor:
    """values[index], where the index lies."""
    return values[tuple(one.to(values.device) for one in index)].to(index[0].device)


@torch.inference_mode()
def build_table(
    network: ERPCNet,
    crops: Iterable[Iterable[Images]],
    shape: tuple[int, int],
    description: str = "Localities",
    place: Place | None = None,
    share: Share | None = None,
) -> LocalityTable:
    """Run the frozen network once over every cell of every image.

    Args:
        network: With `Stage I` behind it.
        crops: For each of the K crops the batches of all N images, in the same order.
        shape: (K, N).
        description: Of the progress bar.
        place: Where what is large goes; by default the first of device, memory and a file that has room.
        share: Of several processes, which one this is: each computes some of the batches, and gets the others'.
    """
    network.eval()
    share = share or Share()
    table: LocalityTable | None = None
    filled, parts = [0] * shape[0], list[tuple[int, slice]]()
    with bar(description, shape[0] * shape[1]) as advance:
        for crop, batches in enumerate(crops):
            for batch in batches:
                part = slice(filled[crop], filled[crop] + len(batch.rows))
                if table is None or share.owns(len(parts)):  # the first batch says how large the table is
                    found = ParallelLocalities(network, batch.images)
                    table = table or _empty_table(found, shape, place)
                    for name in FILLED:
                        getattr(table, name)[crop, part] = getattr(found, name)
                table.rows[part] = batch.rows.to(table.rows.device)
                filled[crop] += len(batch.rows)
                parts.append((crop, part))
                advance(len(batch.rows))
    if table is None or filled != [shape[1]] * shape[0]:
        raise ValueError(f"there were {filled} images, not {shape[1]} in each of {shape[0]} crops")
    for number, (crop, part) in enumerate(parts):
        for name in FILLED:
            share.tell(getattr(table, name)[crop, part], number, table.e_g.device)
    return table


class TableCrop(NamedTuple):
    """Images [N] of a table, in one of its crops."""

    table: LocalityTable
    crop: int
    images: Tensor


@torch.inference_mode()
def gather_table(network: ERPCNet, crops: Sequence[TableCrop]) -> LocalityTable:
    """A table of rows of others, for a network that makes the same embeddings, and a_g of its own.

    Args:
        network: Whose global predictor is used.
        crops: Where each crop of the new table comes from: the same N images of the dataset.
    """
    network.eval()
    first = crops[0]
    shape = len(crops), len(first.images)
    one = first.table
    cells = sum(tensor[0, :1].nbytes for tensor in (one.descriptors, one.e_l))
    place = choose_place(shape[0] * shape[1] * cells, one.e_g.device)
    e_g, beta = (_empty(tensor[0, :1], shape, "device") for tensor in (one.e_g, one.beta))
    descriptors, e_l = (_empty(tensor[0, :1], shape, place) for tensor in (one.descriptors, one.e_l))
    a_g = e_g.new_empty(*shape, one.a_g.shape[-1])
    for number, (table, crop, images) in enumerate(crops):
        for part, own in zip(torch.arange(shape[1]).split(FETCH_SIZE), images.split(FETCH_SIZE), strict=True):
            which = slice(int(part[0]), int(part[-1]) + 1)
            e_g[number, which] = table.e_g[crop, own]
            a_g[number, which] = network.global_predictor(table.e_g[crop, own])
            beta[number, which] = table.beta[crop, own]
            for new, old in ((descriptors, table.descriptors), (e_l, table.e_l)):
                new[number, which] = old[crop, own.to(old.device)].to(new.device)
    return LocalityTable(e_g, a_g, descriptors, beta, e_l, one.rows[first.images], place)


def _empty_table(found: ParallelLocalities, shape: tuple[int, int], place: Place | None) -> LocalityTable:
    large, device = (found.descriptors, found.e_l), found.e_g.device
    place = place or choose_place(sum(shape[0] * shape[1] * one[0].nbytes for one in large), device)
    descriptors, e_l = (_empty(one, shape, place) for one in large)
    e_g, a_g, beta = (_empty(one, shape, "device") for one in (found.e_g, found.a_g, found.beta))
    rows = torch.empty(shape[1], dtype=torch.long, device=device)
    return LocalityTable(e_g, a_g, descriptors, beta, e_l, rows, place)


def choose_place(size: int, device: torch.device) -> Place:
    """Where so many bytes may lie."""
    if device.type == "cuda" and size <= MEMORY_SHARE * free_gpu_memory(device):
        return "device"
    return "memory" if size <= MEMORY_SHARE * psutil.virtual_memory().available else "file"


def _empty(like: Tensor, shape: tuple[int, int], place: Place) -> Tensor:
    """Room for rows like those of a tensor."""
    shape = (*shape, *like.shape[1:])
    if place == "device":
        return like.new_empty(shape)
    if place == "memory":
        return torch.empty(shape, dtype=like.dtype)
    # Without a name: it is gone with the last tensor that reads it.
    with tempfile.TemporaryFile() as file:
        return torch.from_numpy(np.memmap(file, np.dtype(str(like.dtype).removeprefix("torch.")), "w+", shape=shape))
