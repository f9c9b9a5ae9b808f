"""Where the batches of Stage I come from: images, or embeddings that were computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from erpcnet.config.training import Stage1Settings
from erpcnet.data import ImageLoader, ZeroShotDataset
from erpcnet.model import ERPCNet
from erpcnet.model.locality_tables import LocalityTable
from erpcnet.training.losses import HeadsLoss, Stage1Loss
from erpcnet.utils.processes import Share


class RandomStreams(NamedTuple):
    """Who draws what: the loader may run ahead of training, so crops and cells are drawn apart."""

    crops: torch.Generator
    cells: torch.Generator
    mixup: np.random.Generator

    @classmethod
    def from_seed(cls, seed: int) -> RandomStreams:
        return cls(
            crops=torch.Generator().manual_seed(seed),
            cells=torch.Generator().manual_seed(seed + 3),
            mixup=np.random.default_rng(seed),
        )

    def state_dict(self) -> dict[str, Any]:
        """Where each of them is."""
        crops, cells = self.crops.get_state(), self.cells.get_state()
        return {"crops": crops, "cells": cells, "mixup": self.mixup.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        self.crops.set_state(state["crops"])
        self.cells.set_state(state["cells"])
        self.mixup.bit_generator.state = state["mixup"]


def random_cells(count: int, cells: int, steps: int, generator: torch.Generator) -> Tensor:
    """`steps` different cells for each of `count` images, in random order."""
    return torch.rand(count, cells, generator=generator).argsort(dim=1)[:, :steps]


class Stage1Batch(NamedTuple):
    """What the loss takes of a batch, and where its images stand in the dataset.

    Of images: `shown` [N, 3, H, W], and random cells [N, T]. Of embeddings: e_g [N, D], and e_l [N, T, D] of random
    cells. GlobalNet has no second part.
    """

    shown: Tensor
    localities: Tensor | None
    rows: Tensor


class Stage1Source(Protocol):
    """The training images of a dataset, in batches.

    Attributes:
        loss: What takes the batches.
        batches: Of an epoch.
        batch_size: Images of each.
    """

    loss: type[Stage1Loss]
    batches: int
    batch_size: int

    def epoch(self, random: RandomStreams, share: Share) -> Iterator[Stage1Batch]:
        """Every image once in random order; of every batch a process's share."""

    def glances(self, network: ERPCNet) -> Iterator[tuple[Tensor, Tensor]]:
        """a_g [N, A] of the centre crops, and their rows [N]."""


class ImageSource:
    """Random crops of images."""

    loss: type[Stage1Loss] = Stage1Loss

    def __init__(
        self, network: ERPCNet, loader: ImageLoader, dataset: ZeroShotDataset, settings: Stage1Settings
    ) -> None:
        self._network, self._loader, self._rows, self._size = network, loader, dataset.train, settings.batch_size
        self.batch_size = min(settings.batch_size, len(dataset.train))
        self.batches = loader.batches_per_epoch(len(dataset.train), settings.batch_size)

    def epoch(self, random: RandomStreams, share: Share) -> Iterator[Stage1Batch]:
        network = self._network
        for batch in self._loader.epoch(self._rows, self._size, random.crops, share=share):
            cells = None
            if network.steps:
                # Drawn for the whole batch, of which this process has its share, as the loader does with crops.
                cells = random_cells(self._size, network.grid.cells, network.steps, random.cells)
                cells = cells[share.part(self.batch_size)].to(self._loader.device)
            yield Stage1Batch(batch.images, cells, batch.rows)

    def glances(self, network: ERPCNet) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._loader.centre_crops(self._rows, self._size):
            yield network.glance(batch.images).a_g, batch.rows


class EmbeddingSource:
    """Embeddings in a table: of each image in one of its crops, drawn anew for every epoch."""

    loss: type[Stage1Loss] = HeadsLoss

    def __init__(self, network: ERPCNet, table: LocalityTable, settings: Stage1Settings) -> None:
        self._network, self._table, self._size = network, table, settings.batch_size
        self.batch_size = min(settings.batch_size, len(table))
        self.batches = max(1, len(table) // settings.batch_size)

    def epoch(self, random: RandomStreams, share: Share) -> Iterator[Stage1Batch]:
        network, table = self._network, self._table
        device = table.rows.device
        order = torch.randperm(len(table), generator=random.crops)[: self.batches * self._size]
        crops = torch.randint(table.crops, (len(order),), generator=random.crops)
        for images, crop in zip(order.split(self._size), crops.split(self._size), strict=True):
            cells = None
            if network.steps:
                cells = random_cells(len(images), network.grid.cells, network.steps, random.cells)
                cells = cells[share.part(len(images))].to(device)
            own, own_crop = (one[share.part(len(images))].to(device) for one in (images, crop))
            e_l = None if cells is None else table.localities(own_crop[:, None], own[:, None], cells)
            yield Stage1Batch(table.e_g[own_crop, own], e_l, table.rows[own])

    def glances(self, network: ERPCNet) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.arange(len(self._table), device=self._table.rows.device).split(self._size):
            yield network.global_predictor(self._table.e_g[0, part]), self._table.rows[part]
