"""One picture in every form that a person may have it in, and what is said of those that are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from erpcnet.errors import InputError
from erpcnet.inference import Prediction, ZeroShotClassifier
from erpcnet.inference.pictures import KINDS, as_list, open_picture


class Linked(os.PathLike[str]):
    """A path that is no `Path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


FORMS: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "text": lambda path, pixels: str(path),
    "path": lambda path, pixels: path,
    "other path": lambda path, pixels: Linked(path),
    "Pillow": lambda path, pixels: Image.fromarray(pixels),
    "opened file": lambda path, pixels: Image.open(path),
    "bytes": lambda path, pixels: pixels,
    "turned in memory": lambda path, pixels: np.ascontiguousarray(pixels[::-1, ::-1])[::-1, ::-1],
    "float16": lambda path, pixels: (pixels / 255).astype(np.float16),
    "float32": lambda path, pixels: (pixels / 255).astype(np.float32),
    "float64": lambda path, pixels: pixels / 255,
    "opaque": lambda path, pixels: np.dstack([pixels, np.full(pixels.shape[:2], 255, dtype=np.uint8)]),
    "opaque numbers": lambda path, pixels: np.dstack([pixels / 255, np.ones(pixels.shape[:2])]),
    "Pillow with alpha": lambda path, pixels: Image.fromarray(pixels).convert("RGBA"),
    "tensor of bytes": lambda path, pixels: torch.from_numpy(pixels).permute(2, 0, 1),
    "tensor": lambda path, pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255,
    "tensor of doubles": lambda path, pixels: torch.from_numpy(pixels).permute(2, 0, 1).double() / 255,
    "tensor with a gradient": lambda path, pixels: (torch.from_numpy(pixels).permute(2, 0, 1) / 255).requires_grad_(),
    "opaque tensor": lambda path, pixels: torch.cat([torch.from_numpy(pixels / 255), torch.ones(80, 60, 1)], 2).permute(
        2, 0, 1
    ),
}


@pytest.fixture
def pixels(picture: Path) -> np.ndarray:
    """[80, 60, 3]."""
    return np.array(Image.open(picture))


@pytest.fixture
def model(classifier: ZeroShotClassifier) -> ZeroShotClassifier:
    """Takes all steps, so that no rounding decides where it stops."""
    classifier.point = replace(classifier.point, sigma=float("inf"))
    return classifier


def same(found: Prediction, expected: Prediction) -> None:
    """The same answer at the same places, but for rounding."""
    assert (found.name, found.steps, found.among) == (expected.name, expected.steps, expected.among)
    assert found.confidence == pytest.approx(expected.confidence, abs=1e-4)
    assert found.attributes == pytest.approx(expected.attributes, abs=1e-3)
    for one, other in zip(found.localities, expected.localities, strict=True):
        assert one.box == pytest.approx(other.box, abs=1e-2)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_picture(form: str, picture: Path, pixels: np.ndarray) -> None:
    opened = open_picture(FORMS[form](picture, pixels))
    assert opened.mode == "RGB"
    assert np.array_equal(np.asarray(opened), pixels)


def test_every_form_gets_the_same_answer(model: ZeroShotClassifier, picture: Path, pixels: np.ndarray) -> None:
    expected = model.predict(picture)
    forms = [make(picture, pixels) for make in FORMS.values()]
    for form in forms:
        alone = model.predict(form)
        assert isinstance(alone, Prediction)
        same(alone, expected)
    together = model.predict(forms, batch_size=8)
    assert len(together) == len(FORMS)
    for one in together:
        same(one, expected)
    for one in model.predict(form for form in forms[:2]):  # type: ignore[call-overload]
        same(one, expected)


def test_four_dimensions_are_a_batch(model: ZeroShotClassifier, pixels: np.ndarray) -> None:
    several = np.stack([pixels, pixels[::-1], 255 - pixels])
    expected = [model.predict(Image.fromarray(one)) for one in several]
    channels_first = torch.from_numpy(several).permute(0, 3, 1, 2)
    for batch in (several, several / 255, channels_first, channels_first / 255, list(several), tuple(channels_first)):
        found = model.predict(batch)
        assert isinstance(found, list)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    alone = model.predict(several[:1])  # a batch of one is a batch
    assert isinstance(alone, list)
    same(alone[0], expected[0])
    assert model.predict(several[:0]) == []
    assert model.predict([]) == []


@pytest.mark.parametrize(
    "form",
    [
        lambda grey: Image.fromarray(grey),
        lambda grey: grey,
        lambda grey: grey[:, :, None],
        lambda grey: grey / 255,
        lambda grey: torch.from_numpy(grey),
        lambda grey: torch.from_numpy(grey)[None],
        lambda grey: torch.from_numpy(grey / 255)[None],
    ],
    ids=["Pillow", "two dimensions", "one channel", "numbers", "tensor", "tensor of a channel", "tensor of numbers"],
)
def test_grey_is_the_same_in_every_channel(form: Callable[[np.ndarray], Any], pixels: np.ndarray) -> None:
    grey = pixels[:, :, 0].copy()
    assert np.array_equal(np.asarray(open_picture(form(grey))), np.dstack([grey] * 3))


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("tensor", [False, True])
def test_transparency_lies_on_white(numbers: bool, tensor: bool, pixels: np.ndarray) -> None:
    alpha = np.zeros((80, 60), dtype=np.uint8)
    alpha[:40] = 255
    alpha[40:60] = 51  # a fifth
    array: np.ndarray = np.dstack([pixels, alpha])
    array = array / 255 if numbers else array
    found = np.asarray(open_picture(torch.from_numpy(array).permute(2, 0, 1) if tensor else array), dtype=float)
    assert np.array_equal(found[:40], pixels[:40])
    np.testing.assert_allclose(found[40:60], 0.2 * pixels[40:60] + 0.8 * 255, atol=1.5)
    assert (found[60:] == 255).all()


def test_real_numbers_are_rounded_to_the_nearest_byte() -> None:
    values = np.array([[0, 0.0019, 0.0021, 0.5, 0.9979, 0.9981, 1]])
    assert np.asarray(open_picture(values))[0, :, 0].tolist() == [0, 0, 1, 128, 254, 255, 255]


def test_one_or_many() -> None:
    image, array, tensor = Image.new("RGB", (4, 4)), np.zeros((4, 4, 3)), torch.zeros(3, 4, 4)
    single: tuple[Any, ...] = ("a.png", Path("a.png"), Linked(Path("a.png")), image, array, tensor, array[:, :, 0])
    for one in single:
        given, alone = as_list(one)
        assert (len(given), alone) == (1, True)
        assert given[0] is one
    several: tuple[Any, ...] = (["a.png", image], ("a.png", "b.png"), iter(["a.png", "b.png"]), np.zeros((2, 4, 4, 3)))
    for many in several:
        given, alone = as_list(many)
        assert (len(given), alone) == (2, False)


@pytest.mark.parametrize("wrong", [b"\x89PNG", 7, None, 1.5, np.uint8(3)])
def test_what_is_no_picture_is_named(classifier: ZeroShotClassifier, wrong: object) -> None:
    kind = type(wrong).__name__
    with pytest.raises(InputError, match=rf"a picture is .*, or a list of these, not {kind}\."):
        classifier.predict(wrong)  # type: ignore[call-overload]
    with pytest.raises(InputError) as told:
        classifier.predict([wrong])  # type: ignore[list-item]
    assert str(told.value) == f"a picture is {KINDS}, not {kind}."


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        (np.zeros((4, 5, 2), np.uint8), r"\(4, 5, 2\)"),
        (np.zeros((3, 8, 9), np.uint8), r"\(3, 8, 9\)"),  # channels first are a tensor's
        (np.zeros(5), r"\(5,\)"),
        (np.array(3), r"\(\)"),
        (np.array(["a.png"]), r"\(1,\)"),
    ],
)
def test_arrays_of_another_shape_are_refused(wrong: np.ndarray, shape: str) -> None:
    message = rf"a picture is an array \[height, width, 3\] with 1, 3 or 4 channels; this one is {shape}\."
    with pytest.raises(InputError, match=message):
        open_picture(wrong)


@pytest.mark.parametrize("shape", [(8, 9, 3), (2, 4, 5), (5,), (), (1, 3, 4, 5)])
def test_tensors_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as told:
        open_picture(torch.zeros(shape))
    form = "a tensor [3, height, width] with 1, 3 or 4 channels"
    assert str(told.value) == f"a picture is {form}; this one is {shape}."


@pytest.mark.parametrize(
    "wrong", [np.zeros((0, 4, 3), np.uint8), np.zeros((4, 0)), torch.zeros(3, 4, 0), Image.new("RGB", (0, 3))]
)
def test_pictures_without_pixels_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"^a picture has no pixels\.$"):
        open_picture(wrong)


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", [False, True])
def test_numbers_out_of_range_are_refused(value: float, tensor: bool) -> None:
    array = np.full((4, 4, 3), 0.5)
    array[2, 1, 0] = value
    wrong = torch.from_numpy(array).permute(2, 0, 1) if tensor else array
    with pytest.raises(InputError, match=r"real numbers has values from 0 to 1; give bytes from 0 to 255 otherwise"):
        open_picture(wrong)


@pytest.mark.parametrize("kind", ["int64", "int8", "uint16", "bool", "complex64"])
def test_other_numbers_are_refused(kind: str) -> None:
    array = np.ones((4, 4, 3)).astype(kind)
    with pytest.raises(InputError, match=f"a picture holds bytes or real numbers from 0 to 1, not {kind}"):
        open_picture(array)


def test_pillow_images_that_do_not_decode_are_refused(pixels: np.ndarray) -> None:
    file = BytesIO()
    Image.fromarray(np.repeat(np.repeat(pixels[:, :, 0], 5, 0), 5, 1)).save(file, "PNG")
    half = Image.open(BytesIO(file.getvalue()[: len(file.getvalue()) // 2]))
    with pytest.raises(InputError, match="a Pillow image does not decode"):
        open_picture(half)


def test_pillow_images_of_too_many_pixels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2 * 10**6)
    assert open_picture(Image.new("L", (2000, 1000))).size == (2000, 1000)
    with pytest.raises(InputError, match="a picture has more than 2 million pixels; make it smaller"):
        open_picture(Image.new("L", (2000, 1001)))


def test_files_that_are_no_pictures_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    for wrong, message in {
        str(tmp_path / "a.png"): "a.png does not decode as an image",
        str(tmp_path / "b.png"): "b.png is not there",
        str(tmp_path): "is a folder; give a picture file",
        "": "a picture is empty; give a path",
    }.items():
        with pytest.raises(InputError, match=message):
            open_picture(wrong)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8"])
def test_a_batch_holds_a_picture_at_least(classifier: ZeroShotClassifier, picture: Path, size: Any) -> None:
    with pytest.raises(InputError, match=rf"batch_size is {size!r}; it must be a whole number, 1 or more"):
        classifier.predict(picture, batch_size=size)


@pytest.mark.parametrize("wrong", [torch.zeros(3, 8, 9).to_sparse(), torch.zeros(3, 8, 9, device="meta")])
def test_tensors_without_numbers_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(InputError, match="a dense tensor"):
        open_picture(wrong)


def test_a_closed_image_is_refused(picture: Path) -> None:
    closed = Image.open(picture)
    closed.close()
    with pytest.raises(InputError, match="does not decode"):
        open_picture(closed)
