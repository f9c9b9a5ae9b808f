"""Pictures of the localities that were selected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from PIL import Image

from erpcnet.inference.classifier import Picture, Prediction, open_picture

RIGHT, WRONG = "#1f77ff", "#ffc400"  # the paper's colours: blue is correct, yellow is wrong
OBJECT_CROP: dict[str, Any] = {"edgecolor": "white", "linestyle": "--", "linewidth": 1.2}


def draw_localities(
    pictures: Sequence[Picture], predictions: Sequence[Prediction], truths: Sequence[str | None], out: str | Path
) -> None:
    """The numbered localities of each picture, with the answer and its confidence after each step, and of all crops.

    The object crop of test-time augmentation is a dashed frame.

    Args:
        pictures: Files or Pillow images.
        predictions: What was predicted of each.
        truths: Their classes, where they are known.
        out: The PNG file.
    """
    columns = min(6, len(pictures))
    rows = -(-len(pictures) // columns)
    lines = max((len(_lines(prediction)) for prediction in predictions), default=1)
    figure, axes = plt.subplots(rows, columns, figsize=(2.5 * columns, rows * (2.9 + 0.19 * lines)), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, picture, prediction, truth in zip(axes.flat, pictures, predictions, truths, strict=False):
        _draw_one(axis, open_picture(picture), prediction, truth)
    figure.subplots_adjust(0.01, 0.02 + 0.055 * lines / rows, 0.99, 0.93, wspace=0.06, hspace=0.25 + 0.09 * (lines - 1))
    figure.savefig(out, dpi=130)
    plt.close(figure)


def _draw_one(axis: Axes, picture: Image.Image, prediction: Prediction, truth: str | None) -> None:
    axis.imshow(picture)
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
        )
        axis.add_patch(frame)
        axis.text(
            left + nudge, upper + nudge, str(number), fontsize=7, color="black", va="top",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip
    axis.set_title(f"true: {truth}" if truth else prediction.name, fontsize=8)
    for place, (name, answer, confidence) in enumerate(_lines(prediction)):
        axis.text(
            0.02, -0.03 - 0.075 * place, f"{name}: {answer} {confidence:.0%}", transform=axis.transAxes, fontsize=7,
            va="top", color="#0b4fb3" if answer == truth or truth is None else "#9a6a00",
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
