"""Crops of cached images, a whole batch at a time, on whatever device holds the pixels."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

# Statistics of ImageNet, which every pretrained backbone of torchvision and most of timm expect.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# The side of a closer view: so many standard deviations of where there is something (an evenly filled square is
# sqrt(12) = 3.46 of them wide), but a share of the usual view's between these.
SPREADS = 4.85
NEAREST, FARTHEST = 0.45, 0.95


def over_views(found: Tensor, images: int) -> Tensor:
    """What was found for so many images in the first view, then in the second, ..., averaged: [views * N, ...] to
    [N, ...].
    """
    return found.unflatten(0, (-1, images)).mean(dim=0)


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


def closer_boxes(activity: Tensor, boxes: Tensor, shapes: Tensor) -> Tensor:
    """Squares around what the views `boxes` [N, 4] of images show, as large as it is. Returns as `random_boxes`.

    activity: [N, h, w], how much there is at each place of the views; what lies above their mean counts.
    shapes: [N, 2] height and width of the images, which the squares do not leave.
    """
    above = (activity - activity.mean(dim=(1, 2), keepdim=True)).clamp_min(0)
    above = above + torch.finfo(above.dtype).tiny  # of a view that is the same everywhere, all counts
    middle, spread = (
        torch.stack(one, dim=1) for one in zip(_moments(above.sum(1)), _moments(above.sum(2)), strict=True)
    )
    whole = shapes.flip(1)  # width and height
    size = (boxes[:, 2:] - boxes[:, :2]) * whole
    usual = size.amax(dim=1, keepdim=True)
    side = (SPREADS * spread * size).amax(dim=1, keepdim=True)
    half = torch.minimum(torch.maximum(side, NEAREST * usual), FARTHEST * usual) / 2
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


def take_views(
    pixels: Tensor, boxes: Tensor, size: int, flip: Tensor | None = None, *, precision: torch.dtype | None = None
) -> Tensor:
    """Cut `boxes` out of squeezed pictures and make them `size` x `size`, normalised.

    pixels: [N, 3, S, S] uint8; boxes: [N, 4] shares; flip: [N] bool. Returns [N, 3, size, size] float32, channels
    last in memory, on which convolutions are fastest. A view is a product with two matrices, one for the columns,
    mirrored or not, and one for the rows. On a GPU both are in half precision: pixels are exact in it, and what is
    lost is a fraction of a grey level.
    """
    count, channels, side = pixels.shape[:3]
    precision = precision or (torch.float16 if pixels.is_cuda else torch.float32)
    columns, rows = _resampling(boxes.view(count, 2, 2).permute(2, 1, 0), side, size, flip).to(precision)
    narrowed = torch.bmm(pixels.to(precision).view(count, channels * side, side), columns.transpose(1, 2))
    last = narrowed.view(count, channels, side, size).permute(0, 2, 3, 1).reshape(count, side, size * channels)
    views = torch.bmm(rows, last).view(count, size, size, channels)
    return normalise_(views.float()).permute(0, 3, 1, 2)


def _resampling(ends: Tensor, side: int, size: int, flip: Tensor | None = None) -> Tensor:
    """Weights [2, N, size, side] that read `size` values between the two ends of `side` pixels.

    ends: [2, 2, N], shares: of the columns and of the rows, the low and the high end. Linear interpolation, over as
    many pixels as one value stands for where the picture shrinks, so that nothing aliases. `flip` [N] mirrors columns.
    """
    low, high = ends[:, 0, :, None], ends[:, 1, :, None]
    step = (high - low) * side / size
    at = low * side + (torch.arange(size, device=ends.device) + 0.5) * step - 0.5
    if flip is not None:
        at[0] = torch.where(flip[:, None], at[0].flip(1), at[0])
    away = (torch.arange(side, device=ends.device) - at[..., None]).abs() / step.clamp_min(1)[..., None]
    weights = (1 - away).clamp_min(0)
    return weights / weights.sum(dim=3, keepdim=True)


def normalise_(pixels: Tensor) -> Tensor:
    """Values 0 to 255 [..., 3] to what backbones expect, in place."""
    mean, std = _statistics(pixels.device)
    return pixels.sub_(mean).div_(std)


@cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """MEAN and STD of values 0 to 255, where the pixels are."""
    return torch.tensor(MEAN, device=device) * 255, torch.tensor(STD, device=device) * 255
