"""Pictures of the localities that were selected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import Normal, Stroke
from PIL import Image

from erpcnet.inference.classifier import Picture, Prediction, open_picture

RIGHT, WRONG = "#1f77ff", "#ffc400"  # the paper's colours: blue is correct, yellow is wrong
WIDTH, TITLE = 3.2, 0.3  # of a picture and its title, in inches
TALLEST = 1.4  # height of a picture by its width
COLUMNS = 3  # so many pictures beside each other can be read on a page
THUMBNAIL, GAP, LINE = (
    0.31,
    0.03,
    0.064,
)  # a window that is shown enlarged, the gap beside it, a line of text; the picture is 1
OUTLINE = [Stroke(linewidth=3.4, foreground="white"), Normal()]
OBJECT_CROP: dict[str, Any] = {"edgecolor": "white", "linestyle": "--", "linewidth": 1.2}


def draw_localities(
    pictures: Sequence[Picture], predictions: Sequence[Prediction], truths: Sequence[str | None], out: str | Path
) -> None:
    """The numbered localities of each picture, with the answer and its confidence after each step, and of all crops.

    The object crop of test-time augmentation is a dashed frame. Windows that were read from a finer image (zoom) are
    also shown enlarged, below the picture.

    Args:
        pictures: Files or Pillow images.
        predictions: What was predicted of each.
        truths: Their classes, where they are known.
        out: The PNG file.
    """
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    lines = max((len(_lines(prediction)) for prediction in predictions), default=1)
    zoomed = max((prediction.steps for prediction in predictions if prediction.zoom > 1), default=0)
    thumbnails = -(-zoomed // COLUMNS)
    opened = [open_picture(picture) for picture in pictures]
    side = WIDTH * min(max(picture.height / picture.width for picture in opened), TALLEST)  # of the tallest picture
    below = side * (LINE * (lines + 1) + (THUMBNAIL + GAP) * thumbnails)
    height = rows * (side + below + TITLE) + TITLE
    figure, axes = plt.subplots(rows, columns, figsize=(1.04 * WIDTH * columns, height), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
        axis.set_anchor("N")
    for axis, picture, prediction, truth in zip(axes.flat, opened, predictions, truths, strict=False):
        _draw_one(axis, picture, prediction, truth, thumbnails)
    between = (below + TITLE) / side
    figure.subplots_adjust(0.01, (below + TITLE) / height, 0.99, 1 - TITLE / height, wspace=0.04, hspace=between)
    if any(truth is not None for truth in truths):
        handles = [Patch(color=RIGHT, label="right after this step"), Patch(color=WRONG, label="wrong after this step")]
        figure.legend(handles=handles, loc="lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def _draw_one(axis: Axes, picture: Image.Image, prediction: Prediction, truth: str | None, thumbnails: int) -> None:
    """One picture; `thumbnails` is for how many rows of enlarged windows there is room below it."""
    axis.imshow(picture)
    if prediction.zoom > 1:
        _draw_enlarged(axis, picture, prediction, truth)
    if prediction.object_crop is not None:
        left, upper, right, lower = prediction.object_crop
        axis.add_patch(Rectangle((left, upper), right - left, lower - upper, fill=False, **OBJECT_CROP))
    shift = min(picture.size) * 0.012
    for number, locality in enumerate(prediction.localities, start=1):
        colour = _colour(locality.answer, truth)
        left, upper, right, lower = locality.box
        # Overlapping windows are nudged apart, so that each frame can be seen.
        nudge = shift * (number - 1)
        frame = Rectangle(
            (left + nudge, upper + nudge),
            right - left,
            lower - upper,
            fill=False,
            edgecolor=colour,
            linewidth=1.8,
            path_effects=OUTLINE,
        )
        axis.add_patch(frame)
        axis.text(
            left + nudge, upper + nudge, str(number), fontsize=7, color="black", va="top",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip
    axis.set_title(f"true: {truth}" if truth else prediction.name, fontsize=8)
    for place, (name, answer, confidence) in enumerate(_lines(prediction)):
        axis.text(
            0.01, -0.02 - (THUMBNAIL + GAP) * thumbnails - LINE * place, f"{name}: {answer} {confidence:.0%}",
            transform=axis.transAxes, fontsize=8,
            va="top", color="#0b4fb3" if answer == truth or truth is None else "#9a6a00",
        )  # fmt: skip


def _draw_enlarged(axis: Axes, picture: Image.Image, prediction: Prediction, truth: str | None) -> None:
    """The windows as the network read them, in rows below the picture."""
    for number, locality in enumerate(prediction.localities):
        row, column = divmod(number, COLUMNS)
        place = (column * (THUMBNAIL + GAP) + 0.01, -(row + 1) * (THUMBNAIL + GAP), THUMBNAIL, THUMBNAIL)
        inset = axis.inset_axes(place)
        left, upper, right, lower = (round(edge) for edge in locality.box)
        inset.imshow(picture.crop((left, upper, right, lower)))
        inset.set_xticks([])
        inset.set_yticks([])
        for spine in inset.spines.values():
            spine.set(color=_colour(locality.answer, truth), linewidth=1.8)
        inset.text(
            0.04, 0.96, str(number + 1), fontsize=7, va="top", transform=inset.transAxes,
            bbox={"facecolor": _colour(locality.answer, truth), "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip


def _lines(prediction: Prediction) -> list[tuple[str, str, float]]:
    """What was answered after the glance and after each step; and, of several crops, together."""
    lines = [("glance", prediction.glance_answer, prediction.glance_confidence)]
    lines += [
        (f"step {n}", locality.answer, locality.confidence) for n, locality in enumerate(prediction.localities, start=1)
    ]
    if prediction.crops > 1:
        lines.append((f"{prediction.crops} crops", prediction.name, prediction.confidence))
    return lines


def _colour(answer: str, truth: str | None) -> str:
    return RIGHT if truth is None or answer == truth else WRONG
