"""Settings of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from erpcnet.errors import InputError


@dataclass
class EvaluationSettings:
    """How the operating point, sigma and delta, is chosen where it is not given."""

    protocol: Literal["validation", "test"] = "validation"
    """`validation`: on classes held out of the seen ones, by a second training without them. `test`: on the test
    classes, as much published code does; only to compare, and the results say so."""
    folds: int | None = None
    """On how many of the dataset's validation folds, each of which is a training of its own; unset: as many as hold 20
    validation classes together."""
    stop_loss: float = 0.001
    """The share of images that early stop may cost on the validation classes, a standard error included."""
    batch_size: int = 64
    """Images per step."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"evaluation.batch_size is {self.batch_size}; it must be at least 1.")
        if self.folds is not None and self.folds < 1:
            raise InputError(f"evaluation.folds is {self.folds}; it must be at least 1, or unset.")
        if self.stop_loss < 0:
            raise InputError(f"evaluation.stop_loss is {self.stop_loss}; it must not be negative.")
