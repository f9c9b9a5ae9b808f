"""Runs of networks that nobody trained, for tests of what is done with a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from conftest import small_network
from erpcnet.config import Config, DataSettings, TestCrops
from erpcnet.data import ZeroShotDataset
from erpcnet.inference.model_file import MODEL, save_model
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint

CLASSES = tuple(f"class {number}" for number in range(9))  # five seen ones, four unseen ones
ATTRIBUTES = tuple("abcdefg")


def untrained_run(folder: Path, reject: float | None = None, sigma: float = 0.45, crops: TestCrops = 1) -> Path:
    """The folder of a run as `erpcnet train` leaves it, with nothing but its model."""
    network = small_network()
    dataset = ZeroShotDataset(
        name="nine",
        root=folder,
        classes=CLASSES,
        attribute_names=ATTRIBUTES,
        attributes=np.random.default_rng(0).random((9, 7), dtype=np.float32),
        image_paths=tuple(f"{number}.png" for number in range(9)),
        labels=np.arange(9),
        train=np.arange(5),
        test_seen=np.arange(0),
        test_unseen=np.arange(5, 9),
    )
    config = Config(data=DataSettings(image_size=64, test_crops=crops), model=network.settings)
    point = OperatingPoint(sigma, 0.3, "fixed", temperature=(2.5, 2.0), temperature_all=(3.5, 3.0), reject=reject)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder / MODEL, network, dataset, config, point, Preprocessing())
    return folder
