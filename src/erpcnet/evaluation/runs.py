"""Evaluating a run again: its network, its operating point and the images of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import torch

from erpcnet.config import Config, TestCrops
from erpcnet.data import ImageLoader, ZeroShotDataset, read_dataset
from erpcnet.data.loader import open_loader
from erpcnet.errors import InputError
from erpcnet.evaluation.delta import ValidationCurve
from erpcnet.evaluation.operating_point import Plainer, StopChoice
from erpcnet.evaluation.protocol import Metrics, PlainerMetrics, measure
from erpcnet.evaluation.rejection import RejectChoice
from erpcnet.evaluation.rollouts import EvaluationRollouts, rollout_test_images
from erpcnet.evaluation.stacking import check_delta
from erpcnet.inference.class_table import ClassTable
from erpcnet.inference.model_file import read_model
from erpcnet.inference.run_files import METRICS, RUN, VALIDATION, dataset_of, is_readable, read_run, tell_damage
from erpcnet.model import ERPCNet, OperatingPoint
from erpcnet.utils.files import as_path, read_json
from erpcnet.utils.processes import Share
from erpcnet.utils.runtime import Runtime, check_device


class OpenedRun(NamedTuple):
    """A run's network, and what it takes to roll out the images of a dataset with it."""

    config: Config
    network: ERPCNet
    point: OperatingPoint
    dataset: ZeroShotDataset
    loader: ImageLoader
    classes: ClassTable

    def rollouts(self) -> EvaluationRollouts:
        """T steps over the test images."""
        config = self.config
        with Runtime.of(config.precision).autocast():
            return rollout_test_images(
                self.network, self.dataset, self.loader, config.evaluation.batch_size, config.seed
            )

    def measure(self, rollouts: EvaluationRollouts, delta: float | None = None) -> Metrics:
        """All figures, at the run's operating point, or at another delta."""
        point = self.point if delta is None else replace(self.point, delta=float(delta), protocol="fixed")
        return measure(rollouts, point, self.config.seed)


def evaluate_run(
    run: str | Path,
    dataset: str | Path | ZeroShotDataset | None = None,
    test_crops: TestCrops | None = None,
    delta: float | None = None,
    device: str | torch.device | None = None,
    share: Share | None = None,
) -> Metrics:
    """Evaluate a run's network again, at the operating point that it was saved with.

    Args:
        run: The folder of the run.
        dataset: A dataset or its folder; by default the one that the run was trained on.
        test_crops: Test-time augmentation: crops of each image; by default the run's own.
        delta: Of calibrated stacking, in place of the run's own.
        device: Such as `cpu` or `cuda:0`; by default a GPU if there is one.
        share: Of several processes that do it together, which one this is; each gets all figures.

    Returns:
        The figures on the test images.

    Examples:
        >>> evaluate_run("runs/quickstart").t1
    """
    check_delta(delta)
    opened = open_run(run, dataset, test_crops, device, share)
    return opened.measure(opened.rollouts(), delta)


def read_metrics(run: str | Path) -> dict[str, Any]:
    """What metrics.json of a run holds, every value of its own type.

    Raises:
        InputError: It is not there, or damaged.
    """
    path, remedy = as_path(run, "the run") / METRICS, "`erpcnet evaluate` writes it anew"
    stored, hints = read_json(path, remedy), get_type_hints(Metrics)
    needed = {one.name for one in fields(Metrics) if one.default is MISSING}
    hints["sigma"] |= None  # that never stops
    whole = needed <= stored.keys() and all(_fits(stored[name], kind) for name, kind in hints.items() if name in stored)
    if not whole or not isinstance(stored.get("data"), str):
        raise InputError(f"{path} is damaged; {remedy}.")
    return stored


def damaged_files(run: Path) -> list[str]:
    """Which of metrics.json and run.json of a run are there, can be read, and do not hold what they should."""
    readers: dict[str, Callable[[Path], object]] = {METRICS: read_metrics, RUN: read_run}
    found = []
    for name, read in readers.items():
        try:
            read(run)
        except InputError:
            found += [name] if is_readable(run / name) else []
    return found


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is what became of one of this type."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_fits(value, one) for one in inside)
    if origin in (list, tuple):
        return isinstance(value, list) and all(_fits(one, inside[0]) for one in value)
    if kind is PlainerMetrics:
        hints = get_type_hints(kind)
        named = isinstance(value, dict) and value.keys() == hints.keys()
        return named and all(_fits(value[name], own) for name, own in hints.items())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return value is None if kind is NoneType else type(value) is kind


class Validation(NamedTuple):
    """What a run's operating point was chosen by: see `erpcnet.evaluation.operating_point.Choice`."""

    curve: ValidationCurve | None
    stop: StopChoice | None
    attribute_auc: dict[str, float]
    reject: RejectChoice | None
    plainer: tuple[Plainer, ...] = ()


def read_validation(run: str | Path) -> Validation | None:
    """What a run's operating point was chosen by; None if it was given, or if that is damaged, which a line tells."""
    path = as_path(run, "the run") / VALIDATION
    if not path.is_file():
        return None
    try:
        return load_validation(run)
    except InputError as error:
        tell_damage(str(error))
        return None


def load_validation(run: str | Path) -> Validation:
    """The same.

    Raises:
        InputError: It is not there, or damaged.
    """
    path = as_path(run, "the run") / VALIDATION
    remedy = (
        "nothing is said of how sigma and delta were chosen (training with the same settings into another folder "
        "writes it anew)"
    )
    stored = read_json(path, remedy)
    try:
        curve = None if stored["delta"] is None else ValidationCurve.from_json(stored["delta"])
        stop = None if stored["sigma"] is None else StopChoice.from_json(stored["sigma"])
        areas = {str(name): float(area) for name, area in (stored["attribute_auc"] or {}).items()}
        choice = stored["reject"]
        reject = None if choice is None else RejectChoice(**{name: float(value) for name, value in choice.items()})
        shares = () if reject is None else (reject.auroc, reject.rejected, reject.kept, *areas.values())
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError("a share is not between 0 and 1")
        plainer = tuple(
            Plainer(int(one["crops"]), float(one["hubness"]), OperatingPoint.from_json(one["point"]))
            for one in stored["plainer"]
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path} is damaged; {remedy}.") from None
    return Validation(curve, stop, areas, reject, plainer)


def open_run(
    run: str | Path,
    dataset: str | Path | ZeroShotDataset | None = None,
    test_crops: TestCrops | None = None,
    device: str | torch.device | None = None,
    share: Share | None = None,
) -> OpenedRun:
    """A run's network and a dataset; the arguments are those of `evaluate_run`."""
    place = check_device(device)
    model = read_model(run)
    folder = dataset_of(run) if dataset is None else dataset
    read = folder if isinstance(folder, ZeroShotDataset) else read_dataset(folder)
    if read.attribute_names != model.classes.attribute_names:
        raise InputError(f"{read.root} has other attributes than the dataset that {run} was trained on.")
    config = model.config
    if test_crops is not None:
        config = replace(config, data=replace(config.data, test_crops=test_crops))
    loader = open_loader(read, config.input_data, model.preprocessing, place, share)
    return OpenedRun(config, model.network.to(place), model.point, read, loader, model.classes)
