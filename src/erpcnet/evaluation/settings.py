"""Every setting of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
