"""Where the episodes of Stage II take place: in a locality table, or, for HardNet, on the images themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from erpcnet.config.training import Stage2Settings
from erpcnet.data import Batch, ImageLoader, ZeroShotDataset
from erpcnet.model import ERPCNet
from erpcnet.model.localities import DirectLocalities, Localities
from erpcnet.model.locality_tables import FETCH_SIZE, LocalityTable, build_table
from erpcnet.training.ppo import Rows
from erpcnet.training.stage1 import seen_targets
from erpcnet.utils.processes import Share

# Crops [N] of images [N] and the cells [N, T] that were selected, to states and descriptors: see `Episodes`.
Reload = Callable[[Tensor, Tensor, Tensor], tuple[Rows, Rows]]


class EpisodeSource(Protocol):
    """Images to roll out, each in `crops` crops, the first of them the centre crop.

    Attributes:
        is_lookup: It only reads tensors on the device that stay where they are, so a CUDA graph can.
        images: How many.
        crops: Of each.
        batch_size: Images to roll out together.
        phi: [S, A], the seen classes' attributes.
        labels: [images], rows of phi.
    """

    is_lookup: bool
    images: int
    crops: int
    batch_size: int
    phi: Tensor
    labels: Tensor

    @property
    def generator(self) -> torch.Generator | None:
        """What it draws from, if it draws anything."""

    def take(self, crop: Tensor, images: Tensor) -> Localities:
        """Some images [N], each in one of its crops [N], to roll out."""

    @property
    def reload(self) -> Reload | None:
        """Fetches states and descriptors anew, where there are too many to hold."""


class TableSource:
    """All localities of all crops, computed once: rollouts are look-ups. `crops` may be fewer than the table holds."""

    generator = None

    def __init__(self, table: LocalityTable, dataset: ZeroShotDataset, crops: int) -> None:
        self._table, self.crops, self.is_lookup = table, crops, table.in_memory
        self.images = len(table)
        self.batch_size = self.images if table.in_memory else FETCH_SIZE
        self.phi, labels = seen_targets(dataset, table.rows.device)
        self.labels = labels[table.rows]

    def take(self, crop: Tensor, images: Tensor) -> Localities:
        return self._table.take(crop, images)

    @property
    def reload(self) -> Reload | None:
        return None if self._table.in_memory else self._table.reload


class SharedLocalities:
    """Localities computed when they are selected, by several processes: each has a part of the batch, and tells it.

    Everyone then selects the same cells. All of them ask for the same, in the same order.

    Args:
        network: The frozen network.
        images: This process's own part of the batch [n, 3, H, W], at least one image.
        share: Which part that is.
        count: Images of the whole batch.
    """

    def __init__(self, network: ERPCNet, images: Tensor, share: Share, count: int) -> None:
        self._share, self._count, self._own = share, count, DirectLocalities(network, images)
        self.e_g, self.a_g, self.descriptors, self.beta = (
            torch.cat(self._exchanged(getattr(self._own, name))) for name in ("e_g", "a_g", "descriptors", "beta")
        )

    def embed(self, rows: Tensor, cells: Tensor) -> Tensor:
        parts = [Share(rank, self._share.processes).part(self._count) for rank in range(self._share.processes)]
        places = [((rows >= part.start) & (rows < part.stop)).nonzero()[:, 0] for part in parts]
        mine, own = parts[self._share.rank], places[self._share.rank]
        found = self._own.embed(rows[own] - mine.start, cells[own]) if len(own) else self._own.e_g[:0]
        whole = torch.cat(self._exchanged(found))
        return torch.empty_like(whole).index_copy_(0, torch.cat(places), whole)

    def _exchanged(self, own: Tensor) -> list[Tensor]:
        """What every process found, in the order of their parts."""
        return [one.to(own.device) for one in self._share.exchange({self._share.rank: own.cpu()})]


class DirectSource:
    """Localities computed when they are selected, by the frozen network; every random crop is a new one.

    Of several processes each computes its part of every batch.
    """

    is_lookup, reload = False, None

    def __init__(
        self, network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, settings: Stage2Settings, seed: int
    ) -> None:
        self._network, self._loader = network.eval(), loader
        self._rows = torch.from_numpy(dataset.train)
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.images, self.crops, self.batch_size = len(dataset.train), settings.crops, settings.rollout_batch_size
        self.phi, labels = seen_targets(dataset, loader.device)
        self.labels = labels[self._rows.to(loader.device)]

    def take(self, crop: Tensor, images: Tensor) -> Localities:
        share, count = self._loader.share, len(images)
        if count < share.processes:  # some would have no image
            share = Share()
        batch = self._loader.some_random(self._rows[images.cpu()], crop > 0, self.generator, share.part(count))
        if share.alone:
            return DirectLocalities(self._network, batch.images)
        return SharedLocalities(self._network, batch.images, share, count)


def open_source(
    network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, settings: Stage2Settings, seed: int
) -> EpisodeSource:
    """A table where an image has few localities, or else the images themselves."""
    if not network.tabulable:
        return DirectSource(network, dataset, loader, settings, seed)
    return TableSource(policy_table(network, dataset, loader, settings, seed), dataset, settings.crops)


def policy_table(
    network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, settings: Stage2Settings, seed: int
) -> LocalityTable:
    """The localities that the policy learns on: the centre crop of each training image, and random ones."""
    generator = torch.Generator().manual_seed(seed + 1)
    size = settings.rollout_batch_size

    def crops() -> Iterator[Iterator[Batch]]:
        yield loader.centre_crops(dataset.train, size)
        for _ in range(settings.crops - 1):
            yield loader.random_crops(dataset.train, size, generator)

    shape = settings.crops, len(dataset.train)
    return build_table(network, crops(), shape, "Localities of the training images", share=loader.share)
