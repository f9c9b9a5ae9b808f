"""The image loader: batches from the cache, cropped, flipped and normalised on the training device."""

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

from erpcnet.config.data import DataSettings
from erpcnet.data.cache import ImageCache, open_cache
from erpcnet.data.dataset import IntArray, ZeroShotDataset
from erpcnet.data.transforms import Saliency, TTACrop, centre_boxes, object_boxes, random_boxes, resample, tta_crops
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.utils.memory import free_gpu_memory

PREFETCH = 3  # batches fetched before they are asked for
GPU_SHARE = 0.5  # of a GPU's free memory, what pixels may take: training needs the rest
CHUNK = 256  # images copied to it at once


@dataclass(frozen=True)
class Batch:
    """`images` [N, 3, size, size], and `rows` [N]: where the images stand in the dataset."""

    images: Tensor
    rows: Tensor


class Crops(NamedTuple):
    """Which part of which image to show: rows [N] on the CPU; boxes [N, 4] and flip [N] on the device."""

    rows: Tensor
    boxes: Tensor
    flip: Tensor

    def take(self, part: slice) -> Crops:
        return Crops(self.rows[part], self.boxes[part], self.flip[part])

    def split(self, size: int) -> Iterator[Crops]:
        """Batches of `size`; the last may be smaller."""
        return (self.take(slice(start, start + size)) for start in range(0, len(self.rows), size))

    def shown_as(self, crop: TTACrop) -> Crops:
        """The same images in another crop."""
        return self._replace(boxes=crop.boxes, flip=torch.full_like(self.flip, crop.mirrored))


class ImageLoader:
    """Loads the images of a cache; the pixels lie on the GPU if they leave enough of its memory to others.

    Args:
        cache: The decoded images.
        settings: How they are cropped.
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
        """Every row once in random order, as random crops; the last, smaller batch is left out.

        `share` = (rank, processes): of every batch each process gets its own part.
        """
        order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
        # Drawn for the whole epoch at once, since a GPU would wait for many small steps; and by every process for all
        # rows, of which it keeps its own, so that one process and many see the same crops.
        crops = self._random(order[: self.batches_per_epoch(len(rows), batch_size) * batch_size], generator)
        own = slice(share[0], None, share[1])
        yield from self._prefetched(batch.take(own) for batch in crops.split(batch_size))

    def batches_per_epoch(self, count: int, batch_size: int) -> int:
        """How many batches an epoch over `count` rows has."""
        return max(1, count // batch_size)

    def centre_crops(self, rows: IntArray, batch_size: int) -> Iterator[Batch]:
        """The rows in their order, as centre crops; the last batch may be smaller."""
        yield from self._batches(self._centre(torch.from_numpy(rows)), batch_size)

    def random_crops(self, rows: IntArray, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """The rows in their order, as random crops; the last batch may be smaller."""
        yield from self._prefetched(self._random(torch.from_numpy(rows), generator).split(batch_size))

    def test_crops(self, rows: IntArray, batch_size: int, saliency: Saliency) -> Iterator[Iterator[Batch]]:
        """Test-time augmentation: for each of the crops that the settings ask for, the rows in their order.

        `saliency` says where the object is: images [N, 3, size, size] to [N, h, w].
        """
        centre = self._centre(torch.from_numpy(rows))

        def find_objects(boxes: Tensor) -> Tensor:
            found = torch.cat([saliency(batch.images) for batch in self._batches(centre, batch_size)])
            return object_boxes(found, boxes, self._shapes[centre.rows].to(self.device))

        for crop in tta_crops(centre.boxes, self.settings.test_crops, find_objects):
            yield self._batches(centre.shown_as(crop), batch_size)

    def some_random(self, rows: Tensor, augment: Tensor, generator: torch.Generator) -> Batch:
        """One batch of the rows [N], as random crops where `augment` [N] says so and as centre crops elsewhere."""
        random, centre = self._random(rows, generator), self._centre(rows)
        augment = augment.to(self.device)
        boxes = torch.where(augment[:, None], random.boxes, centre.boxes)
        return self._cut(Crops(rows, boxes, random.flip & augment), self._pixels(rows))

    def _random(self, rows: Tensor, generator: torch.Generator) -> Crops:
        boxes = random_boxes(self._shapes[rows], generator, self.settings.crop_scale)
        flip = torch.rand(len(rows), generator=generator) < self.settings.flip
        return Crops(rows, boxes.to(self.device), flip.to(self.device))

    def _centre(self, rows: Tensor) -> Crops:
        boxes = centre_boxes(self._shapes[rows], self.preprocessing.crop_share)
        return Crops(rows, boxes.to(self.device), torch.zeros(len(rows), dtype=torch.bool, device=self.device))

    def _batches(self, crops: Crops, batch_size: int) -> Iterator[Batch]:
        for batch in crops.split(batch_size):
            yield self._cut(batch, self._pixels(batch.rows))

    def _prefetched(self, batches: Iterable[Crops]) -> Iterator[Batch]:
        """The crops of each batch; pixels that are not on the device are fetched while it computes."""
        if self.device.type == "cpu":  # a thread would only take a core from the training
            for crops in batches:
                yield self._cut(crops, self._pixels(crops.rows))
            return
        with ThreadPoolExecutor(max_workers=1) as worker:
            waiting: deque[tuple[Crops, Future[Tensor]]] = deque()
            for crops in batches:
                waiting.append((crops, worker.submit(self._pixels, crops.rows)))
                if len(waiting) > PREFETCH:
                    first, pixels = waiting.popleft()
                    yield self._cut(first, pixels.result())
            for first, pixels in waiting:
                yield self._cut(first, pixels.result())

    def _cut(self, crops: Crops, pixels: Tensor) -> Batch:
        pixels = pixels.to(self.device, non_blocking=True)
        images = resample(pixels, crops.boxes, self.settings.image_size, crops.flip, preprocessing=self.preprocessing)
        return Batch(images, crops.rows)

    def _pixels(self, rows: Tensor) -> Tensor:
        """uint8 pixels [N, 3, S, S]: on the device, or in memory that it can fetch by itself."""
        if self._resident is not None:
            return self._resident[rows.to(self.device)]
        pixels = torch.from_numpy(self._cache.pixels[rows.numpy()])
        return pixels.pin_memory() if self.device.type == "cuda" else pixels


def open_loader(
    dataset: ZeroShotDataset, settings: DataSettings, preprocessing: Preprocessing, device: torch.device | str
) -> ImageLoader:
    """A loader of a dataset's images, which are decoded first, if that was not done before."""
    return ImageLoader(open_cache(dataset, settings.stored_size), settings, preprocessing, device)


def _copy_to(device: torch.device, pixels: npt.NDArray[np.uint8]) -> Tensor | None:
    """The pixels on a GPU, copied a few at a time; None if it turns out to have no room for them."""
    try:
        there = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return None
    for start in range(0, len(pixels), CHUNK):
        there[start : start + CHUNK] = torch.from_numpy(np.array(pixels[start : start + CHUNK])).to(device)
    return there
