"""ZSL and GZSL of a network on a dataset, and sigma and delta chosen without looking at the test classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from erpcnet.data import ImageFeed, ZeroShotDataset
from erpcnet.data.dataset import IntArray
from erpcnet.data.views import over_views
from erpcnet.evaluation.calibration import expected_calibration_error, fit_temperature
from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy, per_image_accuracy
from erpcnet.evaluation.stacking import Curve, StackedScores, curve, stack
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.locality_tables import LocalityTable, build_table
from erpcnet.model.scoring import (
    OperatingPoint,
    Protocol,
    Temperatures,
    glance_scores,
    logits_by_step,
    stacked,
    stopped_scores,
)
from erpcnet.model.walk import DirectLocalities, Order, Walk, walk
from erpcnet.progress import track

# r = beta (p + p) can pass 2 where beta passes 1; the last one never stops.
SIGMAS = (*(round(0.1 * step, 1) for step in range(1, 23)), float("inf"))


@dataclass(frozen=True)
class Metrics:
    """What `metrics.json` holds: accuracies and areas as shares of 1.

    `ece` is the expected calibration error of the confidence among the unseen classes, where `mean_steps` are taken,
    `ece_all` and `mean_steps_all` are the same among all classes. Without test images of seen classes those, u, s, h
    and ausuc are None.
    """

    t1: float
    t1_per_image: float
    ece: float
    u: float | None
    s: float | None
    h: float | None
    ausuc: float | None
    ece_all: float | None
    delta: float
    sigma: float
    temperature: Temperatures
    temperature_all: Temperatures
    mean_steps: float
    mean_steps_all: float | None
    views: int
    attraction: float
    protocol: str
    seed: int
    variant: str
    dataset: str
    t1_by_step: list[float]
    t1_global: float

    def to_json(self) -> dict[str, Any]:
        """Plain values; a sigma that never stops is null, since JSON has no infinity."""
        values = asdict(self)
        values["sigma"] = None if self.sigma == float("inf") else self.sigma
        return values


@dataclass(frozen=True)
class EvaluationWalks:
    """T steps over all test images, from which every sigma and delta can be read.

    Where images have several views, the walks hold all images in the first, then all in the second, and so on; what
    views say is averaged.
    """

    network: ERPCNet
    dataset: ZeroShotDataset
    seen: Walk | None
    unseen: Walk

    @property
    def views(self) -> int:
        """How many views every image has."""
        return len(self.unseen.steps) // len(self.dataset.test_unseen)

    def first(self, views: int) -> EvaluationWalks:
        """The walks over the first so many views of each image alone."""
        seen = None if self.seen is None else self.seen.first(views * len(self.dataset.test_seen))
        return replace(self, seen=seen, unseen=self.unseen.first(views * len(self.dataset.test_unseen)))

    def labels(self, which: Literal["seen", "unseen"]) -> Tensor:
        """The true classes [N], as numbers of the dataset."""
        rows = self.dataset.test_seen if which == "seen" else self.dataset.test_unseen
        return torch.from_numpy(self.dataset.labels[rows]).to(self.unseen.whole.device)

    def stopped_scores(
        self, which: Literal["seen", "unseen"], classes: IntArray, sigma: float
    ) -> tuple[Tensor, Tensor]:
        """Scores [N, C] of `classes` where each image stops, and the steps taken [N], both averaged over views."""
        seen = self.seen if which == "seen" else self.unseen
        assert seen is not None, "these walks have no images of seen classes"
        scores, steps = stopped_scores(self.network, seen, self.classes(classes), sigma)
        images = len(self.labels(which))
        return over_views(scores, images), over_views(steps.double(), images)

    def glance_scores(self, which: Literal["seen", "unseen"], classes: IntArray) -> Tensor:
        """Scores [N, C] of `classes` after the glance, averaged over views."""
        seen = self.seen if which == "seen" else self.unseen
        assert seen is not None, "these walks have no images of seen classes"
        return over_views(glance_scores(self.network, seen, self.classes(classes)), len(self.labels(which)))

    def classes(self, numbers: IntArray) -> Classes:
        """Classes of the dataset, by their numbers, where the walks are."""
        device = self.unseen.whole.device
        phi = torch.from_numpy(self.dataset.unit_attributes[numbers]).to(device)
        return self.network.classes(phi, torch.from_numpy(np.isin(numbers, self.dataset.seen)).to(device))


def build_test_tables(
    network: ERPCNet, dataset: ZeroShotDataset, feed: ImageFeed, batch_size: int
) -> dict[str, LocalityTable]:
    """Every locality of every view of the test images of seen and of unseen classes."""
    parts = {"seen": dataset.test_seen, "unseen": dataset.test_unseen}

    def table(name: str, rows: IntArray) -> LocalityTable:
        views = feed.at_test(rows, batch_size, network.activity)
        return build_table(network, views, feed.settings.test_views * len(rows), f"Test images, {name}")

    return {name: table(name, rows) for name, rows in parts.items() if len(rows)}


@torch.inference_mode()
def walk_tables(
    network: ERPCNet, dataset: ZeroShotDataset, tables: dict[str, LocalityTable], order: Order
) -> EvaluationWalks:
    """Walk over the test images in an order, one view after the other: what one gives does not depend on others."""
    images = {"seen": len(dataset.test_seen), "unseen": len(dataset.test_unseen)}
    walks = {
        name: Walk.join([walk(network, table.take(places), order) for places in table.parts(images[name])])
        for name, table in tables.items()
    }
    return EvaluationWalks(network, dataset, seen=walks.get("seen"), unseen=walks["unseen"])


@torch.inference_mode()
def walk_images(
    network: ERPCNet, dataset: ZeroShotDataset, feed: ImageFeed, batch_size: int, order: Order
) -> EvaluationWalks:
    """The same for networks whose images have too many localities for a table: each look is computed."""
    network.eval()

    def over(rows: IntArray, name: str) -> Walk | None:
        total = feed.settings.test_views * -(-len(rows) // batch_size)
        views = feed.at_test(rows, batch_size, network.activity)
        batches = track(views, total=total, what=f"Test images, {name}")
        found = [walk(network, DirectLocalities(network, batch.images), order) for batch in batches]
        return Walk.join(found) if found else None

    unseen = over(dataset.test_unseen, "unseen")
    assert unseen is not None
    return EvaluationWalks(network, dataset, seen=over(dataset.test_seen, "seen"), unseen=unseen)


def choose_sigma(walks: EvaluationWalks, stop_loss: float) -> float:
    """The smallest sigma from which on stopping costs no more than `stop_loss`, a share of the images.

    What is counted are the images whose answer stopping turns wrong, less those it turns right, plus a standard
    error. Images whose answer stays the same say nothing about stopping, and left out they add no noise: accuracies
    of a few hundred images, compared, move by points when nothing is better or worse.
    """
    if walks.network.policy is None:
        return float("inf")
    classes, labels = walks.dataset.unseen, walks.labels("unseen")
    numbers = torch.from_numpy(classes).to(labels.device)

    def right(sigma: float) -> Tensor:
        return numbers[walks.stopped_scores("unseen", classes, sigma)[0].argmax(dim=1)] == labels

    never, smallest = right(float("inf")), float("inf")
    for sigma in reversed(SIGMAS):
        stopped = right(sigma)
        lost, won = int((never & ~stopped).sum()), int((stopped & ~never).sum())
        if lost - won + (lost + won) ** 0.5 > stop_loss * len(labels):
            break
        smallest = sigma
    return smallest


def seen_unseen_curve(walks: EvaluationWalks, sigma: float) -> Curve:
    """U and S over delta."""
    seen, unseen = (AllClasses.of(walks, which, sigma) for which in ("seen", "unseen"))
    return curve(seen.best, walks.labels("seen"), unseen.best, walks.labels("unseen"))


def choose_settings(
    walks: EvaluationWalks, sigma: float | None, delta: float | None, stop_loss: float, protocol: Protocol
) -> OperatingPoint:
    """sigma, then delta, from these walks, where they are not given; and the temperatures that go with them."""
    sigma = choose_sigma(walks, stop_loss) if sigma is None else sigma
    if delta is None:
        delta = seen_unseen_curve(walks, sigma).best()[0] if walks.seen is not None else 0.0
    temperature = temperature_all = fit_temperatures(walks, ["unseen"], walks.dataset.unseen, sigma, delta)
    if walks.seen is not None:
        classes = np.concatenate([walks.dataset.seen, walks.dataset.unseen])
        temperature_all = fit_temperatures(walks, ["seen", "unseen"], classes, sigma, delta)
    return OperatingPoint(sigma, delta, protocol, temperature, temperature_all)


def fit_temperatures(
    walks: EvaluationWalks, which: Sequence[Literal["seen", "unseen"]], classes: IntArray, sigma: float, delta: float
) -> Temperatures:
    """The temperatures of the confidence among these classes: after the glance, and where walks end."""
    is_seen = torch.from_numpy(np.isin(classes, walks.dataset.seen))
    columns = torch.cat([columns_of(walks.labels(one), classes) for one in which])

    def fitted(scores: Sequence[Tensor]) -> float:
        logits = torch.cat(list(scores))
        return fit_temperature(stacked(logits, is_seen.to(logits.device), delta), columns)

    glance = fitted([walks.glance_scores(one, classes) for one in which])
    return glance, fitted([walks.stopped_scores(one, classes, sigma)[0] for one in which])


def columns_of(labels: Tensor, classes: IntArray) -> Tensor:
    """The place [N] of each label among these classes, in ascending order or not; -1 where it is none of them."""
    match = labels[:, None] == torch.from_numpy(classes).to(labels.device)
    return torch.where(match.any(dim=1), match.int().argmax(dim=1), -1)


def measure(walks: EvaluationWalks, settings: OperatingPoint, seed: int) -> Metrics:
    """All figures of one network."""
    dataset, network = walks.dataset, walks.network
    labels = walks.labels("unseen")
    classes = torch.from_numpy(dataset.unseen).to(labels.device)
    scores, steps = walks.stopped_scores("unseen", dataset.unseen, settings.sigma)
    predicted = classes[scores.argmax(dim=1)]
    sure = settings.probabilities(scores, torch.zeros_like(classes, dtype=torch.bool), steps).amax(dim=1)
    u = s = h = ausuc = ece_all = steps_all = None
    if walks.seen is not None:
        seen, unseen = (AllClasses.of(walks, which, settings.sigma) for which in ("seen", "unseen"))
        u = per_class_accuracy(unseen.best.predict(settings.delta), labels)
        s = per_class_accuracy(seen.best.predict(settings.delta), walks.labels("seen"))
        h = harmonic_mean(u, s)
        ausuc = curve(seen.best, walks.labels("seen"), unseen.best, labels).ausuc()
        surest, right = (torch.cat(both) for both in zip(*(one.sure(settings) for one in (seen, unseen)), strict=True))
        ece_all = expected_calibration_error(surest, right)
        steps_all = float(torch.cat([seen.steps, unseen.steps]).mean())
    return Metrics(
        t1=per_class_accuracy(predicted, labels),
        t1_per_image=per_image_accuracy(predicted, labels),
        ece=expected_calibration_error(sure, predicted == labels),
        u=u,
        s=s,
        h=h,
        ausuc=ausuc,
        ece_all=ece_all,
        delta=settings.delta,
        sigma=settings.sigma,
        temperature=settings.temperature,
        temperature_all=settings.temperature_all,
        mean_steps=float(steps.mean()),
        mean_steps_all=steps_all,
        views=walks.views,
        attraction=network.settings.attraction,
        protocol=settings.protocol,
        seed=seed,
        variant=network.variant,
        dataset=dataset.name,
        t1_by_step=accuracy_by_step(walks),
        t1_global=_global_accuracy(walks),
    )


@torch.inference_mode()
def accuracy_by_step(walks: EvaluationWalks) -> list[float]:
    """Unseen T1 of the answer after each of T steps, nobody stopping."""
    network, labels, classes = walks.network, walks.labels("unseen"), walks.dataset.unseen
    logits = over_views(logits_by_step(network, walks.unseen, walks.classes(classes))[:, 1:], len(labels))
    predicted = torch.from_numpy(classes).to(labels.device)[logits.argmax(dim=2)]
    return [per_class_accuracy(predicted[:, step], labels) for step in range(network.steps)]


@torch.inference_mode()
def _global_accuracy(walks: EvaluationWalks) -> float:
    """Unseen T1 of a_g alone."""
    classes, labels = walks.dataset.unseen, walks.labels("unseen")
    logits = over_views(logits_by_step(walks.network, walks.unseen, walks.classes(classes))[:, 0], len(labels))
    return per_class_accuracy(torch.from_numpy(classes).to(labels.device)[logits.argmax(dim=1)], labels)


@dataclass(frozen=True)
class AllClasses:
    """Images of one kind among all classes, where each stops: logits [N, C] of `classes` [C], the seen ones first;
    steps [N]; labels [N]; and the best seen and unseen class of each, as numbers of the dataset.
    """

    logits: Tensor
    classes: Tensor
    is_seen: Tensor
    steps: Tensor
    labels: Tensor
    best: StackedScores

    @classmethod
    def of(cls, walks: EvaluationWalks, which: Literal["seen", "unseen"], sigma: float) -> AllClasses:
        """Of the test images of seen, or of unseen, classes."""
        dataset = walks.dataset
        classes = np.concatenate([dataset.seen, dataset.unseen])
        logits, steps = walks.stopped_scores(which, classes, sigma)
        numbers = torch.from_numpy(classes).to(logits.device)
        is_seen = torch.arange(len(classes), device=logits.device) < len(dataset.seen)
        found = stack(logits, is_seen)
        best = StackedScores(numbers[found.best_seen], numbers[found.best_unseen], found.gap)
        return cls(logits, numbers, is_seen, steps, walks.labels(which), best)

    def sure(self, point: OperatingPoint) -> tuple[Tensor, Tensor]:
        """How sure the answers are [N], and whether they are right [N]."""
        chances = point.probabilities(self.logits, self.is_seen, self.steps).max(dim=1)
        return chances.values, self.classes[chances.indices] == self.labels
