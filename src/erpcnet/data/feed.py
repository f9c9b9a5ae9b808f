"""Batches from the cache: cropped, flipped and normalised on the training device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from erpcnet.data.cache import ImageCache
from erpcnet.data.dataset import IntArray
from erpcnet.data.views import centre_boxes, random_boxes, take_views

AHEAD = 3  # batches fetched before they are asked for


@dataclass(frozen=True)
class Batch:
    """`images` [N, 3, size, size], and `rows` [N]: where the images stand in the dataset."""

    images: Tensor
    rows: Tensor


class ImageFeed:
    """Feeds the images of a cache; the pixels lie on the device if they are allowed that much of its memory."""

    def __init__(
        self,
        cache: ImageCache,
        image_size: int,
        device: torch.device | str = "cpu",
        *,
        crop_scale: tuple[float, float] = (0.08, 1.0),
        flip: float = 0.5,
        centre: float = 0.875,
        on_device_gib: float = 32.0,
    ) -> None:
        self.device = torch.device(device)
        self.image_size, self.crop_scale, self.flip, self.centre = image_size, crop_scale, flip, centre
        self._shapes = torch.from_numpy(cache.shapes).to(self.device)
        self._cache = cache
        self._resident: Tensor | None = None
        if self.device.type == "cuda" and cache.pixels.nbytes <= on_device_gib * 2**30:
            self._resident = torch.from_numpy(np.array(cache.pixels)).to(self.device)

    def epoch(
        self, rows: IntArray, batch_size: int, generator: torch.Generator, *, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Every row once in random order, as random views; the last, smaller batch is left out.

        `share` = (rank, processes): of every batch each process gets its own part.
        """
        order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
        count = self.batches(len(rows), batch_size)
        batches = (order[number * batch_size : (number + 1) * batch_size] for number in range(count))
        yield from self._ahead(batches, generator, share)

    def batches(self, count: int, batch_size: int) -> int:
        """How many batches an epoch over `count` rows has."""
        return max(1, count // batch_size)

    def plain(self, rows: IntArray, batch_size: int) -> Iterator[Batch]:
        """The rows in their order, as centre views; the last batch may be smaller."""
        for batch in torch.from_numpy(rows).split(batch_size):
            boxes = centre_boxes(self._shapes[batch.to(self.device)], self.centre)
            pixels = self._pixels(batch).to(self.device, non_blocking=True)
            yield Batch(take_views(pixels, boxes, self.image_size), batch)

    def views(self, rows: Tensor, augment: Tensor, generator: torch.Generator) -> Batch:
        """One batch of the rows [N], as random views where `augment` [N] says so and as centre views elsewhere."""
        return self._view(rows, self._pixels(rows), generator, slice(None), augment)

    def augmented(self, rows: IntArray, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """The rows in their order, as random views; the last batch may be smaller."""
        yield from self._ahead(torch.from_numpy(rows).split(batch_size), generator)

    def _ahead(
        self, batches: Iterable[Tensor], generator: torch.Generator, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """Random views of each batch of rows; pixels that are not on the device are fetched while it computes."""
        own = slice(share[0], None, share[1])
        if self.device.type == "cpu":  # a thread would only take a core from the training
            for rows in batches:
                yield self._view(rows, self._pixels(rows[own]), generator, own)
            return
        with ThreadPoolExecutor(max_workers=1) as worker:
            waiting: deque[tuple[Tensor, Future[Tensor]]] = deque()
            for rows in batches:
                waiting.append((rows, worker.submit(self._pixels, rows[own])))
                if len(waiting) > AHEAD:
                    rows_then, pixels = waiting.popleft()
                    yield self._view(rows_then, pixels.result(), generator, own)
            for rows_then, pixels in waiting:
                yield self._view(rows_then, pixels.result(), generator, own)

    def _view(
        self, rows: Tensor, pixels: Tensor, generator: torch.Generator, own: slice, augment: Tensor | None = None
    ) -> Batch:
        """Random views, or centre views where `augment` is false."""
        # Every process draws for all rows and keeps its own, so that one process and many see the same views.
        shapes = self._shapes[rows.to(self.device)]
        boxes = random_boxes(shapes, generator, self.crop_scale)
        flip = (torch.rand(len(rows), generator=generator) < self.flip).to(self.device)
        if augment is not None:
            augment = augment.to(self.device)
            boxes = torch.where(augment[:, None], boxes, centre_boxes(shapes, self.centre))
            flip = flip & augment
        there = pixels.to(self.device, non_blocking=True)
        return Batch(take_views(there, boxes[own], self.image_size, flip[own]), rows[own])

    def _pixels(self, rows: Tensor) -> Tensor:
        """uint8 pixels [N, 3, S, S]: on the device, or in memory that it can fetch by itself."""
        if self._resident is not None:
            return self._resident[rows.to(self.device)]
        pixels = torch.from_numpy(self._cache.pixels[rows.numpy()])
        return pixels.pin_memory() if self.device.type == "cuda" else pixels
