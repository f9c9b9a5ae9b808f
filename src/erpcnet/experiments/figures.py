"""The paper's figures, of one run.

Colours are those of `erpcnet.inference.drawing`: blue for right answers and figures that count them, yellow for wrong
and lost ones, ink and grey for whatever is neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.font_manager import findfont
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont

from erpcnet.evaluation.baselines import LearningPoint
from erpcnet.evaluation.stacking import Curve
from erpcnet.experiments.analysis import Embeddings, Failures, Threshold, Trajectories
from erpcnet.experiments.diagnosis import AttributeRecord
from erpcnet.inference.drawing import GREY, INK, RIGHT, RIGHT_TEXT, WRONG, WRONG_TEXT, render_localities
from erpcnet.inference.prediction import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

HEADING, MARGIN = 26, 14  # of a sheet of localities, in pixels


def draw_thresholds(found: Sequence[Threshold], used: float, out: Path) -> None:
    """T1 and steps over sigma; the sigma that is used as a line."""
    finite = [one for one in found if math.isfinite(one.sigma)]
    sigmas = [one.sigma for one in finite]
    with _panels(1, out) as (axis,):
        axis.plot(sigmas, [100 * one.t1 for one in finite], "o-", color=RIGHT_TEXT, markersize=3)
        axis.set_xlabel("sigma")
        axis.set_ylabel("T1, per cent", color=RIGHT_TEXT)
        beside = axis.twinx()
        beside.plot(sigmas, [one.mean_steps for one in finite], "s--", color=INK, markersize=3)
        beside.set_ylabel("mean steps", color=INK)
        if math.isfinite(used):
            axis.axvline(used, color=GREY, linewidth=1)
            text = f"used: {used:g}"
            axis.annotate(text, (used, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", color=GREY)


def draw_steps(by_step: Sequence[float], found: Trajectories, out: Path) -> None:
    """T1 after the glance and each step, if nobody stops; and how many steps images take."""
    taken = found.steps.cpu().numpy()
    with _panels(2, out) as (accuracy, steps):
        accuracy.plot(range(len(by_step)), [100 * t1 for t1 in by_step], "o-", color=RIGHT_TEXT)
        accuracy.set_xticks(range(len(by_step)))
        accuracy.set_xlabel("steps (0: the glance alone)")
        accuracy.set_ylabel("T1, per cent")
        counts = np.bincount(np.rint(taken).astype(int), minlength=len(by_step))
        steps.bar(range(len(counts)), 100 * counts / len(taken), color=GREY)
        steps.axvline(taken.mean(), color=INK, linewidth=1, label=f"mean {taken.mean():.2f}")
        steps.set_xticks(range(len(counts)))
        steps.set_xlabel("steps taken")
        steps.legend(frameon=False, fontsize=8)
        steps.set_ylabel("images, per cent")


def draw_failures(found: Failures, out: Path) -> None:
    """When right answers were lost, and what became of the true class's chance."""
    steps = np.arange(len(found.chance_of_kept))
    with _panels(2, out) as (when, chance):
        counts = np.bincount(found.lost_at.cpu().numpy(), minlength=len(steps))
        when.bar(steps[1:], counts[1:], color=WRONG, edgecolor=INK, linewidth=0.6)
        when.set_xticks(steps[1:])
        when.yaxis.set_major_locator(MaxNLocator(integer=True))
        when.set_xlabel("step at which a right answer was lost for good")
        when.set_ylabel("images")
        for values, name, colour, marker in (
            (found.chance_of_kept, f"right at the end ({found.right})", RIGHT_TEXT, "o-"),
            (found.chance_of_lost, f"lost on the way ({len(found.lost)})", WRONG_TEXT, "s--"),
        ):
            chance.plot(steps, 100 * values.cpu().numpy(), marker, color=colour, label=name)
        chance.set_xticks(steps)
        chance.set_xlabel("steps (0: the glance alone)")
        chance.set_ylabel("chance of the true class, per cent")
        chance.legend(frameon=False, fontsize=8)


def draw_curve(curve: Curve, delta: float, out: Path) -> None:
    """S over U as delta grows, and where delta lies."""
    unseen, seen = 100 * curve.unseen.cpu().numpy(), 100 * curve.seen.cpu().numpy()
    deltas = curve.deltas.cpu().numpy()
    with _panels(1, out) as (axis,):
        axis.plot(unseen, seen, color=RIGHT_TEXT, label="S over U as delta grows")
        for value, name, colour in ((delta, "used: H", INK), (curve.best()[0], "best H", GREY)):
            place = min(int(np.searchsorted(deltas, value)), len(deltas) - 1)
            u, s = unseen[place], seen[place]
            h = 2 * u * s / max(u + s, 1e-9)
            axis.plot(u, s, "o", color=colour, label=f"{name} {h:.1f} at delta {value:.2f}")
        axis.set_xlabel("U, per cent")
        axis.set_ylabel("S, per cent")
        axis.set_title(f"AUSUC {100 * curve.ausuc():.1f}", fontsize=9)
        axis.legend(frameon=False, fontsize=8)


def draw_embeddings(found: Embeddings, names: Sequence[str], out: Path) -> None:
    """Images of a few classes in the plane, by a_g and by a_g + a_j."""
    colours, shown = plt.get_cmap("tab10"), [(found.of_global, "a_g: the glance")]
    if found.of_both is not None:
        shown.append((found.of_both, "a_g + a_j: with localities"))
    with _panels(len(shown), out, size=4.2) as panels:
        for axis, (points, title) in zip(panels, shown, strict=True):
            for place, number in enumerate(np.unique(found.labels)):
                own = points[found.labels == number]
                axis.scatter(own[:, 0], own[:, 1], s=7, color=colours(place % 10), label=names[number])
            axis.set_title(title, fontsize=9)
            axis.set_xticks([])
            axis.set_yticks([])
        panels[-1].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=1.6)


def draw_attributes(records: Sequence[AttributeRecord], out: Path) -> None:
    """The AUC of attributes on validation and on unseen classes, the worst below."""
    heights = np.arange(len(records))
    with _panels(1, out, size=max(2.0, 0.22 * len(records) + 0.6), width=6.5) as (axis,):
        for values, name, colour, marker in (
            ([one.on_validation for one in records], "validation classes", INK, "s"),
            ([one.on_unseen for one in records], "unseen classes (test)", RIGHT, "o"),
        ):
            known = [(value, height) for value, height in zip(values, heights, strict=True) if value is not None]
            if known:
                axis.plot(*zip(*known, strict=True), marker, color=colour, markersize=4, label=name)
        axis.axvline(0.5, color=GREY, linewidth=1, linestyle=":", label="chance")
        axis.set_yticks(
            heights, [one.name if len(one.name) < 40 else f"{one.name[:38]}..." for one in records], fontsize=8
        )
        axis.set_xlim(min(0.3, axis.get_xlim()[0]), 1.02)
        axis.set_xlabel("AUC")
        axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_learning(points: Sequence[LearningPoint], out: Path) -> None:
    """T1 over the share of pictures, and of seen classes, that there is to learn from."""
    with _panels(1, out) as (axis,):
        for of, colour, marker in (("pictures", RIGHT_TEXT, "o-"), ("classes", INK, "s--")):
            own = [point for point in points if point.of == of]
            axis.errorbar(
                [100 * point.share for point in own],
                [100 * point.t1 for point in own],
                [100 * point.spread for point in own],
                fmt=marker,
                color=colour,
                capsize=3,
                markersize=4,
                label={"pictures": "fewer pictures of every seen class", "classes": "fewer seen classes"}[of],
            )
        axis.set_xticks([25, 50, 75, 100])
        axis.set_xlabel("of what there is to learn from, per cent")
        axis.set_ylabel("T1 of ESZSL, per cent")
        axis.legend(frameon=False, fontsize=8)


def draw_selections(
    pictures: Sequence[Image.Image], predictions: Sequence[Prediction], truths: Sequence[str], heading: str, out: Path
) -> None:
    """Pictures with the localities that were selected in them, and a heading above."""
    drawn = render_localities(pictures, predictions, truths)
    font = ImageFont.truetype(findfont("DejaVu Sans"), HEADING)
    sheet = Image.new("RGB", (drawn.width, drawn.height + HEADING + 2 * MARGIN), "white")
    ImageDraw.Draw(sheet).text((MARGIN, MARGIN), heading, INK, font)
    sheet.paste(drawn, (0, HEADING + 2 * MARGIN))
    sheet.save(out)


def draw_mistaken(shown: Sequence[tuple[str, Image.Image, str, Image.Image]], out: Path) -> None:
    """Pairs beside each other: a picture that was taken for another class, above one of that class."""
    figure, axes = plt.subplots(2, len(shown), figsize=(2.1 * len(shown), 4.7), squeeze=False)
    for column, (title, picture, other, example) in enumerate(shown):
        for axis, image, text in ((axes[0, column], picture, title), (axes[1, column], example, other)):
            axis.imshow(image)
            axis.set_title(fill(text, 22), fontsize=8)
            axis.axis("off")
    figure.savefig(out, dpi=130, bbox_inches="tight")
    plt.close(figure)


def draw_sheet(shown: Sequence[tuple[str, Image.Image]], out: Path, columns: int = 6) -> None:
    """Pictures with a name below each."""
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 2.15 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, (name, picture) in zip(axes.flat, shown, strict=False):
        axis.imshow(picture)
        axis.set_title(fill(name, 20), fontsize=8, y=-0.08, va="top")
    figure.subplots_adjust(hspace=0.45, wspace=0.08)
    figure.savefig(out, dpi=110, bbox_inches="tight")
    plt.close(figure)


@contextmanager
def _panels(count: int, out: Path, size: float = 3.4, width: float | None = None) -> Iterator[list[Axes]]:
    """Panels beside each other, `size` inches high, written to a file."""
    figure, axes = plt.subplots(1, count, figsize=((width or 1.3 * size) * count, size), squeeze=False)
    yield list(axes.flat)
    figure.savefig(out, dpi=130, bbox_inches="tight")
    plt.close(figure)
