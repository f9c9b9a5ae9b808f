"""What the paper looks at beside accuracies, of one run: the threshold, the steps, embeddings and failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from erpcnet.evaluation.metrics import per_class_accuracy
from erpcnet.evaluation.operating_point import SIGMAS, columns_of
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.inference.prediction import Prediction
from erpcnet.model.scoring import OperatingPoint

MIN_IMAGES = 5  # images that can be laid out


class Threshold(NamedTuple):
    """What a sigma would give on the test images of unseen classes."""

    sigma: float
    t1: float
    mean_steps: float


def thresholds(rollouts: EvaluationRollouts) -> list[Threshold]:
    """T1 and the mean number of steps over sigma; nothing is chosen by them."""
    labels, classes = rollouts.labels("unseen"), rollouts.dataset.unseen
    numbers, scored = torch.from_numpy(classes).to(labels.device), rollouts.score("unseen", classes)
    found = []
    for sigma in SIGMAS:
        answers = scored.stopped(sigma)
        accuracy = per_class_accuracy(numbers[answers.final.argmax(dim=1)], labels)
        found.append(Threshold(sigma, accuracy, float(answers.mean_steps.mean())))
    return found


@dataclass(frozen=True)
class Trajectories:
    """Answers on the way to the last, for every test image of an unseen class: after the glance and after each step.

    answers [N, 1 + T], as numbers of the dataset; chance [N, 1 + T], that of the true class; labels [N]; steps [N].
    A crop that is done keeps its answer; the logits of several crops are averaged.
    """

    answers: Tensor
    chance: Tensor
    labels: Tensor
    steps: Tensor

    @property
    def right(self) -> Tensor:
        """Whether an answer is right, [N, 1 + T]."""
        return self.answers == self.labels[:, None]


@torch.inference_mode()
def follow(rollouts: EvaluationRollouts, point: OperatingPoint) -> Trajectories:
    """The answers on the way, with early stop at the operating point's sigma."""
    labels, classes = rollouts.labels("unseen"), rollouts.dataset.unseen
    numbers = torch.from_numpy(classes).to(labels.device)
    answers = rollouts.score("unseen", classes).stopped(point.sigma)
    own, after = columns_of(labels, classes), torch.arange(answers.logits.shape[1], device=labels.device)
    after = after.clamp(max=answers.steps.max())
    chances = point.probabilities(answers.logits, torch.zeros_like(numbers, dtype=torch.bool), after)
    chance = chances.gather(2, own[:, None, None].expand(-1, len(after), 1))[..., 0]
    return Trajectories(numbers[answers.logits.argmax(dim=2)], chance, labels, answers.mean_steps)


@dataclass(frozen=True)
class Failures:
    """How test images came to a wrong answer, or to the right one.

    `at_once`, `won`, `lost` and `never` are places of images, and every image is in one of them. At once: right after
    the glance and at the end. Won: wrong after the glance, right at the end. Lost: right on the way, wrong at the end,
    what the paper calls the failure mode of the policy; `lost_at` [lost] are the steps after which the answer was wrong
    for good. Never right: beyond the network. `chance_of_lost` and `chance_of_kept` [1 + T]: the mean chance of the
    true class after each step, of images that were lost and of those right at the end.
    """

    at_once: Tensor
    won: Tensor
    lost: Tensor
    never: Tensor
    lost_at: Tensor
    chance_of_lost: Tensor
    chance_of_kept: Tensor

    @property
    def right(self) -> int:
        """How many are right at the end."""
        return len(self.at_once) + len(self.won)


def failures(found: Trajectories) -> Failures:
    """Tell them apart."""
    right = found.right
    glance, ends, ever = right[:, 0], right[:, -1], right.any(dim=1)
    at_once, won, lost, never = (
        which.nonzero()[:, 0] for which in (glance & ends, ends & ~glance, ever & ~ends, ~ever)
    )
    step = torch.arange(right.shape[1], device=right.device)
    return Failures(
        at_once=at_once,
        won=won,
        lost=lost,
        never=never,
        lost_at=(step * right[lost]).amax(dim=1) + 1,
        chance_of_lost=found.chance[lost].mean(dim=0),
        chance_of_kept=found.chance[ends].mean(dim=0),
    )


def quickest(images: np.ndarray, steps: np.ndarray, count: int) -> np.ndarray:
    """Those of some images, of all of which the steps are given, that took the fewest: so many, and all that took no
    more than they.
    """
    own = steps[images]
    return images[own <= np.sort(own)[:count].max(initial=0)]


def was_right_at_once(prediction: Prediction, truth: str) -> bool:
    """Whether the glance and the last answer are right."""
    return prediction.glance_answer == truth == prediction.name


def was_won(prediction: Prediction, truth: str) -> bool:
    """Whether localities put it right that the glance was wrong."""
    return prediction.glance_answer != truth == prediction.name


def was_lost(prediction: Prediction, truth: str) -> bool:
    """Whether an answer was right, and the last one is not."""
    on_the_way = (prediction.glance_answer, *(one.answer for one in prediction.localities))
    return truth in on_the_way and prediction.name != truth


class ClassRecord(NamedTuple):
    """How one unseen class fares: its share of right answers, and the class that it is mistaken for most often."""

    name: str
    accuracy: float
    mistaken_for: str
    how_often: float


def class_records(rollouts: EvaluationRollouts, found: Trajectories) -> list[ClassRecord]:
    """Every unseen class with test images, the worst first."""
    names, records = rollouts.dataset.classes, []
    for number in found.labels.unique().tolist():
        given = found.answers[found.labels == number, -1].tolist()
        wrong = Counter(answer for answer in given if answer != number).most_common(1)
        other, times = wrong[0] if wrong else (None, 0)
        right = given.count(number) / len(given)
        records.append(ClassRecord(names[number], right, "" if other is None else names[other], times / len(given)))
    return sorted(records, key=lambda record: (record.accuracy, record.name))


class Embeddings(NamedTuple):
    """Images in the plane, by a_g and by a_g + a_j: [M, 2] each, and their classes [M].

    GlobalNet has no a_j.
    """

    of_global: np.ndarray
    of_both: np.ndarray | None
    labels: np.ndarray


def embed(
    rollouts: EvaluationRollouts, found: Trajectories, classes: int = 10, each: int = 60, seed: int = 0
) -> Embeddings | None:
    """t-SNE of a_g, and of a_g + a_j in directions, as they are compared with classes, in the centre crop of images of
    the classes that the glance mistakes most often, as there is something to see there. None where there is not: of a
    few images, or where all are alike.
    """
    first = rollouts.unseen.each(lambda tensor: tensor[0])
    labels = found.labels.cpu().numpy()
    right = found.right[:, 0].cpu().numpy()
    worst = sorted(np.unique(labels), key=lambda number: float(right[labels == number].mean()))[:classes]
    rows = np.concatenate([np.flatnonzero(labels == number)[:each] for number in worst])
    a_g = F.normalize(first.a_g[rows].float(), dim=1).cpu()
    if len(rows) < MIN_IMAGES or float(a_g.std(dim=0).max()) < 1e-6:
        return None
    of_both = None
    if rollouts.network.steps:
        of_both = _plane(a_g + F.normalize(first.a_j[rows, -1].float(), dim=1).cpu(), seed)
    return Embeddings(_plane(a_g, seed), of_both, labels[rows])


def _plane(points: Tensor, seed: int) -> np.ndarray:
    """Points [M, A] laid out by t-SNE, [M, 2]."""
    init = "pca" if points.shape[1] > 1 else "random"
    layout = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init=init, random_state=seed)
    with threadpool_limits(
        1, user_api="openmp"
    ):  # several threads wait for each other, ten times as long on busy cores
        laid: np.ndarray = layout.fit_transform(points.numpy())
    return laid
