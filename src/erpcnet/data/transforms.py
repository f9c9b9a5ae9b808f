"""Transforms: random crops for training, test-time augmentation, resampling; a whole batch at a time, on any device.

A box is left, upper, right and lower as shares of a picture's width and height.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from erpcnet.config.data import DataSettings, TestCrops
from erpcnet.model.preprocessing import Interpolation, Preprocessing

Saliency = Callable[[Tensor], Tensor]  # images [N, 3, size, size] to how much there is at their places [N, h, w]
# The side of an object crop: so many standard deviations of where there is something (an evenly filled square is
# sqrt(12) = 3.46 of them wide), but a share of the centre crop's between these.
SPREADS = 4.85
SMALLEST, LARGEST = 0.45, 0.95


class TTACrop(NamedTuple):
    """One crop of each of N images at test: its boxes [N, 4], as shares of width and height, mirrored or not."""

    boxes: Tensor
    mirrored: bool


def tta_crops(centre: Tensor, crops: TestCrops, find_objects: Callable[[Tensor], Tensor]) -> list[TTACrop]:
    """Test-time augmentation: the recipe that evaluation, prediction and export share.

    Args:
        centre: [N, 4], boxes of the centre crops.
        crops: 1: the centre crop; 2: an object crop too; 4: both and their mirror images.
        find_objects: From boxes to those of the objects in them; see `object_boxes`.

    Returns:
        The crops, in the order of the axis `crops` wherever results have one.
    """
    if crops == 1:
        return [TTACrop(centre, mirrored=False)]
    boxes = [centre, find_objects(centre)]
    return [TTACrop(one, mirrored) for mirrored in ((False,) if crops == 2 else (False, True)) for one in boxes]


class CroppedImages(NamedTuple):
    """What the network is shown of pictures at test.

    images: [crops, N, 3, size, size]; centre and object: [N, 4], which part of each picture the centre and the object
    crop are, as shares; object is None with one crop.
    """

    images: Tensor
    centre: Tensor
    object: Tensor | None


def crop_for_test(
    pixels: Tensor, shapes: Tensor, settings: DataSettings, preprocessing: Preprocessing, saliency: Saliency
) -> CroppedImages:
    """The crops of pictures that are at hand.

    Args:
        pixels: [N, 3, S, S] uint8, whole pictures squeezed into squares.
        shapes: [N, 2], their own height and width.
        settings: Size and number of the crops.
        preprocessing: How the backbone's weights want them.
        saliency: Says how much there is at the places of a crop: images [N, 3, size, size] to [N, h, w].
    """

    def show(crop: TTACrop) -> Tensor:
        flip = torch.ones_like(crop.boxes[:, 0], dtype=torch.bool) if crop.mirrored else None
        return resample(pixels, crop.boxes, settings.image_size, flip, preprocessing=preprocessing)

    centre = TTACrop(centre_boxes(shapes, preprocessing.crop_share), mirrored=False)
    first = show(centre)
    crops = tta_crops(centre.boxes, settings.test_crops, lambda boxes: object_boxes(saliency(first), boxes, shapes))
    # cat, not stack: it leaves the channels last in memory.
    images = torch.cat([first, *(show(crop) for crop in crops[1:])]).unflatten(0, (len(crops), -1))
    return CroppedImages(images, centre.boxes, crops[1].boxes if len(crops) > 1 else None)


def random_boxes(
    shapes: Tensor,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Random resized crops: area a share of the image in `scale`, aspect in `ratio`, anywhere inside.

    shapes: [N, 2] height and width. Returns [N, 4] x1, y1, x2, y2 as shares of width and height.
    """
    count, device = len(shapes), shapes.device
    draw = torch.rand(4, count, generator=generator).to(device)
    area = scale[0] + (scale[1] - scale[0]) * draw[0]
    aspect = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * draw[1])
    image_aspect = shapes[:, 1] / shapes[:, 0]
    # A crop that would stick out is narrowed to the image, as if drawn from a smaller area.
    width = (area * aspect / image_aspect).sqrt().clamp(max=1)
    height = (area * image_aspect / aspect).sqrt().clamp(max=1)
    left, upper = draw[2] * (1 - width), draw[3] * (1 - height)
    return torch.stack([left, upper, left + width, upper + height], dim=1)


def centre_boxes(shapes: Tensor, share: float) -> Tensor:
    """The middle square whose side is `share` of the image's short side. Returns as `random_boxes`."""
    side = shapes.min(dim=1, keepdim=True).values * share
    half = (side / shapes).flip(1) / 2  # (width, height) shares
    return torch.cat([0.5 - half, 0.5 + half], dim=1)


def object_boxes(saliency: Tensor, boxes: Tensor, shapes: Tensor) -> Tensor:
    """Squares around what the crops `boxes` [N, 4] of images show, as large as it is. Returns as `random_boxes`.

    saliency: [N, h, w], how much there is at each place of the crops; what lies above their mean counts.
    shapes: [N, 2] height and width of the images, which the squares do not leave.
    """
    above = (saliency - saliency.mean(dim=(1, 2), keepdim=True)).clamp_min(0)
    above = above + torch.finfo(above.dtype).tiny  # of a crop that is the same everywhere, all counts
    middle, spread = (
        torch.stack(one, dim=1) for one in zip(_moments(above.sum(1)), _moments(above.sum(2)), strict=True)
    )
    whole = shapes.flip(1)  # width and height
    size = (boxes[:, 2:] - boxes[:, :2]) * whole
    cropped = size.amax(dim=1, keepdim=True)
    side = (SPREADS * spread * size).amax(dim=1, keepdim=True)
    half = torch.minimum(torch.maximum(side, SMALLEST * cropped), LARGEST * cropped) / 2
    at = boxes[:, :2] * whole + middle * size
    at = torch.minimum(torch.maximum(at, half), whole - half)
    return torch.cat([(at - half) / whole, (at + half) / whole], dim=1)


def _moments(amounts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [N] of a place, as a share of the way, that is drawn by these amounts [N, n]."""
    count = amounts.shape[1]
    places = (torch.arange(count, device=amounts.device, dtype=amounts.dtype) + 0.5) / count
    chances = amounts / amounts.sum(dim=1, keepdim=True)
    mean = (chances * places).sum(dim=1)
    return mean, (chances * (places - mean[:, None]).square()).sum(dim=1).sqrt()


def resample(
    pixels: Tensor,
    boxes: Tensor,
    size: int,
    flip: Tensor | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    precision: torch.dtype | None = None,
) -> Tensor:
    """Cut `boxes` out of squeezed pictures and make them `size` x `size`, normalised.

    A crop is a product with two matrices, one for the columns, mirrored or not, and one for the rows. On a GPU both are
    in half precision: pixels are exact in it, and what is lost is a fraction of a grey level.

    Args:
        pixels: [N, 3, S, S] uint8.
        boxes: [N, 4] left, upper, right and lower, as shares of width and height.
        size: Side of the crops.
        flip: [N] bool, whether to mirror; None: nothing is mirrored.
        preprocessing: Mean, std and interpolation; by default those usual on ImageNet.
        precision: Of the products.

    Returns:
        [N, 3, size, size] float32, channels last in memory, on which convolutions are fastest.
    """
    count, channels, side = pixels.shape[:3]
    how = preprocessing or Preprocessing()
    precision = precision or (torch.float16 if pixels.is_cuda else torch.float32)
    ends = boxes.view(count, 2, 2).permute(2, 1, 0)
    columns, rows = _resampling(ends, side, size, flip, how.interpolation).to(precision)
    narrowed = torch.bmm(pixels.to(precision).view(count, channels * side, side), columns.transpose(1, 2))
    last = narrowed.view(count, channels, side, size).permute(0, 2, 3, 1).reshape(count, side, size * channels)
    crops = torch.bmm(rows, last).view(count, size, size, channels).float()
    if how.interpolation == "bicubic":  # which overshoots at edges
        crops = crops.clamp(0, 255)
    mean, std = _statistics(how, pixels.device)
    return crops.sub_(mean).div_(std).permute(0, 3, 1, 2)


def _resampling(
    ends: Tensor, side: int, size: int, flip: Tensor | None = None, interpolation: Interpolation = "bilinear"
) -> Tensor:
    """Weights [2, N, size, side] that read `size` values between the two ends of `side` pixels.

    ends: [2, 2, N], shares: of the columns and of the rows, the low and the high end. The kernel spans as many pixels
    as one value stands for where the picture shrinks, so that nothing aliases. `flip` [N] mirrors columns.
    """
    low, high = ends[:, 0, :, None], ends[:, 1, :, None]
    step = (high - low) * side / size
    at = low * side + (torch.arange(size, device=ends.device) + 0.5) * step - 0.5
    if flip is not None:
        at = torch.stack([torch.where(flip[:, None], at[0].flip(1), at[0]), at[1]])
    away = (torch.arange(side, device=ends.device) - at[..., None]).abs() / step.clamp_min(1)[..., None]
    weights = (1 - away).clamp_min(0) if interpolation == "bilinear" else _cubic(away)
    return weights / weights.sum(dim=3, keepdim=True)


def _cubic(away: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2, as Pillow's."""
    near = (1.5 * away - 2.5) * away * away + 1
    far = ((-0.5 * away + 2.5) * away - 4) * away + 2
    return torch.where(away < 1, near, torch.where(away < 2, far, torch.zeros_like(away)))


def _statistics(preprocessing: Preprocessing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and std of values 0 to 255, where the pixels are, sent there once; what is exported brings its own."""
    return (_new_statistics if torch.compiler.is_compiling() else _sent_statistics)(preprocessing, device)


def _new_statistics(preprocessing: Preprocessing, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(values, device=device) * 255 for values in (preprocessing.mean, preprocessing.std))
    return mean, std


_sent_statistics = cache(_new_statistics)
