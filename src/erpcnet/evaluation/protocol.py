"""All figures of a network on a dataset: ZSL, generalised ZSL, calibration and steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from erpcnet.evaluation.calibration import expected_calibration_error
from erpcnet.evaluation.gzsl import GZSLAnswers
from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy, per_image_accuracy
from erpcnet.evaluation.rejection import auroc_of_unknown
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.evaluation.stacking import curve
from erpcnet.model.scoring import OperatingPoint, Temperatures


@dataclass(frozen=True)
class Metrics:
    """What `metrics.json` holds: accuracies and areas as shares of 1.

    `ece` is the expected calibration error of the confidence among the unseen classes, where `mean_steps` are taken,
    `ece_all` and `mean_steps_all` are the same among all classes. Without test images of seen classes those, u, s, h
    and ausuc are None. `crops` and `hubness` say with how many crops of each image, and with which strength of the
    hubness correction. `auroc_unknown` is the AUROC of rejection: half of the unseen classes are no candidates, then
    the other half.
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

    def to_json(self) -> dict[str, Any]:
        """Plain values; a sigma that never stops is null, since JSON has no infinity."""
        values = asdict(self)
        values["sigma"] = None if self.sigma == float("inf") else self.sigma
        return values


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
    )


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
