"""What the folder of a run holds beside its model, for whoever starts from a run."""

from __future__ import annotations

import json
from pathlib import Path

from erpcnet.errors import InputError

METRICS, VALIDATION = "metrics.json", "validation.json"


def dataset_of(run: str | Path) -> Path:
    """The folder of the dataset that a run was trained on, as it was given then."""
    path = Path(run) / METRICS
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder that `erpcnet train --out` made.")
    try:
        return Path(json.loads(path.read_text())["data"])
    except (ValueError, KeyError):
        raise InputError(f"{path} does not say which dataset it is of; give --dataset.") from None
