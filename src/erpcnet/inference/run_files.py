"""What the folder of a run holds beside its model, for whoever starts from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erpcnet.errors import InputError
from erpcnet.utils.files import LARGEST_JSON, as_path, open_plain, plain_text, read_json
from erpcnet.utils.progress import SPEAKS, console

METRICS, VALIDATION, RUN = "metrics.json", "validation.json", "run.json"
CONSOLE, PICTURE = "console.log", "localities.png"
OTHERWISE = "give --dataset"


def dataset_of(run: str | Path) -> Path:
    """The folder of the dataset that a run was trained on, as it was given then.

    metrics.json names it, and where that is damaged, or not there, run.json.

    Raises:
        InputError: Neither does.
    """
    folder = as_path(run, "the run")
    if not (folder / METRICS).is_file() and not (folder / RUN).is_file():
        raise InputError(f"{folder / METRICS} is not there; give the folder that `erpcnet train --out` made.")
    try:
        return _named_by_metrics(folder / METRICS)
    except InputError as error:
        problem = error
    try:
        named = Path(read_run(folder)["dataset"]["folder"])
    except InputError:
        raise problem from None
    what = str(problem).removesuffix(".").removesuffix(f"; {OTHERWISE}")
    tell_damage(f"{what}; by {RUN} its dataset is {named}")
    return named


def _named_by_metrics(path: Path) -> Path:
    found = read_json(path, OTHERWISE).get("data")
    if not isinstance(found, str):
        raise InputError(f"{path} does not say which dataset it is of; {OTHERWISE}.")
    return as_path(found, "the dataset of this run")


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json holds: see `erpcnet.training.provenance`.

    Raises:
        InputError: It is not there, or damaged.
    """
    path = folder / RUN
    stored = read_json(path, OTHERWISE)
    data = stored.get("dataset")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in ("folder", "digest")):
        raise InputError(f"{path} does not say which dataset it is of; {OTHERWISE}.")
    as_path(data["folder"], "the dataset of this run")
    return stored


def tell_damage(sentence: str) -> None:
    """A line of what is done about a damaged file, which is printed even where only results and problems are."""
    before, console.quiet = console.quiet, not SPEAKS
    try:
        console.print(plain_text(sentence), soft_wrap=True, markup=False)
    finally:
        console.quiet = before


def is_readable(path: Path) -> bool:
    """Whether this is a plain file whose bytes can be read, so that what is wrong with it is what it holds."""
    try:
        open_plain(path, LARGEST_JSON).close()
    except OSError:
        return False
    return True
