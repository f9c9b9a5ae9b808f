from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import between, small_network
from erpcnet.config import DataSettings, LocalSettings, TestCrops
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, ZeroShotClassifier
from erpcnet.inference.export import export
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint, StopRule

RUN = """
import json, sys, numpy, torch
about = {"about.json": ""}
program = torch.export.load(sys.argv[1], extra_files=about).module()
about = json.loads(about["about.json"])
given = numpy.load(sys.argv[2])
chosen = torch.tensor(json.loads(sys.argv[3]))
attributes, seen = (torch.tensor(about[name])[chosen] for name in ("attributes", "seen"))
pixels, shapes = (torch.from_numpy(given[name]) for name in ("pixels", "shapes"))
chances, windows, steps = program(pixels, shapes, attributes, seen)
assert not [name for name in sys.modules if name.startswith("erpcnet")]
print(json.dumps([chances.tolist(), windows.tolist(), steps.tolist(), about["crops"]]))
"""


def classifier(variant: str, crops: TestCrops = 1, sigma: float = 0.45, zoom: int = 1) -> ZeroShotClassifier:
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    network = small_network(variant, hubness=0.3, local=LocalSettings(zoom=zoom))
    network.set_prototypes(torch.randn(5, 7, generator=torch.Generator().manual_seed(5)))
    point = OperatingPoint(sigma, 0.3, "fixed", temperature=(1.9, 1.3), temperature_all=(2.6, 2.1))
    preprocessing = Preprocessing(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), interpolation="bicubic", crop_share=0.8)
    return ZeroShotClassifier(
        network, table, DataSettings(image_size=64 * zoom, test_crops=crops), point, preprocessing
    )


def pictures(count: int) -> list[Image.Image]:
    """Wide and tall ones, of blobs rather than of noise, so that crops of them differ as crops of photographs do."""
    rng = np.random.default_rng(1)
    coarse = [Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)) for _ in range(count)]
    return [one.resize((90, 70) if number % 2 else (70, 110)) for number, one in enumerate(coarse)]


def prepared(model: ZeroShotClassifier, shown: list[Image.Image]) -> tuple[np.ndarray, np.ndarray]:
    """As the README tells: whole pictures as squares, and their own height and width."""
    side = (model.data.stored_size, model.data.stored_size)
    squares = [
        np.asarray(one.resize(side, Image.Resampling.BICUBIC, reducing_gap=3)).transpose(2, 0, 1) for one in shown
    ]
    return np.stack(squares), np.array([(one.height, one.width) for one in shown], dtype=np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "first", "crops", "zoom"),
    [("erpcnet", 5, 1, 1), ("erpcnet", 0, 4, 1), ("erpcnet", 5, 2, 2), ("globalnet", 0, 2, 1), ("hardnet", 5, 1, 1)],
)
def test_torch_alone_answers_as_predicting_does(
    variant: str, first: int, crops: TestCrops, zoom: int, tmp_path: Path
) -> None:
    shown, chosen = pictures(5), list(range(first, 9))  # the unseen classes, or all
    model = classifier(variant, crops, zoom=zoom)
    if model.network.policy is not None:  # stop where no reward is near
        classes = model.network.classes(model.classes.phi()[first:], torch.from_numpy(model.classes.seen)[first:])
        with torch.inference_mode():
            rewards = StopRule(model.network, classes, 0.0).rewards(model.engine.rollout(model._crop(shown).images))
        model = classifier(variant, crops, between(rewards[..., 0]), zoom)
    expected = model.predict(shown, [f"class {number}" for number in chosen])
    export(model, tmp_path / "model.pt2")
    squares, shapes = prepared(model, shown)
    np.savez(tmp_path / "given.npz", pixels=squares, shapes=shapes)
    command = [sys.executable, "-c", RUN, str(tmp_path / "model.pt2"), str(tmp_path / "given.npz"), json.dumps(chosen)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    chances, windows, steps, about_crops = json.loads(told)
    assert about_crops == crops
    for number, one in enumerate(expected):
        place = int(np.argmax(chances[number]))
        assert f"class {chosen[place]}" == one.name
        assert chances[number][place] == pytest.approx(one.confidence, abs=1e-4)
        assert steps[number] == one.steps
        boxes = np.array([locality.box for locality in one.localities]).reshape(-1, 4)
        size = np.array(shown[number].size * 2)
        np.testing.assert_allclose(size * np.array(windows[number]).reshape(-1, 4)[: one.steps], boxes, atol=1e-3)
    if (variant, first, zoom) == ("erpcnet", 5, 1):
        assert len(set(steps)) > 1  # some are sure before others


def test_any_number_of_images_and_classes(tmp_path: Path) -> None:
    model = classifier("erpcnet", sigma=float("inf"))
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for images, classes in ((1, 9), (2, 2), (7, 3)):
        pixels, shapes = (torch.from_numpy(one) for one in prepared(model, pictures(images)))
        table = [torch.from_numpy(one)[:classes] for one in (model.classes.attributes, model.classes.seen)]
        together, windows, steps = program(pixels, shapes, *table)
        assert together.shape == (images, classes)
        assert steps.tolist() == [model.network.steps] * images
        for number in range(images):
            alone, own, _ = program(pixels[number : number + 1], shapes[number : number + 1], *table)
            torch.testing.assert_close(alone[0], together[number], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(own[0], windows[number], atol=1e-5, rtol=1e-5)


def test_what_selects_at_random_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'pcnet' selects at random"):
        export(classifier("pcnet"), tmp_path / "model.pt2")
