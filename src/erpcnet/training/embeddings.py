"""Embeddings of a frozen network, computed once for both stages, all trainings of a run and its evaluation."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from erpcnet.config import Config
from erpcnet.data import ImageLoader, ZeroShotDataset
from erpcnet.data.dataset import IntArray
from erpcnet.model import ERPCNet
from erpcnet.model.fusion import fuse
from erpcnet.model.locality_tables import LocalityTable, TableCrop, build_table, gather_table
from erpcnet.utils.runtime import Runtime


class Embeddings:
    """Every locality of every image of a dataset, as a network makes them that was not trained.

    The trainings of validation folds and the last one, the policy's and the evaluation take their rows from it. Nothing
    is computed before it is asked for.

    Args:
        config: Every setting.
        dataset: All of whose images are embedded.
        loader: Its images.
        runtime: Precision on a GPU.
    """

    def __init__(self, config: Config, dataset: ZeroShotDataset, loader: ImageLoader, runtime: Runtime) -> None:
        self._config, self._dataset, self._loader, self._runtime = config, dataset, loader, runtime
        self._rows = np.unique(np.concatenate([dataset.train, dataset.test_seen, dataset.test_unseen]))

    def training(self, network: ERPCNet, rows: IntArray) -> LocalityTable:
        """Training images `rows`: the centre crop, and random ones, as many crops as Stage II has."""
        crops = [TableCrop(self._test, 0, self._places(self._rows, rows))]
        own = self._places(self._dataset.train, rows)
        crops += [TableCrop(self._random, crop, own) for crop in range(self._config.stage2.crops - 1)]
        return gather_table(network, crops)

    def test(self, network: ERPCNet, rows: IntArray) -> LocalityTable:
        """The test crops of any images."""
        own = self._places(self._rows, rows)
        return gather_table(network, [TableCrop(self._test, crop, own) for crop in range(self._test.crops)])

    @cached_property
    def _network(self) -> ERPCNet:
        """What makes the embeddings; its heads are not used."""
        config, device = self._config, self._loader.device
        # As the network that is trained begins, and without drawing from what training draws from.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = ERPCNet(config.model, len(self._dataset.attribute_names), config.data.image_size, config.variant)
        return fuse(network.eval().to(device).to(memory_format=torch.channels_last), self._runtime.precision)

    @cached_property
    def _test(self) -> LocalityTable:
        loader, size = self._loader, self._config.evaluation.batch_size
        with self._runtime.autocast(), torch.inference_mode():
            crops = loader.test_crops(self._rows, size, self._network.saliency)
            shape = loader.settings.test_crops, len(self._rows)
            return build_table(self._network, crops, shape, "Embeddings", share=loader.share)

    @cached_property
    def _random(self) -> LocalityTable:
        settings, train = self._config.stage2, self._dataset.train
        generator = torch.Generator().manual_seed(self._config.seed + 1)
        crops = (
            self._loader.random_crops(train, settings.rollout_batch_size, generator) for _ in range(settings.crops - 1)
        )
        with self._runtime.autocast():
            shape, share = (settings.crops - 1, len(train)), self._loader.share
            return build_table(self._network, crops, shape, "Embeddings of random crops", share=share)

    def _places(self, among: IntArray, rows: IntArray) -> Tensor:
        """Where these rows stand in `among`, in whatever order that is."""
        order = np.argsort(among)
        return torch.from_numpy(order[np.searchsorted(among, rows, sorter=order)]).to(self._loader.device)
