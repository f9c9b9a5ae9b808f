"""The image loader: batches from the cache, cropped, flipped and normalised on the training device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
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
from erpcnet.utils.processes import Share

PREFETCH = 3  # batches fetched before they are asked for
GPU_SHARE = 0.5  # of a GPU's free memory, what pixels may take: training needs the rest
CHUNK = 256  # images copied to it at once


class Batch:
    """Images that are looked at together, cut when they are asked for.

    Args:
        images: [N, 3, size, size], or what makes them.
        rows: [N], where the images stand in the dataset.
    """

    def __init__(self, images: Tensor | Callable[[], Tensor], rows: Tensor) -> None:
        self._images, self.rows = images, rows

    @property
    def images(self) -> Tensor:
        """[N, 3, size, size]."""
        if not isinstance(self._images, Tensor):
            self._images = self._images()
        return self._images


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
        share: Of several processes, which one this is.
    """

    def __init__(
        self,
        cache: ImageCache,
        settings: DataSettings,
        preprocessing: Preprocessing | None = None,
        device: torch.device | str = "cpu",
        share: Share | None = None,
    ) -> None:
        self.device, self.share = torch.device(device), share or Share()
        self.settings, self.preprocessing = settings, preprocessing or Preprocessing()
        self._shapes = torch.from_numpy(cache.shapes)
        self._cache = cache
        self._resident: Tensor | None = None
        if self.device.type == "cuda" and cache.pixels.nbytes <= GPU_SHARE * free_gpu_memory(self.device):
            self._resident = _copy_to(self.device, cache.pixels)

    def epoch(
        self, rows: IntArray, batch_size: int, generator: torch.Generator, *, share: Share | None = None
    ) -> Iterator[Batch]:
        """Every row once in random order, as random crops; the last, smaller batch is left out.

        With a `share`, its part of every batch.
        """
        order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
        # Drawn for the whole epoch at once, since a GPU would wait for many small steps; and by every process for all
        # rows, of which it keeps its own, so that one process and many see the same crops.
        crops = self._random(order[: self.batches_per_epoch(len(rows), batch_size) * batch_size], generator)
        share = share or Share()
        yield from self._prefetched(batch.take(share.part(len(batch.rows))) for batch in crops.split(batch_size))

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
            batches = enumerate(self._batches(centre, batch_size))
            own = {number: saliency(batch.images).cpu() for number, batch in batches if self.share.owns(number)}
            found = torch.cat(self.share.exchange(own)).to(self.device)
            return object_boxes(found, boxes, self._shapes[centre.rows].to(self.device))

        for crop in tta_crops(centre.boxes, self.settings.test_crops, find_objects):
            yield self._batches(centre.shown_as(crop), batch_size)

    def some_random(
        self, rows: Tensor, augment: Tensor, generator: torch.Generator, part: slice | None = None
    ) -> Batch:
        """One batch of the rows [N], as random crops where `augment` [N] says so and as centre crops elsewhere.

        Of a `part` alone the images are cut, while all crops are drawn.
        """
        random, centre = self._random(rows, generator), self._centre(rows)
        augment = augment.to(self.device)
        boxes = torch.where(augment[:, None], random.boxes, centre.boxes)
        crops = Crops(rows, boxes, random.flip & augment).take(part or slice(None))
        return Batch(self._cut(crops), crops.rows)

    def _random(self, rows: Tensor, generator: torch.Generator) -> Crops:
        boxes = random_boxes(self._shapes[rows], generator, self.settings.crop_scale)
        flip = torch.rand(len(rows), generator=generator) < self.settings.flip
        return Crops(rows, boxes.to(self.device), flip.to(self.device))

    def _centre(self, rows: Tensor) -> Crops:
        boxes = centre_boxes(self._shapes[rows], self.preprocessing.crop_share)
        return Crops(rows, boxes.to(self.device), torch.zeros(len(rows), dtype=torch.bool, device=self.device))

    def _batches(self, crops: Crops, batch_size: int) -> Iterator[Batch]:
        for batch in crops.split(batch_size):
            yield Batch(partial(self._cut, batch), batch.rows)

    def _prefetched(self, batches: Iterable[Crops]) -> Iterator[Batch]:
        """The crops of each batch; pixels that are not on the device are fetched while it computes."""
        if self.device.type == "cpu":  # a thread would only take a core from the training
            for crops in batches:
                yield Batch(partial(self._cut, crops), crops.rows)
            return
        with ThreadPoolExecutor(max_workers=1) as worker:
            waiting: deque[tuple[Crops, Future[Tensor]]] = deque()
            for crops in batches:
                waiting.append((crops, worker.submit(self._pixels, crops.rows)))
                if len(waiting) > PREFETCH:
                    yield self._fetched(*waiting.popleft())
            for crops, pixels in waiting:
                yield self._fetched(crops, pixels)

    def _fetched(self, crops: Crops, pixels: Future[Tensor]) -> Batch:
        return Batch(self._cut(crops, pixels.result()), crops.rows)

    def _cut(self, crops: Crops, pixels: Tensor | None = None) -> Tensor:
        """[N, 3, size, size], of pixels that are fetched now or were before."""
        pixels = (self._pixels(crops.rows) if pixels is None else pixels).to(self.device, non_blocking=True)
        return resample(pixels, crops.boxes, self.settings.image_size, crops.flip, preprocessing=self.preprocessing)

    def _pixels(self, rows: Tensor) -> Tensor:
        """uint8 pixels [N, 3, S, S]: on the device, or in memory that it can fetch by itself."""
        if self._resident is not None:
            return self._resident[rows.to(self.device)]
        pixels = torch.from_numpy(self._cache.pixels[rows.numpy()])
        return pixels.pin_memory() if self.device.type == "cuda" else pixels


def open_loader(
    dataset: ZeroShotDataset,
    settings: DataSettings,
    preprocessing: Preprocessing,
    device: torch.device | str,
    share: Share | None = None,
) -> ImageLoader:
    """A loader of a dataset's images, which are decoded first, if that was not done before."""
    return ImageLoader(open_cache(dataset, settings.stored_size), settings, preprocessing, device, share)


def _copy_to(device: torch.device, pixels: npt.NDArray[np.uint8]) -> Tensor | None:
    """The pixels on a GPU, copied a few at a time; None if it turns out to have no room for them."""
    try:
        there = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return None
    for start in range(0, len(pixels), CHUNK):
        there[start : start + CHUNK] = torch.from_numpy(np.array(pixels[start : start + CHUNK])).to(device)
    return there
