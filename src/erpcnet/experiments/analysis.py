"""What the paper looks at beside accuracies, of one run: the threshold, the steps, embeddings and failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn import functional as F

from erpcnet.data.views import over_views
from erpcnet.evaluation.metrics import per_class_accuracy
from erpcnet.evaluation.protocol import SIGMAS, EvaluationWalks, columns_of
from erpcnet.inference.recogniser import so_far
from erpcnet.model.scoring import OperatingPoint, logits_by_step, steps_until

FEWEST = 5  # images that can be laid out


class Threshold(NamedTuple):
    """What a sigma would give on the test images of unseen classes."""

    sigma: float
    t1: float
    mean_steps: float


def thresholds(walks: EvaluationWalks) -> list[Threshold]:
    """T1 and the mean number of steps over sigma; nothing is chosen by them."""
    labels, classes = walks.labels("unseen"), walks.dataset.unseen
    numbers = torch.from_numpy(classes).to(labels.device)
    found = []
    for sigma in SIGMAS:
        scores, steps = walks.stopped_scores("unseen", classes, sigma)
        accuracy = per_class_accuracy(numbers[scores.argmax(dim=1)], labels)
        found.append(Threshold(sigma, accuracy, float(steps.mean())))
    return found


@dataclass(frozen=True)
class Trajectories:
    """Answers on the way to the last, for every test image of an unseen class: after the glance and after each step.

    answers [N, 1 + T], as numbers of the dataset; sure [N, 1 + T], the chance of the true class; labels [N]; steps [N].
    A view that has stopped keeps its answer; what several views say is averaged.
    """

    answers: Tensor
    sure: Tensor
    labels: Tensor
    steps: Tensor

    @property
    def right(self) -> Tensor:
        """Whether an answer is right, [N, 1 + T]."""
        return self.answers == self.labels[:, None]


@torch.inference_mode()
def follow(walks: EvaluationWalks, point: OperatingPoint) -> Trajectories:
    """The answers on the way, where walks stop at the operating point's sigma."""
    network, labels = walks.network, walks.labels("unseen")
    numbers = torch.from_numpy(walks.dataset.unseen).to(labels.device)
    classes = walks.classes(walks.dataset.unseen)
    taken = steps_until(network, walks.unseen, classes, point.sigma)
    logits = so_far(logits_by_step(network, walks.unseen, classes), taken, len(labels))
    own = columns_of(labels, walks.dataset.unseen)
    looks = torch.arange(logits.shape[1], device=labels.device)
    chances = point.probabilities(logits, torch.zeros_like(numbers, dtype=torch.bool), looks)
    sure = chances.gather(2, own[:, None, None].expand(-1, network.steps + 1, 1))[..., 0]
    return Trajectories(numbers[logits.argmax(dim=2)], sure, labels, over_views(taken.double(), len(labels)))


@dataclass(frozen=True)
class Failures:
    """How test images came to a wrong answer, or to the right one.

    Never right: beyond the network. Lost: right on the way, wrong at the end, what the paper calls the failure mode of
    the policy; `lost_at` [lost] are the steps after which the answer was wrong for good. Won: wrong after the glance,
    right at the end. `sure_of_lost` and `sure_of_kept` [1 + T]: the mean chance of the true class after each step, of
    images that were lost and of those right at the end.
    """

    images: int
    right: int
    never: int
    won: int
    lost: Tensor
    lost_at: Tensor
    sure_of_lost: Tensor
    sure_of_kept: Tensor


def failures(found: Trajectories) -> Failures:
    """Count them."""
    right = found.right
    ends, ever = right[:, -1], right.any(dim=1)
    lost = (ever & ~ends).nonzero()[:, 0]
    step = torch.arange(right.shape[1], device=right.device)
    return Failures(
        images=len(right),
        right=int(ends.sum()),
        never=int((~ever).sum()),
        won=int((ends & ~right[:, 0]).sum()),
        lost=lost,
        lost_at=(step * right[lost]).amax(dim=1) + 1,
        sure_of_lost=found.sure[lost].mean(dim=0),
        sure_of_kept=found.sure[ends].mean(dim=0),
    )


class ClassRecord(NamedTuple):
    """How one unseen class fares: its share of right answers, and the class that it is mistaken for most often."""

    name: str
    accuracy: float
    mistaken_for: str
    how_often: float


def class_records(walks: EvaluationWalks, found: Trajectories) -> list[ClassRecord]:
    """Every unseen class with test images, the worst first."""
    names, records = walks.dataset.classes, []
    for number in found.labels.unique().tolist():
        given = found.answers[found.labels == number, -1].tolist()
        wrong = Counter(answer for answer in given if answer != number).most_common(1)
        other, times = wrong[0] if wrong else (None, 0)
        right = given.count(number) / len(given)
        records.append(ClassRecord(names[number], right, "" if other is None else names[other], times / len(given)))
    return sorted(records, key=lambda record: (record.accuracy, record.name))


class Embeddings(NamedTuple):
    """Images in the plane, by what the glance and what all steps say: whole and union [M, 2], and their classes [M].

    GlobalNet has no union.
    """

    whole: np.ndarray
    union: np.ndarray | None
    labels: np.ndarray


def embed(
    walks: EvaluationWalks, found: Trajectories, classes: int = 10, each: int = 60, seed: int = 0
) -> Embeddings | None:
    """t-SNE of a_g, and of a_g + a_j in directions, as they are compared with classes, in the first view of images of
    the classes that the glance mistakes most often, as there is something to see there. None where there is not: of a
    few images, or where all are alike.
    """
    first = walks.first(1).unseen
    labels = found.labels.cpu().numpy()
    right = found.right[:, 0].cpu().numpy()
    worst = sorted(np.unique(labels), key=lambda number: float(right[labels == number].mean()))[:classes]
    rows = np.concatenate([np.flatnonzero(labels == number)[:each] for number in worst])
    whole = F.normalize(first.whole[rows].float(), dim=1).cpu()
    if len(rows) < FEWEST or float(whole.std(dim=0).max()) < 1e-6:
        return None
    union = (
        _plane(whole + F.normalize(first.joint[rows, -1].float(), dim=1).cpu(), seed) if walks.network.steps else None
    )
    return Embeddings(_plane(whole, seed), union, labels[rows])


def _plane(points: Tensor, seed: int) -> np.ndarray:
    """Points [M, A] laid out by t-SNE, [M, 2]."""
    init = "pca" if points.shape[1] > 1 else "random"
    layout = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init=init, random_state=seed)
    laid: np.ndarray = layout.fit_transform(points.numpy())
    return laid
