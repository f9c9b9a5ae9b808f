"""`erpcnet.load`: the trained network of a run, ready to predict."""

from __future__ import annotations

from pathlib import Path

import torch

from erpcnet.config.data import TestCrops
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.inference.engine import Execution
from erpcnet.inference.model_file import model_path


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
    return ZeroShotClassifier.from_file(model_path(run), device, execution, test_crops)
