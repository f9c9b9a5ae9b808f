"""Evaluating a run again: its network, its operating point and the images of a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from erpcnet.config import Config, TestCrops
from erpcnet.data import ImageLoader, ZeroShotDataset, read_dataset
from erpcnet.data.loader import open_loader
from erpcnet.errors import InputError
from erpcnet.evaluation.delta import ValidationCurve
from erpcnet.evaluation.operating_point import Plainer, StopChoice
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.rejection import RejectChoice
from erpcnet.evaluation.rollouts import EvaluationRollouts, rollout_test_images
from erpcnet.inference.model_file import read_model
from erpcnet.inference.run_files import VALIDATION, dataset_of
from erpcnet.model import ERPCNet, OperatingPoint
from erpcnet.utils.files import as_path, read_json
from erpcnet.utils.runtime import Runtime, check_device


class OpenedRun(NamedTuple):
    """A run's network, and what it takes to roll out the images of a dataset with it."""

    config: Config
    network: ERPCNet
    point: OperatingPoint
    dataset: ZeroShotDataset
    loader: ImageLoader

    def rollouts(self) -> EvaluationRollouts:
        """T steps over the test images."""
        config = self.config
        with Runtime.of(config.precision).autocast():
            return rollout_test_images(
                self.network, self.dataset, self.loader, config.evaluation.batch_size, config.seed
            )


def evaluate_run(
    run: str | Path,
    dataset: str | Path | ZeroShotDataset | None = None,
    test_crops: TestCrops | None = None,
    delta: float | None = None,
    device: str | torch.device | None = None,
) -> Metrics:
    """Evaluate a run's network again, at the operating point that it was saved with.

    Args:
        run: The folder of the run.
        dataset: A dataset or its folder; by default the one that the run was trained on.
        test_crops: Test-time augmentation: crops of each image; by default the run's own.
        delta: Of calibrated stacking, in place of the run's own.
        device: Such as `cpu` or `cuda:0`; by default a GPU if there is one.

    Returns:
        The figures on the test images.

    Examples:
        >>> evaluate_run("runs/quickstart").t1
    """
    if delta is not None and (isinstance(delta, bool) or not isinstance(delta, int | float) or not abs(delta) < 1e30):
        raise InputError(f"delta is {str(delta)[:40]}; it must be a finite number.")
    opened = open_run(run, dataset, test_crops, device)
    point = opened.point if delta is None else replace(opened.point, delta=float(delta), protocol="fixed")
    return measure(opened.rollouts(), point, opened.config.seed)


class Validation(NamedTuple):
    """What a run's operating point was chosen by: see `erpcnet.evaluation.operating_point.Choice`."""

    curve: ValidationCurve | None
    stop: StopChoice | None
    attribute_auc: dict[str, float]
    reject: RejectChoice | None
    plainer: tuple[Plainer, ...] = ()


def read_validation(run: str | Path) -> Validation | None:
    """What a run's operating point was chosen by; None if it was given."""
    path = as_path(run, "the run") / VALIDATION
    if not path.is_file():
        return None
    remedy = "remove it to do without what it told of the validation"
    stored = read_json(path, remedy)
    try:
        curve = None if stored["delta"] is None else ValidationCurve.from_json(stored["delta"])
        stop = None if stored["sigma"] is None else StopChoice.from_json(stored["sigma"])
        areas = {str(name): float(area) for name, area in (stored["attribute_auc"] or {}).items()}
        told = stored["reject"]
        reject = None if told is None else RejectChoice(**{name: float(value) for name, value in told.items()})
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
    loader = open_loader(read, config.input_data, model.preprocessing, place)
    return OpenedRun(config, model.network.to(place), model.point, read, loader)
