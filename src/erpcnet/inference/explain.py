"""Pictures of where the network looked."""

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

from erpcnet.inference.recogniser import Picture, Recognition, open_picture

RIGHT, WRONG = "#1f77ff", "#ffc400"  # the paper's colours: blue is correct, yellow is wrong
CLOSER: dict[str, Any] = {"edgecolor": "white", "linestyle": "--", "linewidth": 1.2}


def draw_localities(
    pictures: Sequence[Picture], found: Sequence[Recognition], truths: Sequence[str | None], out: str | Path
) -> None:
    """The numbered regions of each picture, with the answer and its confidence after each step, and of all views; of
    several views, the closer one is a dashed frame.
    """
    columns = min(6, len(pictures))
    rows = -(-len(pictures) // columns)
    lines = max((len(_lines(recognition)) for recognition in found), default=1)
    figure, axes = plt.subplots(rows, columns, figsize=(2.5 * columns, rows * (2.9 + 0.19 * lines)), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, picture, recognition, truth in zip(axes.flat, pictures, found, truths, strict=False):
        _draw_one(axis, open_picture(picture), recognition, truth)
    figure.subplots_adjust(0.01, 0.02 + 0.055 * lines / rows, 0.99, 0.93, wspace=0.06, hspace=0.25 + 0.09 * (lines - 1))
    figure.savefig(out, dpi=130)
    plt.close(figure)


def _draw_one(axis: Axes, picture: Image.Image, recognition: Recognition, truth: str | None) -> None:
    axis.imshow(picture)
    if recognition.closer is not None:
        left, upper, right, lower = recognition.closer
        axis.add_patch(Rectangle((left, upper), right - left, lower - upper, fill=False, **CLOSER))
    shift = min(picture.size) * 0.012
    for number, region in enumerate(recognition.regions, start=1):
        colour = _colour(region.answer, truth)
        left, upper, right, lower = region.box
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
    axis.set_title(f"true: {truth}" if truth else recognition.name, fontsize=8)
    for place, (name, answer, confidence) in enumerate(_lines(recognition)):
        axis.text(
            0.02, -0.03 - 0.075 * place, f"{name}: {answer} {confidence:.0%}", transform=axis.transAxes, fontsize=7,
            va="top", color="#0b4fb3" if answer == truth or truth is None else "#9a6a00",
        )  # fmt: skip


def _lines(recognition: Recognition) -> list[tuple[str, str, float]]:
    """What was answered after the glance and after each step; and, of several views, together."""
    lines = [("glance", recognition.first_answer, recognition.first_confidence)]
    lines += [(f"step {n}", region.answer, region.confidence) for n, region in enumerate(recognition.regions, start=1)]
    if recognition.views > 1:
        lines.append((f"{recognition.views} views", recognition.name, recognition.confidence))
    return lines


def _colour(answer: str, truth: str | None) -> str:
    return RIGHT if truth is None or answer == truth else WRONG
