from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import between, small_network
from erpcnet.config import DataSettings, LocalSettings, TestCrops
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, ZeroShotClassifier
from erpcnet.inference import export as exporting
from erpcnet.inference.export import export
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint, StopRule, score, stack_logits

RUN = """
import json, sys, numpy, torch
about = {"about.json": ""}
program = torch.export.load(sys.argv[1], extra_files=about).module()
about = json.loads(about["about.json"])
given = numpy.load(sys.argv[2])
chosen = torch.tensor(json.loads(sys.argv[3]))
attributes, seen = (torch.tensor(about[name])[chosen] for name in ("attributes", "seen"))
pixels, shapes = (torch.from_numpy(given[name]) for name in ("pixels", "shapes"))
chances, windows, steps, rejected = program(pixels, shapes, attributes, seen)
assert not [name for name in sys.modules if name.startswith("erpcnet")]
print(json.dumps([chances.tolist(), windows.tolist(), steps.tolist(), rejected.tolist(), about["crops"]]))
"""

RUN_ONNX = """
import json, sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["about.json"])
given, chosen = numpy.load(sys.argv[2]), json.loads(sys.argv[3])
attributes = numpy.array(about["attributes"], numpy.float32)[chosen]
inputs = {"pixels": given["pixels"], "shapes": given["shapes"], "attributes": attributes}
found = session.run(None, inputs | {"seen": numpy.array(about["seen"])[chosen]})
assert not [name for name in sys.modules if name.startswith(("erpcnet", "torch"))]
print(json.dumps([*(one.tolist() for one in found), about["crops"]]))
"""


def classifier(
    variant: str, crops: TestCrops = 1, sigma: float = 0.45, zoom: int = 1, reject: float | None = None
) -> ZeroShotClassifier:
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    network = small_network(variant, hubness=0.3, local=LocalSettings(zoom=zoom), steps=2)
    network.set_prototypes(torch.randn(5, 7, generator=torch.Generator().manual_seed(5)))
    point = OperatingPoint(sigma, 0.3, "fixed", temperature=(1.9, 1.3), temperature_all=(2.6, 2.1), reject=reject)
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


def told_by(program: str, file: Path, given: Path, chosen: list[int]) -> list[Any]:
    """What a process of its own makes of the inputs in a file."""
    command = [sys.executable, "-c", program, str(file), str(given), json.dumps(chosen)]
    told: list[Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "first", "crops", "zoom", "onnx"),
    [
        ("erpcnet", 5, 1, 1, False),
        ("erpcnet", 0, 4, 1, True),
        ("erpcnet", 5, 2, 2, True),
        ("globalnet", 0, 2, 1, False),
        ("hardnet", 5, 1, 1, True),
    ],
)
def test_a_file_alone_answers_as_predicting_does(
    variant: str, first: int, crops: TestCrops, zoom: int, onnx: bool, tmp_path: Path
) -> None:
    shown, chosen = pictures(5), list(range(first, 9))  # the unseen classes, or all
    model, sigma = classifier(variant, crops, zoom=zoom), 0.45
    with torch.inference_mode():
        classes = model.network.classes(model.classes.phi()[first:], torch.from_numpy(model.classes.seen)[first:])
        rollout = model.engine.rollout(model._crop(shown).images)
        if model.network.policy is not None:  # stop where no reward is near
            sigma = between(StopRule(model.network, classes, 0.0).rewards(rollout)[..., 0])
        final = score(model.network, rollout, classes).stopped(sigma).final
        largest = stack_logits(final, torch.from_numpy(model.classes.seen)[first:], 0.3).amax(dim=1)
    model = classifier(variant, crops, sigma, zoom, reject=between(largest, apart=1e-4))
    expected = model.predict(shown, [f"class {number}" for number in chosen])
    squares, shapes = prepared(model, shown)
    given = tmp_path / "given.npz"
    np.savez(given, pixels=squares, shapes=shapes)
    for ending, program in (("pt2", RUN), *([("onnx", RUN_ONNX)] if onnx else [])):
        export(model, tmp_path / f"model.{ending}")
        chances, windows, steps, rejected, about_crops = told_by(program, tmp_path / f"model.{ending}", given, chosen)
        assert about_crops == crops
        for number, one in enumerate(expected):
            place = int(np.argmax(chances[number]))
            assert f"class {chosen[place]}" == one.name
            assert chances[number][place] == pytest.approx(one.confidence, abs=1e-4)
            assert steps[number] == one.steps
            assert rejected[number] == one.rejected
            boxes = np.array([locality.box for locality in one.localities]).reshape(-1, 4)
            size = np.array(shown[number].size * 2)
            np.testing.assert_allclose(size * np.array(windows[number]).reshape(-1, 4)[: one.steps], boxes, atol=1e-3)
        assert len(set(rejected)) == 2
        if (variant, first, zoom) == ("erpcnet", 5, 1):
            assert len(set(steps)) > 1  # some are sure before others


def test_an_onnx_file_that_answers_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ALLOWED", -1.0)
    with pytest.raises(RuntimeError, match="off those of torch"):
        export(classifier("globalnet"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_any_number_of_images_and_classes(tmp_path: Path) -> None:
    model = classifier("erpcnet", sigma=float("inf"))
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for images, classes in ((1, 9), (2, 2), (7, 3)):
        pixels, shapes = (torch.from_numpy(one) for one in prepared(model, pictures(images)))
        table = [torch.from_numpy(one)[:classes] for one in (model.classes.attributes, model.classes.seen)]
        together, windows, steps, rejected = program(pixels, shapes, *table)
        assert not rejected.any()  # without a threshold
        assert together.shape == (images, classes)
        assert steps.tolist() == [model.network.steps] * images
        for number in range(images):
            alone, own, *_ = program(pixels[number : number + 1], shapes[number : number + 1], *table)
            torch.testing.assert_close(alone[0], together[number], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(own[0], windows[number], atol=1e-5, rtol=1e-5)


def test_what_selects_at_random_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'pcnet' selects at random"):
        export(classifier("pcnet"), tmp_path / "model.pt2")


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.pt2 .* or \.onnx"):
        export(classifier("globalnet"), tmp_path / "model.tflite")
