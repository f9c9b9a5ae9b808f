"""Batches from the cache: cropped, flipped and normalised on the training device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from erpcnet.data.cache import ImageCache
from erpcnet.data.dataset import IntArray
from erpcnet.data.settings import DataSettings
from erpcnet.data.views import Activity, centre_boxes, closer_boxes, random_boxes, take_views
from erpcnet.memory import free_gpu_memory
from erpcnet.model.preprocessing import Preprocessing

AHEAD = 3  # batches fetched before they are asked for
GPU_SHARE = 0.5  # of a GPU's free memory, what pixels may take: training needs the rest
CHUNK = 256  # images copied to it at once


@dataclass(frozen=True)
class Batch:
    """`images` [N, 3, size, size], and `rows` [N]: where the images stand in the dataset."""

    images: Tensor
    rows: Tensor


class Cuts(NamedTuple):
    """Which part of which image to show: rows [N] on the CPU; boxes [N, 4] and flip [N] on the device."""

    rows: Tensor
    boxes: Tensor
    flip: Tensor

    def take(self, part: slice) -> Cuts:
        return Cuts(self.rows[part], self.boxes[part], self.flip[part])

    def split(self, size: int) -> Iterator[Cuts]:
        """Batches of `size`; the last may be smaller."""
        return (self.take(slice(start, start + size)) for start in range(0, len(self.rows), size))

    def mirrored(self) -> Cuts:
        return self._replace(flip=~self.flip)


class ImageFeed:
    """Feeds the images of a cache; the pixels lie on the GPU if they leave enough of its memory to others.

    Args:
        cache: The decoded images.
        settings: How they are cut.
        preprocessing: How the backbone's weights want them; by default as is usual on ImageNet.
        device: Where training takes place.
    """

    def __init__(
        self,
        cache: ImageCache,
        settings: DataSettings,
        preprocessing: Preprocessing | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.settings, self.preprocessing = settings, preprocessing or Preprocessing()
        self._shapes = torch.from_numpy(cache.shapes)
        self._cache = cache
        self._resident: Tensor | None = None
        if self.device.type == "cuda" and cache.pixels.nbytes <= GPU_SHARE * free_gpu_memory(self.device):
            self._resident = _copy_to(self.device, cache.pixels)

    def epoch(
        self, rows: IntArray, batch_size: int, generator: torch.Generator, *, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Every row once in random order, as random views; the last, smaller batch is left out.

        `share` = (rank, processes): of every batch each process gets its own part.
        """
        order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
        # Drawn for the whole epoch at once, since a GPU would wait for many small steps; and by every process for all
        # rows, of which it keeps its own, so that one process and many see the same views.
        cuts = self._random_cuts(order[: self.batches(len(rows), batch_size) * batch_size], generator)
        own = slice(share[0], None, share[1])
        yield from self._ahead(batch.take(own) for batch in cuts.split(batch_size))

    def batches(self, count: int, batch_size: int) -> int:
        """How many batches an epoch over `count` rows has."""
        return max(1, count // batch_size)

    def plain(self, rows: IntArray, batch_size: int) -> Iterator[Batch]:
        """The rows in their order, as centre views; the last batch may be smaller."""
        yield from self._shown(self._centre_cuts(torch.from_numpy(rows)), batch_size)

    def at_test(self, rows: IntArray, batch_size: int, activity: Activity) -> Iterator[Batch]:
        """The rows in their order, in one view after the other: the centre view, a closer one of what is active in it,
        and the mirror images of both; as many of these as `test_views` says.
        """
        for cuts in self._cuts_at_test(torch.from_numpy(rows), batch_size, activity):
            yield from self._shown(cuts, batch_size)

    def views(self, rows: Tensor, augment: Tensor, generator: torch.Generator) -> Batch:
        """One batch of the rows [N], as random views where `augment` [N] says so and as centre views elsewhere."""
        random, centre = self._random_cuts(rows, generator), self._centre_cuts(rows)
        augment = augment.to(self.device)
        boxes = torch.where(augment[:, None], random.boxes, centre.boxes)
        return self._cut(Cuts(rows, boxes, random.flip & augment), self._pixels(rows))

    def augmented(self, rows: IntArray, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """The rows in their order, as random views; the last batch may be smaller."""
        yield from self._ahead(self._random_cuts(torch.from_numpy(rows), generator).split(batch_size))

    def _random_cuts(self, rows: Tensor, generator: torch.Generator) -> Cuts:
        boxes = random_boxes(self._shapes[rows], generator, self.settings.crop_scale)
        flip = torch.rand(len(rows), generator=generator) < self.settings.flip
        return Cuts(rows, boxes.to(self.device), flip.to(self.device))

    def _centre_cuts(self, rows: Tensor) -> Cuts:
        boxes = centre_boxes(self._shapes[rows], self.preprocessing.crop_share)
        return Cuts(rows, boxes.to(self.device), torch.zeros(len(rows), dtype=torch.bool, device=self.device))

    def _cuts_at_test(self, rows: Tensor, batch_size: int, activity: Activity) -> Iterator[Cuts]:
        usual = self._centre_cuts(rows)
        yield usual
        if self.settings.test_views > 1:
            closer = self._closer(usual, batch_size, activity)
            yield closer
            if self.settings.test_views > 2:
                yield usual.mirrored()
                yield closer.mirrored()

    def _closer(self, usual: Cuts, batch_size: int, activity: Activity) -> Cuts:
        found = torch.cat([activity(batch.images) for batch in self._shown(usual, batch_size)])
        return usual._replace(boxes=closer_boxes(found, usual.boxes, self._shapes[usual.rows].to(self.device)))

    def _shown(self, cuts: Cuts, batch_size: int) -> Iterator[Batch]:
        for batch in cuts.split(batch_size):
            yield self._cut(batch, self._pixels(batch.rows))

    def _ahead(self, batches: Iterable[Cuts]) -> Iterator[Batch]:
        """The views of each batch; pixels that are not on the device are fetched while it computes."""
        if self.device.type == "cpu":  # a thread would only take a core from the training
            for cuts in batches:
                yield self._cut(cuts, self._pixels(cuts.rows))
            return
        with ThreadPoolExecutor(max_workers=1) as worker:
            waiting: deque[tuple[Cuts, Future[Tensor]]] = deque()
            for cuts in batches:
                waiting.append((cuts, worker.submit(self._pixels, cuts.rows)))
                if len(waiting) > AHEAD:
                    cuts_then, pixels = waiting.popleft()
                    yield self._cut(cuts_then, pixels.result())
            for cuts_then, pixels in waiting:
                yield self._cut(cuts_then, pixels.result())

    def _cut(self, cuts: Cuts, pixels: Tensor) -> Batch:
        there = pixels.to(self.device, non_blocking=True)
        size, how = self.settings.image_size, self.preprocessing
        return Batch(take_views(there, cuts.boxes, size, cuts.flip, preprocessing=how), cuts.rows)

    def _pixels(self, rows: Tensor) -> Tensor:
        """uint8 pixels [N, 3, S, S]: on the device, or in memory that it can fetch by itself."""
        if self._resident is not None:
            return self._resident[rows.to(self.device)]
        pixels = torch.from_numpy(self._cache.pixels[rows.numpy()])
        return pixels.pin_memory() if self.device.type == "cuda" else pixels


def _copy_to(device: torch.device, pixels: npt.NDArray[np.uint8]) -> Tensor | None:
    """The pixels on a GPU, copied a few at a time; None if it turns out to have no room for them."""
    try:
        there = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return None
    for start in range(0, len(pixels), CHUNK):
        there[start : start + CHUNK] = torch.from_numpy(np.array(pixels[start : start + CHUNK])).to(device)
    return there
