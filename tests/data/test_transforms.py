from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from erpcnet.config import DataSettings
from erpcnet.data.transforms import centre_boxes, crop_for_test, object_boxes, random_boxes, resample, tta_crops
from erpcnet.model.preprocessing import Interpolation, Preprocessing

MEAN, STD = Preprocessing().mean, Preprocessing().std


def _undone(views: torch.Tensor) -> torch.Tensor:
    return views * torch.tensor(STD)[:, None, None] * 255 + torch.tensor(MEAN)[:, None, None] * 255


def test_a_centre_crop_of_a_squeezed_picture_is_undistorted() -> None:
    # A wide picture with a round disc: squeezed, it is an ellipse; in the crop it must be round again.
    y, x = np.mgrid[0:120, 0:240]
    disc = (((x - 120) ** 2 + (y - 60) ** 2) < 40**2).astype(np.uint8) * 255
    picture = Image.fromarray(disc).convert("RGB")
    squeezed = np.asarray(picture.resize((128, 128), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    boxes = centre_boxes(torch.tensor([[120.0, 240.0]]), share=1.0)
    view = _undone(resample(torch.from_numpy(squeezed.copy())[None], boxes, 120))[0, 0]
    expected = torch.from_numpy(disc[:, 60:180].astype(np.float32))
    assert (view - expected).abs().mean() < 6  # only the rim differs, by interpolation
    bright = view > 128
    assert abs(int(bright.any(0).sum()) - int(bright.any(1).sum())) <= 2


def test_random_crops_cover_the_asked_share() -> None:
    shapes = torch.tensor([[100.0, 150.0]]).expand(2000, 2)
    boxes = random_boxes(shapes, torch.Generator().manual_seed(0), (0.3, 0.6))
    assert boxes.min() >= 0
    assert boxes.max() <= 1 + 1e-6
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert area.max() <= 0.6 + 1e-5
    assert (area >= 0.3 - 1e-5).float().mean() > 0.9  # the rest was narrowed to fit
    aspect = (boxes[:, 2] - boxes[:, 0]) * 150 / ((boxes[:, 3] - boxes[:, 1]) * 100)
    assert 0.7 < aspect.min() < aspect.max() < 1.4


def _object_box(saliency: np.ndarray, box: list[float], height: float, width: float) -> list[float]:
    """Place by place, in pixels of the picture."""
    left, upper, right, lower = box[0] * width, box[1] * height, box[2] * width, box[3] * height
    rows, columns = saliency.shape
    above = np.maximum(saliency - saliency.mean(), 0)
    above = above if above.any() else np.ones_like(above)
    sums = np.zeros(5)
    for row in range(rows):
        for column in range(columns):
            x = left + (column + 0.5) * (right - left) / columns
            y = upper + (row + 0.5) * (lower - upper) / rows
            sums += above[row, column] * np.array([1, x, y, x * x, y * y])
    _, x, y, xx, yy = sums / sums[0]
    spread = np.sqrt(max(xx - x * x, yy - y * y, 0))
    side = float(np.clip(4.85 * spread, 0.45 * (right - left), 0.95 * (right - left)))
    x, y = np.clip(x, side / 2, width - side / 2), np.clip(y, side / 2, height - side / 2)
    return [(x - side / 2) / width, (y - side / 2) / height, (x + side / 2) / width, (y + side / 2) / height]


@pytest.mark.parametrize("share", [0.875, 1.0])
def test_an_object_crop_surrounds_what_is_salient(share: float) -> None:
    draw = np.random.default_rng(0)
    shapes = torch.from_numpy(draw.uniform(50, 400, (40, 2)))
    saliency = torch.from_numpy(draw.exponential(size=(40, 7, 7)) ** 3)  # a few places stand out
    saliency[0] = 5.0  # nothing does
    saliency[1] = 0.0
    saliency[2, 0, 0], saliency[3, 6, 6] = 1e4, 1e4  # in a corner
    boxes = centre_boxes(shapes, share)
    found = object_boxes(saliency, boxes, shapes)
    expected = [_object_box(*one) for one in zip(saliency.numpy(), boxes.tolist(), *shapes.T.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert found.min() >= 0
    assert found.max() <= 1
    height, width = ((found[:, 2:] - found[:, :2]).flip(1) * shapes).unbind(1)
    torch.testing.assert_close(height, width)
    usual = share * shapes.amin(dim=1)
    assert (height / usual).min() == pytest.approx(0.45)  # the corners
    torch.testing.assert_close(height[:2], 0.95 * usual[:2])
    torch.testing.assert_close(found[:2], centre_boxes(shapes[:2], 0.95 * share))


def test_flipping_mirrors_only_those_asked() -> None:
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(2, 4)
    plain = resample(pixels, boxes, 32)
    mixed = resample(pixels, boxes, 32, torch.tensor([True, False]))
    torch.testing.assert_close(mixed[0], plain[0].flip(2))
    torch.testing.assert_close(mixed[1], plain[1])


def test_a_whole_crop_is_the_picture() -> None:
    pixels = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    view = resample(pixels, torch.tensor([[0.0, 0.0, 1.0, 1.0]]), 16)
    torch.testing.assert_close(_undone(view), pixels.float(), atol=0.01, rtol=0)


@pytest.mark.parametrize("size", [20, 64, 90])
@pytest.mark.parametrize(("interpolation", "rounding"), [("bilinear", 1.6), ("bicubic", 2.2)])
def test_crops_are_what_pillow_cuts_and_resizes(size: int, interpolation: Interpolation, rounding: float) -> None:
    # Of middling greys: Pillow also clips what overshoots after the first of the two directions.
    pixels = torch.randint(64, 192, (4, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    boxes = random_boxes(torch.full((4, 2), 64.0), torch.Generator().manual_seed(0), (0.2, 0.9))
    views = _undone(resample(pixels, boxes, size, preprocessing=Preprocessing(interpolation=interpolation)))
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for picture, box, view in zip(pixels, boxes * 64, views, strict=True):
        image = Image.fromarray(picture.permute(1, 2, 0).numpy())
        expected = image.resize((size, size), filters[interpolation], box=tuple(box.tolist()))
        difference = view - torch.from_numpy(np.asarray(expected).copy()).permute(2, 0, 1)
        assert difference.abs().max() < rounding  # Pillow rounds after each of the two directions


def test_crops_have_channels_last_in_memory() -> None:
    views = resample(torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2), 8)
    assert views.is_contiguous(memory_format=torch.channels_last)


def test_half_precision_costs_a_fraction_of_a_grey_level() -> None:
    pixels = torch.randint(0, 256, (4, 3, 96, 96), dtype=torch.uint8)
    boxes = random_boxes(torch.full((4, 2), 96.0), torch.Generator().manual_seed(0), (0.1, 1.0))
    full, half = (resample(pixels, boxes, 64, precision=dtype) for dtype in (torch.float32, torch.float16))
    assert (_undone(half) - _undone(full)).abs().max() < 0.5


@pytest.mark.parametrize("crops", [1, 2, 4])
def test_the_recipe_of_test_time_augmentation(crops: int) -> None:
    centre, found = torch.rand(3, 4), torch.rand(3, 4)
    recipe = tta_crops(centre, crops, lambda boxes: found if boxes is centre else boxes)  # type: ignore[arg-type]
    expected = [(centre, False), (found, False), (centre, True), (found, True)][:crops]
    assert [(own.boxes is boxes, own.mirrored) for own, (boxes, _) in zip(recipe, expected, strict=True)] == [
        (True, mirrored) for _, mirrored in expected
    ]


def test_pictures_are_cropped_by_the_recipe() -> None:
    drawn = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8, generator=drawn)
    shapes = torch.tensor([[40.0, 60.0], [50.0, 30.0], [40.0, 40.0]])
    settings = DataSettings(image_size=32, test_crops=4)
    shown = crop_for_test(pixels, shapes, settings, Preprocessing(), lambda images: images.square().sum(dim=1))
    assert shown.images.shape == (4, 3, 3, 32, 32)
    centre = resample(pixels, centre_boxes(shapes, 0.875), 32)
    found = object_boxes(centre.square().sum(dim=1), centre_boxes(shapes, 0.875), shapes)
    assert shown.object is not None
    torch.testing.assert_close(shown.object, found)
    plain = torch.stack([centre, resample(pixels, found, 32)])
    torch.testing.assert_close(shown.images, torch.cat([plain, plain.flip(4)]), atol=1e-4, rtol=1e-4)
    assert shown.images.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
