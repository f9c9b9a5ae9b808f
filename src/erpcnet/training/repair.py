"""The JSON files of a finished run that were damaged, written anew where what they held can be known again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import measure_plainer
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.evaluation.runs import OpenedRun, Validation, damaged_files
from erpcnet.inference.run_files import METRICS, RUN, read_run, tell_damage
from erpcnet.training.provenance import rebuilt_provenance
from erpcnet.utils.files import write_json


def repair_run(run: Path, opened: OpenedRun, rollouts: EvaluationRollouts, validation: Validation | None) -> None:
    """Write the damaged files of a run anew, and tell of each what is known of it again; whole ones are left alone.

    Args:
        run: Its folder.
        opened: It, with the crops and the dataset that it was trained with.
        rollouts: Over the test images of that.
        validation: What its operating point was chosen by, if that is known.
    """
    for name in damaged_files(run):
        if not _has_dataset(run, opened):
            tell_damage(f"{run / name} is damaged, and {opened.dataset.root} is not what the run was trained on")
        elif name == METRICS:
            _write(run / METRICS, measured(opened, rollouts, validation), "the figures are measured again")
        else:
            known = "of what the run came from only the dataset is known, by its classes"
            _write(run / RUN, rebuilt_provenance(opened.dataset), known)


def measured(opened: OpenedRun, rollouts: EvaluationRollouts, validation: Validation | None) -> dict[str, Any]:
    """What metrics.json holds of a run, measured again."""
    plainer = () if validation is None else measure_plainer(rollouts, validation.plainer, opened.config.seed)
    values = opened.measure(rollouts).to_json()
    folder = str(opened.dataset.root.resolve())
    return {**values, "plainer": [one._asdict() for one in plainer], "data": folder}


def _has_dataset(run: Path, opened: OpenedRun) -> bool:
    """Whether it is opened with the dataset that it was trained on: by its digest, or by the classes of the model."""
    try:
        return bool(read_run(run)["dataset"]["digest"] == opened.dataset.fingerprint())
    except InputError:
        pass
    dataset, classes = opened.dataset, opened.classes
    return (
        (classes.names, classes.attribute_names) == (dataset.classes, dataset.attribute_names)
        and np.array_equal(classes.attributes, dataset.attributes)
        and np.array_equal(np.flatnonzero(classes.seen), dataset.seen)
    )


def _write(path: Path, values: dict[str, Any], known: str) -> None:
    try:
        write_json(path, values, indent=2)
    except OSError as error:
        tell_damage(f"{path} is damaged, and cannot be written anew ({error.strerror})")
    else:
        tell_damage(f"{path} was damaged and is written anew: {known}")
