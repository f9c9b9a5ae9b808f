"""What to do next about a run: attributes it cannot read, classes that are too alike, seen classes that claim others'
images, and what more pictures would bring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from erpcnet.evaluation.attributes import unseen_auc
from erpcnet.evaluation.baselines import LearningPoint
from erpcnet.evaluation.gzsl import GZSLAnswers
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.experiments.analysis import Trajectories
from erpcnet.model.scoring import OperatingPoint

CHANCE, WELL = 0.6, 0.8  # AUC below which an attribute is hardly read, and from which it is read well


class AttributeRecord(NamedTuple):
    """How well an attribute is read: its AUC on validation classes, if it is known, and on the unseen classes."""

    name: str
    on_validation: float | None
    on_unseen: float | None


def attribute_records(rollouts: EvaluationRollouts, on_validation: dict[str, float] | None) -> list[AttributeRecord]:
    """Every attribute of which something is known, the worst first (by the validation classes where they tell)."""
    areas = unseen_auc(rollouts).tolist()
    known = on_validation or {}
    records = [
        AttributeRecord(name, known.get(name), area if area == area else None)
        for name, area in zip(rollouts.dataset.attribute_names, areas, strict=True)
    ]
    measured = [one for one in records if one.on_validation is not None or one.on_unseen is not None]
    return sorted(measured, key=lambda one: (_area(one), one.name))


def _area(record: AttributeRecord) -> float:
    area = record.on_validation if record.on_validation is not None else record.on_unseen
    assert area is not None
    return area


class ClosePair(NamedTuple):
    """Two unseen classes: the cosine of their attribute rows, from the mean of all classes, and how many of their test
    images are taken for the other one (a share of 1)."""

    first: str
    second: str
    cosine: float
    confused: float


def close_pairs(rollouts: EvaluationRollouts, found: Trajectories) -> list[ClosePair]:
    """Every pair of unseen classes, the closest rows first."""
    dataset, classes = rollouts.dataset, rollouts.dataset.unseen
    rows = dataset.unit_attributes - dataset.unit_attributes.mean(axis=0)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    labels, answers = found.labels.cpu().numpy(), found.answers[:, -1].cpu().numpy()
    pairs = []
    for place, first in enumerate(classes):
        for second in classes[place + 1 :]:
            both = np.isin(labels, (first, second))
            crossed = ((labels == first) & (answers == second)) | ((labels == second) & (answers == first))
            confused = float(crossed.sum() / max(both.sum(), 1))
            cosine = float(rows[first] @ rows[second])
            pairs.append(ClosePair(dataset.classes[first], dataset.classes[second], cosine, confused))
    return sorted(pairs, key=lambda pair: -pair.cosine)


class SeenRecord(NamedTuple):
    """A seen class among all classes: its share of right answers, what it is mistaken for most often, and the share of
    the images of unseen classes that are taken for it."""

    name: str
    accuracy: float
    mistaken_for: str
    how_often: float
    claims: float


def seen_records(rollouts: EvaluationRollouts, point: OperatingPoint) -> list[SeenRecord]:
    """Every seen class with test images, the worst first; none without test images of seen classes."""
    if rollouts.seen is None:
        return []
    of_seen, of_unseen = (GZSLAnswers.of(rollouts, split, point.sigma) for split in ("seen", "unseen"))
    answers, labels = of_seen.best.predict(point.delta).cpu(), of_seen.labels.cpu()
    claimed = Counter(of_unseen.best.predict(point.delta).cpu().tolist())
    names, records = rollouts.dataset.classes, []
    for number in labels.unique().tolist():
        given = answers[labels == number].tolist()
        wrong = Counter(answer for answer in given if answer != number).most_common(1)
        other, times = wrong[0] if wrong else (None, 0)
        records.append(
            SeenRecord(
                names[number],
                given.count(number) / len(given),
                "" if other is None else names[other],
                times / len(given),
                claimed[number] / len(of_unseen.labels),
            )
        )
    return sorted(records, key=lambda one: (one.accuracy, one.name))


def more_would_bring(points: Sequence[LearningPoint]) -> str:
    """What a learning curve says of more pictures and more classes, in a sentence."""

    def gain(of: str) -> tuple[float, float]:
        by_share = {point.share: point for point in points if point.of == of}
        return 100 * (by_share[1.0].t1 - by_share[0.5].t1), 100 * by_share[0.5].spread

    pictures, classes = gain("pictures"), gain("classes")
    summary = (
        f"From half of the pictures of every seen class to all of them T1 rises by {pictures[0]:.1f} points "
        f"(± {pictures[1]:.1f}), from half of the seen classes to all by {classes[0]:.1f} (± {classes[1]:.1f}). "
    )
    small = max(pictures[0], classes[0]) < 1
    if small:
        return summary + "Neither more pictures nor more classes promise much; look at attributes and at the backbone."
    better = "More seen classes" if classes[0] > pictures[0] else "More pictures of the seen classes"
    return summary + f"{better} promise most; expect less of doubling them than that."
