"""Settings of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from erpcnet.config.ranges import Settings, ranged


@dataclass
class EvaluationSettings(Settings):
    """How the operating point, sigma and delta, is chosen where it is not given."""

    protocol: Literal["validation", "test"] = "validation"
    """`validation`: on classes held out of the seen ones, by a second training without them. `test`: on the test
    classes, as much published code does; only to compare, and the results say so."""
    folds: int | None = ranged(None, 1, 1000)
    """On how many of the dataset's validation folds, each of which is a training of its own; unset: as many as hold 20
    validation classes together."""
    stop_loss: float = ranged(0.001, 0, 1)
    """The share of images that early stop may cost on the validation classes, a standard error included."""
    batch_size: int = ranged(64, 1, 65536)
    """Images per step; the fewer, the less memory it takes."""

    @classmethod
    def _prefix(cls) -> str:
        return "evaluation."
