"""All figures of a network on a dataset: ZSL, generalised ZSL, calibration and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from erpcnet.evaluation.calibration import expected_calibration_error
from erpcnet.evaluation.gzsl import GZSLAnswers
from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy, per_image_accuracy
from erpcnet.evaluation.operating_point import Plainer
from erpcnet.evaluation.rejection import auroc_of_unknown
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.evaluation.stacking import curve
from erpcnet.model.scoring import OperatingPoint, Temperatures


class PlainerMetrics(NamedTuple):
    """Figures with fewer extras: see `Metrics`."""

    crops: int
    hubness: float
    t1: float
    u: float | None
    s: float | None
    h: float | None


@dataclass(frozen=True)
class Metrics:
    """What `metrics.json` holds: accuracies and areas as shares of 1.

    Without test images of seen classes u, s, h, ausuc, ece_all and mean_steps_all are None.

    Attributes:
        t1: Images of unseen classes among the unseen classes, as a mean over classes.
        t1_per_image: The same as a share of the images.
        ece: The expected calibration error of the confidence among the unseen classes.
        u: Images of unseen classes among all classes, as a mean over classes.
        s: Images of seen classes among all classes.
        h: The harmonic mean of u and s.
        ausuc: The area under the curve of u and s over all delta.
        ece_all: The expected calibration error among all classes.
        delta: Of the operating point.
        sigma: Of the operating point; infinite where nothing stops.
        temperature: Of the operating point, among the unseen classes.
        temperature_all: The same among all classes.
        mean_steps: Steps over the images of unseen classes, among the unseen classes.
        mean_steps_all: Steps over all images, among all classes.
        crops: How many crops of an image answered together.
        hubness: The strength of the hubness correction.
        protocol: How the operating point was chosen.
        seed: Of the run.
        variant: Of the network.
        dataset: Its name.
        t1_by_step: T1 after each step, nobody stopping.
        t1_global: T1 after the glance.
        auroc_unknown: The AUROC of rejection: half of the unseen classes are no candidates, then the other half.
        plainer: The figures of the same network without test-time augmentation, hubness correction, or both, where the
            run has them, each at an operating point of its own.
        unseen_classes: How many classes T1 is over.

    Examples:
        >>> metrics = train_run(load_config("creatures"), "data/creatures", "runs/mine")
        >>> f"T1 {metrics.t1:.1%}, H {metrics.h:.1%}, after {metrics.mean_steps:.1f} steps"
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
    crops: int
    hubness: float
    protocol: str
    seed: int
    variant: str
    dataset: str
    t1_by_step: list[float]
    t1_global: float
    auroc_unknown: float | None = None
    plainer: tuple[PlainerMetrics, ...] = ()
    unseen_classes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values; a sigma that never stops is null, since JSON has no infinity."""
        values = asdict(self)
        values["sigma"] = None if self.sigma == float("inf") else self.sigma
        values["plainer"] = [one._asdict() for one in self.plainer]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Metrics:
        """What `to_json` gave; further values are left out."""
        own = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        own["sigma"] = float("inf") if own["sigma"] is None else own["sigma"]
        own["plainer"] = tuple(PlainerMetrics(**one) for one in own["plainer"])
        for name in ("temperature", "temperature_all"):
            own[name] = tuple(own[name])
        return cls(**own)


def measure(rollouts: EvaluationRollouts, point: OperatingPoint, seed: int) -> Metrics:
    """All figures of one network at an operating point."""
    dataset, network = rollouts.dataset, rollouts.network
    labels = rollouts.labels("unseen")
    classes = torch.from_numpy(dataset.unseen).to(labels.device)
    scored = rollouts.score("unseen", dataset.unseen)
    answers = scored.stopped(point.sigma)
    predicted = classes[answers.final.argmax(dim=1)]
    no_seen = torch.zeros_like(classes, dtype=torch.bool)
    confidence = point.probabilities(answers.final, no_seen, answers.mean_steps).amax(dim=1)
    by_step = classes[scored.logits.mean(dim=0).argmax(dim=2)]  # nobody stopping
    t1_global, *t1_by_step = (per_class_accuracy(answer, labels) for answer in by_step.T)
    return Metrics(
        t1=per_class_accuracy(predicted, labels),
        t1_per_image=per_image_accuracy(predicted, labels),
        ece=expected_calibration_error(confidence, predicted == labels),
        **_generalised(rollouts, point),
        delta=point.delta,
        sigma=point.sigma,
        temperature=point.temperature,
        temperature_all=point.temperature_all,
        mean_steps=float(answers.mean_steps.mean()),
        crops=rollouts.crops,
        hubness=network.settings.hubness if rollouts.hubness is None else rollouts.hubness,
        protocol=point.protocol,
        seed=seed,
        variant=network.variant,
        dataset=dataset.name,
        t1_by_step=t1_by_step,
        t1_global=t1_global,
        auroc_unknown=auroc_of_unknown(rollouts, point.sigma, point.delta),
        unseen_classes=int(labels.unique().numel()),
    )


def measure_plainer(rollouts: EvaluationRollouts, ways: Sequence[Plainer], seed: int) -> tuple[PlainerMetrics, ...]:
    """The figures of the same network with fewer extras."""
    found = []
    for crops, hubness, point in ways:
        own = measure(rollouts.plainer(crops, hubness), point, seed)
        found.append(PlainerMetrics(crops, hubness, own.t1, own.u, own.s, own.h))
    return tuple(found)


def _generalised(rollouts: EvaluationRollouts, point: OperatingPoint) -> dict[str, Any]:
    """The figures among all classes; None without test images of seen classes."""
    if rollouts.seen is None:
        return dict.fromkeys(("u", "s", "h", "ausuc", "ece_all", "mean_steps_all"))
    seen, unseen = (GZSLAnswers.of(rollouts, split, point.sigma) for split in ("seen", "unseen"))
    u, s = (per_class_accuracy(one.best.predict(point.delta), one.labels) for one in (unseen, seen))
    confidence, right = (torch.cat(both) for both in zip(seen.confidence(point), unseen.confidence(point), strict=True))
    return {
        "u": u,
        "s": s,
        "h": harmonic_mean(u, s),
        "ausuc": curve(seen.best, seen.labels, unseen.best, unseen.labels).ausuc(),
        "ece_all": expected_calibration_error(confidence, right),
        "mean_steps_all": float(torch.cat([seen.steps, unseen.steps]).mean()),
    }
