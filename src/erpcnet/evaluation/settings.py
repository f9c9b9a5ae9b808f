"""Every setting of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from erpcnet.errors import InputError


@dataclass
class EvaluationSettings:
    """How sigma and delta are chosen, where they are not given."""

    protocol: Literal["validation", "peer"] = "validation"
    """`validation`: on classes held out of the seen ones, by a second training without them. `peer`: on the test
    classes, as much published code does; only to compare, and the results say so."""
    fold: int = 0
    """Which of the dataset's validation folds."""
    batch_size: int = 64
    """Images per step."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"evaluation.batch_size is {self.batch_size}; it must be at least 1.")
