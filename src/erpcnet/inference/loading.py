"""`erpcnet.load`: the trained network of a run, ready to predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch

from erpcnet.config.data import TestCrops
from erpcnet.errors import InputError
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.inference.engine import Execution
from erpcnet.inference.model_file import read_model
from erpcnet.model.fusion import fuse
from erpcnet.utils.runtime import Runtime, check_device


def load(
    run: str | Path,
    device: str | torch.device | None = None,
    execution: Execution = "auto",
    test_crops: TestCrops | None = None,
) -> ZeroShotClassifier:
    """The trained network of a run, ready to predict.

    Args:
        run: The folder of a run, or a model.safetensors.
        device: Such as `cpu` or `cuda:0`; by default a GPU if there is one.
        execution: How batches are run (see `erpcnet.inference.Engine`).
        test_crops: Test-time augmentation: crops of each picture, 1, 2 or 4; by default as many as the operating point
            was chosen for.

    Returns:
        A classifier, whose network is fused (see `erpcnet.model.fusion`): it predicts, and no longer trains.

    Raises:
        InputError: There is no such run, or it is of another version.

    Examples:
        >>> model = erpcnet.load("runs/quickstart")
        >>> model.predict("some.png").name
    """
    device = check_device(device)
    if test_crops is not None and (isinstance(test_crops, bool) or test_crops not in get_args(TestCrops)):
        raise InputError(f"test_crops is {test_crops!r}; it must be 1, 2 or 4.")
    model = read_model(run)
    data = model.config.input_data
    data = data if test_crops is None else replace(data, test_crops=test_crops)
    runtime = Runtime.of(model.config.precision)
    network = fuse(model.network.to(device), runtime.precision)
    return ZeroShotClassifier(
        network, model.classes, data, model.point, model.preprocessing, model.config.seed, execution, runtime
    )
