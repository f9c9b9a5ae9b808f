"""Small things that many tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import erpcnet.utils.cuda_graphs
from browser import Browser, start_browser
from erpcnet.config import (
    BackboneSettings,
    Config,
    DataSettings,
    JointSettings,
    ModelSettings,
    PolicySettings,
    load_config,
)
from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.data.creatures import CreatureSettings, make_creatures
from erpcnet.inference import ClassTable, ZeroShotClassifier
from erpcnet.model import ERPCNet
from erpcnet.model.scoring import OperatingPoint

# What is compared with slow references is computed on the CPU, in fp32, whatever the machine has; tests of what only a
# GPU does are run apart (`make test-gpu`). Importing torch does not look for GPUs yet.
WITH_GPU = "ERPCNET_TEST_GPU" in os.environ
if not WITH_GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

TINY = CreatureSettings(
    families=8, siblings=2, unseen_families=2, train_images=3, test_images=2, unseen_images=5, size=64
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not item.get_closest_marker("gpu"):
        return
    if not WITH_GPU:
        pytest.skip("needs a GPU: make test-gpu")
    if not torch.cuda.is_available():
        pytest.fail("there is no GPU here")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def creatures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn dataset of 16 classes and 80 images."""
    return make_creatures(tmp_path_factory.mktemp("data") / "creatures", TINY, workers=2)


@pytest.fixture(scope="session")
def dataset(creatures: Path) -> ZeroShotDataset:
    return read_dataset(creatures)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    with start_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def tiny_config() -> Config:
    """Trains within seconds on the drawn dataset."""
    return load_config(
        "creatures",
        data={"image_size": 64},
        stage1={"epochs": 1, "batch_size": 16},
        stage2={"epochs": 2, "minibatch_size": 16},
        evaluation={"folds": 1},
    )


def small_network(variant: str = "erpcnet", attributes: int = 7, **model: object) -> ERPCNet:
    """A network small enough to check by hand; its batch norms and trust are not at their starting values."""
    torch.manual_seed(0)
    settings = ModelSettings(
        backbone=BackboneSettings("small", "none"),
        policy=PolicySettings(width=16, memory=8),
        **model,  # type: ignore[arg-type]
    )
    settings.joint = JointSettings(kind=settings.joint.kind, hidden=24)
    network = ERPCNet(settings, attributes, 64, variant)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if network.policy is not None:  # it prefers clearly, so that rounding does not choose a cell
            network.policy.actor.weight.mul_(20)
            network.policy.actor.bias.mul_(20)
    return network.eval()


@pytest.fixture
def classifier() -> ZeroShotClassifier:
    """An untrained classifier of five seen and four unseen classes, with test-time augmentation."""
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    point = OperatingPoint(0.45, 0.3, "fixed", temperature=(2.5, 2.0), temperature_all=(3.5, 3.0), reject=1.0)
    return ZeroShotClassifier(small_network(), table, DataSettings(image_size=64, test_crops=2), point)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A file of noise."""
    pixels = np.random.default_rng(1).integers(0, 256, (80, 60, 3), dtype=np.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    return path


def between(values: torch.Tensor, apart: float = 8e-3) -> float:
    """A threshold among these values that none of them is near, so that no rounding moves one across it.

    Rewards with beta lie some thousandths apart where rounding puts one value of a map into another bin.
    """
    ordered = values.flatten().sort().values.double()
    middle = ordered[len(ordered) // 5 : len(ordered) - len(ordered) // 5]
    widest = int(middle.diff().argmax())
    assert middle[widest + 1] - middle[widest] > apart, "all values are near each other"
    return float((middle[widest] + middle[widest + 1]) / 2)


def shared(*parts: str) -> Path:
    """Real data and weights that lie beside the repository on some machines; a test skips where they do not."""
    path = Path(__file__).resolve().parents[2].joinpath("shared", *parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(('shared', *parts))} beside the repository")
    return path


class PretendedGraph:
    """Runs again and writes what comes out over what came out first, as a replay does; a CPU captures nothing."""

    def __init__(self, run: Callable[[], object], result: object) -> None:
        self._run, self._result = run, result

    def replay(self) -> None:
        _write_over(self._result, self._run())


def _write_over(old: object, new: object) -> None:
    for before, after in zip(_tensors(old), _tensors(new), strict=True):
        before.copy_(after)


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return []
    parts = value if isinstance(value, tuple) else vars(value).values() if hasattr(value, "__dict__") else ()
    return [one for part in parts for one in _tensors(part)]


@pytest.fixture
def pretended_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs on a CPU."""

    def capture(run: Callable[[], object], *_: object) -> tuple[PretendedGraph, object]:
        result = run()
        return PretendedGraph(run, result), result

    monkeypatch.setattr(erpcnet.utils.cuda_graphs, "capture", capture)
    monkeypatch.setattr(erpcnet.utils.cuda_graphs, "side_stream", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _mode: None)
