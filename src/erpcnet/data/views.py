"""Crops of cached images, a whole batch at a time, on whatever device holds the pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from erpcnet.data.settings import DataSettings
from erpcnet.model.preprocessing import Interpolation, Preprocessing

Activity = Callable[[Tensor], Tensor]  # images [N, 3, size, size] to how much there is at their places [N, h, w]
# The side of a closer view: so many standard deviations of where there is something (an evenly filled square is
# sqrt(12) = 3.46 of them wide), but a share of the usual view's between these.
SPREADS = 4.85
NEAREST, FARTHEST = 0.45, 0.95


def over_views(found: Tensor, images: int) -> Tensor:
    """What was found for so many images in the first view, then in the second, ..., averaged: [views * N, ...] to
    [N, ...].
    """
    return found.unflatten(0, (-1, images)).mean(dim=0)


class ViewsAtTest(NamedTuple):
    """What the network is shown of pictures at test.

    images: [views * N, 3, size, size], all pictures in the first view, then all in the second, ...; usual and closer:
    [N, 4], which part of each picture the usual and the closer view are, as shares; closer is None with one view.
    """

    images: Tensor
    usual: Tensor
    closer: Tensor | None


def views_at_test(
    pixels: Tensor, shapes: Tensor, settings: DataSettings, preprocessing: Preprocessing, activity: Activity
) -> ViewsAtTest:
    """Test-time augmentation: the usual view of pictures, a closer one of what is active in it, and both mirrored.

    Args:
        pixels: [N, 3, S, S] uint8, whole pictures squeezed into squares.
        shapes: [N, 2], their own height and width.
        settings: Size and number of the views.
        preprocessing: How the backbone's weights want them.
        activity: Says how much there is at the places of a view: images [N, 3, size, size] to [N, h, w].
    """
    usual, closer = centre_boxes(shapes, preprocessing.crop_share), None
    shown = [take_views(pixels, usual, settings.image_size, preprocessing=preprocessing)]
    if settings.test_views > 1:
        closer = closer_boxes(activity(shown[0]), usual, shapes)
        shown.append(take_views(pixels, closer, settings.image_size, preprocessing=preprocessing))
    if settings.test_views > 2:
        shown += [view.flip(3) for view in shown]
    return ViewsAtTest(torch.cat(shown), usual, closer)


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
    pixels: Tensor,
    boxes: Tensor,
    size: int,
    flip: Tensor | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    precision: torch.dtype | None = None,
) -> Tensor:
    """Cut `boxes` out of squeezed pictures and make them `size` x `size`, normalised.

    A view is a product with two matrices, one for the columns, mirrored or not, and one for the rows. On a GPU both are
    in half precision: pixels are exact in it, and what is lost is a fraction of a grey level.

    Args:
        pixels: [N, 3, S, S] uint8.
        boxes: [N, 4] left, upper, right and lower, as shares of width and height.
        size: Side of the views.
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
    views = torch.bmm(rows, last).view(count, size, size, channels).float()
    if how.interpolation == "bicubic":  # which overshoots at edges
        views = views.clamp(0, 255)
    mean, std = _statistics(how, pixels.device)
    return views.sub_(mean).div_(std).permute(0, 3, 1, 2)


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
