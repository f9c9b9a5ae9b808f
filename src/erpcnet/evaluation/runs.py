"""Evaluating a run again: its network, its operating point and the images of a dataset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from erpcnet.config import Config, TestCrops
from erpcnet.data import ImageLoader, ZeroShotDataset, read_dataset
from erpcnet.data.loader import open_loader
from erpcnet.errors import InputError
from erpcnet.evaluation.delta import ValidationCurve
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.rollouts import EvaluationRollouts, rollout_test_images
from erpcnet.inference.model_file import read_model
from erpcnet.inference.run_files import VALIDATION, dataset_of
from erpcnet.model import ERPCNet, OperatingPoint
from erpcnet.utils.runtime import Runtime, default_device


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
    dataset: str | Path | None = None,
    test_crops: TestCrops | None = None,
    delta: float | None = None,
) -> Metrics:
    """Evaluate a run's network again, at the operating point that it was saved with.

    Args:
        run: The folder of the run.
        dataset: Folder of the dataset; by default the one that the run was trained on.
        test_crops: Test-time augmentation: crops of each image; by default the run's own.
        delta: Of calibrated stacking, in place of the run's own.

    Returns:
        The figures on the test images.

    Examples:
        >>> evaluate_run("runs/quickstart").t1
    """
    opened = open_run(run, dataset, test_crops)
    point = opened.point if delta is None else replace(opened.point, delta=delta, protocol="fixed")
    return measure(opened.rollouts(), point, opened.config.seed)


def validation_curve(run: str | Path) -> ValidationCurve | None:
    """U and S over delta on the validation classes of a run; None if delta was not chosen on any."""
    path = Path(run) / VALIDATION
    if not path.is_file():
        return None
    try:
        return ValidationCurve(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged; remove it to do without the curve of the validation classes.") from None


def open_run(run: str | Path, dataset: str | Path | None = None, test_crops: TestCrops | None = None) -> OpenedRun:
    """A run's network and a dataset; the arguments are those of `evaluate_run`."""
    model = read_model(run)
    folder = dataset_of(run) if dataset is None else dataset
    read = read_dataset(folder)
    if read.attribute_names != model.classes.attribute_names:
        raise InputError(f"{folder} has other attributes than the dataset that {run} was trained on.")
    config = model.config
    if test_crops is not None:
        config = replace(config, data=replace(config.data, test_crops=test_crops))
    device = default_device()
    loader = open_loader(read, config.input_data, model.preprocessing, device)
    return OpenedRun(config, model.network.to(device), model.point, read, loader)
