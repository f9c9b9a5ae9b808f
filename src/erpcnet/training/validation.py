"""How a training gets on: T1 and H on a fold's validation classes after every epoch, for the log alone.

Every point is of the same few images: a tenth as many as there are training images at most (a twentieth with HardNet,
which computes its localities anew each time), but one of each validation class at least. Half of them are of validation
classes, half are images of seen classes that are held out as well; both are spread evenly over classes, and over the
images of a class. To look at an image costs half of learning from it at most, so all of it takes some five per cent
of a training at most; where classes have few images each, one of every class may be more than a tenth of them.

They are shown in their centre crops, and scored without the hubness correction, for which every training image would
have to be looked at. H is the best that any delta gives at that epoch on these images: it says what the network can do,
not how well delta was chosen. Nothing is drawn, and nothing that is trained is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from erpcnet.data import ZeroShotDataset
from erpcnet.data.dataset import IntArray
from erpcnet.evaluation.baselines import LinearScores
from erpcnet.evaluation.gzsl import ScoredImages, seen_unseen_curve
from erpcnet.evaluation.metrics import per_class_accuracy
from erpcnet.evaluation.rollouts import EvaluationRollouts, rollout_tables
from erpcnet.model import ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.locality_tables import FILLED, LocalityTable, build_table
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.selection import SelectionOrder, default_order
from erpcnet.training.context import Context

SHARE, HARDNET_SHARE = 0.1, 0.05  # of the number of training images
MOST = 1000  # of validation classes, or of seen ones: a standard error of T1 is below two points then
NEVER = math.inf  # stops nothing early

Found = TypeVar("Found")


class Validation:
    """A few validation images of one fold, on which the networks of its training are evaluated.

    Of several processes each computes a part; all of them ask for the same, in the same order.

    Args:
        context: Settings, images and machine.
        fold: What is trained on, with validation classes in the place of the unseen ones.

    Attributes:
        dataset: The fold, its test images those that are looked at.

    Examples:
        >>> validation = Validation(context, fold)
        >>> network = train_stage1(context, network, fold, log, validation=validation)
        >>> validation.of_glances(network)
        {'t1': 0.52, 'h': 0.41}
    """

    def __init__(self, context: Context, fold: ZeroShotDataset) -> None:
        share = HARDNET_SHARE if context.config.variant == "hardnet" else SHARE
        self._context, self.dataset = context, with_few_test_images(fold, int(share * len(fold.train)))
        self._rows = np.concatenate([self.dataset.test_seen, self.dataset.test_unseen])
        self._size = min(context.config.evaluation.batch_size, context.config.stage1.batch_size)
        self._e_g: Tensor | None = None

    @torch.no_grad()
    def of_glances(self, network: ERPCNet, buffers: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """T1 and H of the glance alone, as GlobalNet answers.

        Args:
            network: Of Stage I, at whatever epoch.
            buffers: What to use in the place of the network's own, by name.
        """
        with self._undisturbed(network):
            a_g = self._a_g(network, dict(buffers or {}))
            phi = torch.from_numpy(self.dataset.unit_attributes).to(a_g.device)
            logits = network.global_compatibility(a_g, phi).cpu()
        place = torch.zeros(len(self.dataset.labels), dtype=torch.long)
        place[torch.from_numpy(self._rows)] = torch.arange(len(self._rows))
        return figures(LinearScores(self.dataset, lambda rows: logits[place[torch.from_numpy(rows)]]), NEVER)

    def of_policy(self, network: ERPCNet) -> Callable[[], dict[str, float]]:
        """What gives T1 and H of the rollouts whenever it is called: of T steps, or stopped early where sigma is given.

        Args:
            network: With Stage I behind it. Its localities are computed here, once, unless there are too many.
        """
        config = self._context.config
        with self._undisturbed(network):
            table = self._table(network) if network.tabulable else None

        def measure() -> dict[str, float]:
            order = default_order(network, config.seed)
            with self._undisturbed(network):
                if table is None:
                    every = self._roll_out(network, order)
                else:
                    every = rollout_tables(network, self.dataset, {"unseen": table}, order).unseen
                return figures(self._split(network, every), NEVER if config.model.sigma is None else config.model.sigma)

        return measure

    @contextmanager
    def _undisturbed(self, network: ERPCNet) -> Iterator[None]:
        """Within, the network is evaluated; what is compiled is not compiled again for batches of other sizes."""
        modes = [(module, module.training) for module in network.modules()]
        eager = torch.compiler.set_stance("force_eager") if self._context.config.compile else nullcontext()
        network.eval()
        try:
            with self._context.runtime.autocast(), eager:
                yield
        finally:
            for module, training in modes:
                module.training = training

    def _a_g(self, network: ERPCNet, buffers: dict[str, Tensor]) -> Tensor:
        """a_g of all images, those of seen classes first."""
        if self._context.config.stage1.freeze_backbone:
            if self._e_g is None:
                self._e_g = self._context.embeddings.test(network, self._rows).e_g[0]
            return network.global_predictor(self._e_g)
        parts = self._of_batches(lambda images: functional_call(network, buffers, (images,)).a_g.cpu())
        return torch.cat(parts).to(self._context.device)

    def _table(self, network: ERPCNet) -> LocalityTable:
        """Every locality of all images."""
        context, rows = self._context, self._rows
        if context.config.stage1.freeze_backbone:
            table = context.embeddings.test(network, rows)
            return replace(table, **{name: getattr(table, name)[:1] for name in FILLED})
        crops = [context.loader.centre_crops(rows, self._size)]
        return build_table(network, crops, (1, len(rows)), "Localities of validation images", share=context.share)

    @torch.inference_mode()
    def _roll_out(self, network: ERPCNet, order: SelectionOrder) -> Rollout:
        """T steps over all images, localities computed when they are selected."""
        parts = self._of_batches(
            lambda images: rollout(network, DirectLocalities(network, images), order).each(Tensor.cpu)
        )
        return Rollout.stack([Rollout.cat(parts).each(partial(Tensor.to, device=self._context.device))])

    def _split(self, network: ERPCNet, every: Rollout) -> EvaluationRollouts:
        """What was rolled out over all images, as test images of seen and of unseen classes."""
        count = len(self.dataset.test_seen)
        seen = every.each(lambda tensor: tensor[:, :count]) if count else None
        unseen = every.each(lambda tensor: tensor[:, count:])
        return EvaluationRollouts(network, self.dataset, seen, unseen, hubness=0.0)

    def _of_batches(self, compute: Callable[[Tensor], Found]) -> list[Found]:
        """What is computed of every batch of centre crops, by whichever process."""
        share, batches = self._context.share, enumerate(self._context.loader.centre_crops(self._rows, self._size))
        return share.exchange({number: compute(batch.images) for number, batch in batches if share.owns(number)})


def figures(images: ScoredImages, sigma: float) -> dict[str, float]:
    """T1, and, where there are images of seen classes too, H at the delta with which it is highest.

    Args:
        images: With their scores.
        sigma: Early stop.
    """
    classes, labels = images.dataset.unseen, images.labels("unseen")
    answers = images.score("unseen", classes).stopped(sigma).final.argmax(dim=1)
    found = {"t1": per_class_accuracy(torch.from_numpy(classes).to(labels.device)[answers], labels)}
    if len(images.dataset.test_seen):
        found["h"] = seen_unseen_curve(images, sigma).best()[1]
    return found


def with_few_test_images(dataset: ZeroShotDataset, most: int) -> ZeroShotDataset:
    """The same with `most` test images, half of them of seen classes; but one of each unseen class at least."""
    count = min(max(most // 2, 1), MOST)
    return replace(
        dataset,
        test_seen=spread(dataset.test_seen, dataset.labels, count),
        test_unseen=spread(dataset.test_unseen, dataset.labels, max(count, len(dataset.unseen))),
    )


def spread(rows: IntArray, labels: IntArray, count: int) -> IntArray:
    """At most so many of the rows, the same number of each class that has as many, far apart among those of a class."""
    classes, sizes = np.unique(labels[rows], return_counts=True)
    if len(classes) > count:
        return np.array([rows[labels[rows] == label][0] for label in classes[_apart(len(classes), count)]])
    each = max((number for number in range(1, count + 1) if np.minimum(sizes, number).sum() <= count), default=0)
    own = [rows[labels[rows] == label] for label in classes]
    return np.sort(np.concatenate([one[_apart(len(one), min(each, len(one)))] for one in own])) if own else rows


def _apart(total: int, count: int) -> IntArray:
    """The middles of so many equal parts of `total` places."""
    return ((np.arange(count) + 0.5) * total / count).astype(np.int64)
