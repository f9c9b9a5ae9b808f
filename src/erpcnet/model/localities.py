"""Localities of a batch of images, to be selected one by one: computed on demand, or all at once."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from erpcnet.model.network import ERPCNet


class Localities(Protocol):
    """A batch of images: e_g [N, D], a_g [N, A], descriptors [N, cells, F], beta [N, cells], and e_l when asked for.

    A descriptor is the mean of the cell's window and its beta, standardised over its own features (layer norm) and
    padded with zeros; beta by itself is not standardised.

    `erpcnet.model.locality_tables` has one that looks everything up.
    """

    e_g: Tensor
    a_g: Tensor
    descriptors: Tensor
    beta: Tensor

    def embed(self, rows: Tensor, cells: Tensor) -> Tensor:
        """e_l [M, D] of one cell each of the images `rows` [M]."""


class DirectLocalities:
    """Localities computed when they are selected."""

    def __init__(self, network: ERPCNet, images: Tensor) -> None:
        self._source, described, self.e_g, self.a_g = network.glance(images)
        self.descriptors, self.beta = network.describe_cells(described)
        self._network = network

    def embed(self, rows: Tensor, cells: Tensor) -> Tensor:
        whole = rows.shape[0] == self._source.shape[0]
        return self._network.embed_localities(self._source if whole else self._source[rows], cells[:, None])[:, 0]


class ParallelLocalities(DirectLocalities):
    """Every locality e_l [N, cells, D] computed at once, in one large batch, and looked up. GlobalNet has none.

    More arithmetic than a rollout needs, in fewer and larger steps: faster where launches cost more than arithmetic.
    """

    def __init__(self, network: ERPCNet, images: Tensor) -> None:
        super().__init__(network, images)
        if not network.steps:
            self.e_l = self.e_g[:, None][:, :0]
            return
        every = torch.arange(network.grid.cells, device=images.device).expand(images.shape[0], -1)
        # Windows of a map are small; those of a finer image run through a whole backbone, a cell of each image at once.
        at_once = network.grid.cells if network.zoom == 1 else 1
        parts = [network.embed_localities(self._source, some) for some in every.split(at_once, dim=1)]
        self.e_l = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def embed(self, rows: Tensor, cells: Tensor) -> Tensor:
        return self.e_l[rows, cells]
