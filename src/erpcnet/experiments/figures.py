"""The paper's figures, of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from erpcnet.evaluation.stacking import Curve
from erpcnet.experiments.analysis import Embeddings, Failures, Threshold, Trajectories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#1f5fd0", "#e07b00", "#888888"


def draw_thresholds(found: Sequence[Threshold], used: float, out: Path) -> None:
    """T1 and steps over sigma; the sigma that is used as a line."""
    finite = [one for one in found if math.isfinite(one.sigma)]
    sigmas = [one.sigma for one in finite]
    with _panels(1, out) as (axis,):
        axis.plot(sigmas, [100 * one.t1 for one in finite], "o-", color=BLUE, markersize=3)
        axis.set_xlabel("sigma")
        axis.set_ylabel("T1, per cent", color=BLUE)
        beside = axis.twinx()
        beside.plot(sigmas, [one.mean_steps for one in finite], "s--", color=ORANGE, markersize=3)
        beside.set_ylabel("mean steps", color=ORANGE)
        if math.isfinite(used):
            axis.axvline(used, color=GREY, linewidth=1)
            axis.annotate("used", (used, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", color=GREY)


def draw_steps(by_step: Sequence[float], found: Trajectories, out: Path) -> None:
    """T1 after the glance and each step, if nobody stops; and how many steps images take."""
    taken = found.steps.cpu().numpy()
    with _panels(2, out) as (accuracy, steps):
        accuracy.plot(range(len(by_step)), [100 * t1 for t1 in by_step], "o-", color=BLUE)
        accuracy.set_xlabel("steps (0: the glance alone)")
        accuracy.set_ylabel("T1, per cent")
        counts = np.bincount(np.rint(taken).astype(int), minlength=len(by_step))
        steps.bar(range(len(counts)), 100 * counts / len(taken), color=BLUE)
        steps.axvline(taken.mean(), color=GREY, linewidth=1)
        steps.set_xlabel(f"steps taken (mean {taken.mean():.2f})")
        steps.set_ylabel("images, per cent")


def draw_failures(found: Failures, out: Path) -> None:
    """When right answers were lost, and what became of the true class's chance."""
    steps = np.arange(len(found.chance_of_kept))
    with _panels(2, out) as (when, chance):
        counts = np.bincount(found.lost_at.cpu().numpy(), minlength=len(steps))
        when.bar(steps[1:], counts[1:], color=ORANGE)
        when.set_xlabel("step after which a right answer was wrong for good")
        when.set_ylabel("images")
        for values, name, colour in (
            (found.chance_of_kept, f"right at the end ({found.right})", BLUE),
            (found.chance_of_lost, f"lost on the way ({len(found.lost)})", ORANGE),
        ):
            chance.plot(steps, 100 * values.cpu().numpy(), "o-", color=colour, label=name)
        chance.set_xlabel("steps (0: the glance alone)")
        chance.set_ylabel("chance of the true class, per cent")
        chance.legend(frameon=False, fontsize=8)


def draw_curve(curve: Curve, delta: float, out: Path) -> None:
    """S over U as delta grows, and where delta lies."""
    unseen, seen = 100 * curve.unseen.cpu().numpy(), 100 * curve.seen.cpu().numpy()
    deltas = curve.deltas.cpu().numpy()
    with _panels(1, out) as (axis,):
        axis.plot(unseen, seen, color=BLUE)
        for value, name, colour in ((delta, "delta used", ORANGE), (curve.best()[0], "best H", GREY)):
            place = min(int(np.searchsorted(deltas, value)), len(deltas) - 1)
            axis.plot(unseen[place], seen[place], "o", color=colour, label=f"{name}: {value:.2f}")
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


@contextmanager
def _panels(count: int, out: Path, size: float = 3.4) -> Iterator[list[Axes]]:
    """Panels beside each other, written to a file."""
    figure, axes = plt.subplots(1, count, figsize=(1.3 * size * count, size), squeeze=False)
    yield list(axes.flat)
    figure.savefig(out, dpi=130, bbox_inches="tight")
    plt.close(figure)
