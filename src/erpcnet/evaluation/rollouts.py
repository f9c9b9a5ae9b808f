"""Rollouts over the test images of a dataset, from which every sigma and delta can be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from erpcnet.data import ImageLoader, ZeroShotDataset
from erpcnet.data.dataset import IntArray
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.locality_tables import LocalityTable, build_table
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.scoring import ScoredRollout, score
from erpcnet.model.selection import SelectionOrder, default_order
from erpcnet.utils.progress import bar

Split = Literal["seen", "unseen"]


@dataclass(frozen=True)
class EvaluationRollouts:
    """T steps over all test images of seen and of unseen classes, [crops, N] each.

    Attributes:
        network: The network that made them.
        dataset: Whose test images they are of.
        seen: Of test images of seen classes, if there are any.
        unseen: Of test images of unseen classes.
        hubness: Strength of the hubness correction; None: as the network's settings say.
    """

    network: ERPCNet
    dataset: ZeroShotDataset
    seen: Rollout | None
    unseen: Rollout
    hubness: float | None = None

    @property
    def crops(self) -> int:
        """How many crops of every image there are."""
        return self.unseen.steps.shape[0]

    def first_crops(self, count: int) -> EvaluationRollouts:
        """The rollouts over the first so many crops of each image alone."""
        seen = None if self.seen is None else self.seen.each(lambda tensor: tensor[:count])
        return replace(self, seen=seen, unseen=self.unseen.each(lambda tensor: tensor[:count]))

    def plainer(self, crops: int, hubness: float) -> EvaluationRollouts:
        """The same with fewer extras: the first so many crops, and another strength of the hubness correction."""
        return replace(self.first_crops(crops), hubness=hubness)

    def labels(self, split: Split) -> Tensor:
        """The true classes [N], as numbers of the dataset."""
        rows = self.dataset.test_seen if split == "seen" else self.dataset.test_unseen
        return torch.from_numpy(self.dataset.labels[rows]).to(self.unseen.a_g.device)

    def score(self, split: Split, classes: IntArray) -> ScoredRollout:
        """The logits of `classes`, by their numbers, along the rollouts."""
        rolled_out = self.seen if split == "seen" else self.unseen
        assert rolled_out is not None, "there are no test images of seen classes"
        return score(self.network, rolled_out, self.classes(classes))

    def classes(self, numbers: IntArray) -> Classes:
        """Classes of the dataset, by their numbers, where the rollouts are."""
        device = self.unseen.a_g.device
        phi = torch.from_numpy(self.dataset.unit_attributes[numbers]).to(device)
        is_seen = torch.from_numpy(np.isin(numbers, self.dataset.seen)).to(device)
        return self.network.classes(phi, is_seen, self.hubness)


def build_test_tables(
    network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, batch_size: int
) -> dict[str, LocalityTable]:
    """Every locality of every crop of the test images of seen and of unseen classes."""

    def table(split: str, rows: IntArray) -> LocalityTable:
        crops = loader.test_crops(rows, batch_size, network.saliency)
        shape = loader.settings.test_crops, len(rows)
        return build_table(network, crops, shape, f"Test images, {split}", share=loader.share)

    return {split: table(split, rows) for split, rows in _splits(dataset).items() if len(rows)}


@torch.inference_mode()
def rollout_tables(
    network: ERPCNet, dataset: ZeroShotDataset, tables: dict[str, LocalityTable], order: SelectionOrder
) -> EvaluationRollouts:
    """Roll out the test images, one crop after the other: what one gives does not depend on others."""

    def over(table: LocalityTable) -> Rollout:
        return Rollout.stack(
            [
                Rollout.cat(
                    [
                        rollout(network, table.take(torch.full_like(images, crop), images), order)
                        for images in table.batches()
                    ]
                )
                for crop in range(table.crops)
            ]
        )

    found = {split: over(table) for split, table in tables.items()}
    return EvaluationRollouts(network, dataset, seen=found.get("seen"), unseen=found["unseen"])


@torch.inference_mode()
def rollout_images(
    network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, batch_size: int, order: SelectionOrder
) -> EvaluationRollouts:
    """The same for networks whose images have too many localities for a table: each one selected is computed."""
    network.eval()

    def over(split: str, rows: IntArray) -> Rollout:
        crops = []
        with bar(f"Test images, {split}", loader.settings.test_crops * len(rows)) as advance:
            for batches in loader.test_crops(rows, batch_size, network.saliency):
                own = {}
                for number, batch in enumerate(batches):
                    if loader.share.owns(number):
                        found = rollout(network, DirectLocalities(network, batch.images), order)
                        own[number] = found.each(Tensor.cpu)
                    advance(len(batch.rows))
                crops.append(Rollout.cat(loader.share.exchange(own)).each(partial(Tensor.to, device=loader.device)))
        return Rollout.stack(crops)

    found = {split: over(split, rows) for split, rows in reversed(_splits(dataset).items()) if len(rows)}
    return EvaluationRollouts(network, dataset, seen=found.get("seen"), unseen=found["unseen"])


def rollout_test_images(
    network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, batch_size: int, seed: int
) -> EvaluationRollouts:
    """T steps over the dataset's test images, in the variant's own order."""
    order = default_order(network, seed)
    if not network.tabulable:
        return rollout_images(network, dataset, loader, batch_size, order)
    return rollout_tables(network, dataset, build_test_tables(network, dataset, loader, batch_size), order)


def _splits(dataset: ZeroShotDataset) -> dict[str, IntArray]:
    return {"seen": dataset.test_seen, "unseen": dataset.test_unseen}
