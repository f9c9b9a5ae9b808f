"""What the folder of a run holds beside its model, for whoever starts from a run."""

from __future__ import annotations

from pathlib import Path

from erpcnet.errors import InputError
from erpcnet.utils.files import as_path, read_json

METRICS, VALIDATION, RUN = "metrics.json", "validation.json", "run.json"
CONSOLE, PICTURE = "console.log", "localities.png"


def dataset_of(run: str | Path) -> Path:
    """The folder of the dataset that a run was trained on, as it was given then."""
    path = as_path(run, "the run") / METRICS
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder that `erpcnet train --out` made.")
    found = read_json(path, "give --dataset").get("data")
    if not isinstance(found, str):
        raise InputError(f"{path} does not say which dataset it is of; give --dataset.")
    return as_path(found, "the dataset of this run")
