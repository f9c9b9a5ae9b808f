"""Accuracy against work: what a step more, a larger image or more crops cost in arithmetic, and what they gain.

`python -m erpcnet.experiments.curve` counts the arithmetic anew, `benchmarks/curve.py` measures time;
`erpcnet.experiments.report` makes the tables and the figure of the results page from both and from the committed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from erpcnet.experiments.rows import Rows, write_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTED, TIMED = Path("benchmarks/results/work.csv"), Path("benchmarks/results/curve_h200.csv")
TIMED_BATCH = "256"  # of which milliseconds are compared; with a single image most of the time is launches
# Input size and zoom of the committed ablations and of GlobalNet alone.
NETWORKS = ((160, 1), (224, 1), (288, 1), (320, 1), (384, 1), (448, 1), (160, 2), (224, 2))

GLOBALNET, STEPS = "GlobalNet", "steps"  # whose curve is over input sizes; what curves of localities are over


class Work(NamedTuple):
    """GMAC of the glance, and of one locality."""

    glance: float
    locality: float

    def of(self, steps: float, crops: int = 1) -> float:
        """GMAC of an image that takes so many steps in each of its crops; the object crop needs one more glance."""
        return crops * (self.glance + steps * self.locality) + (self.glance if crops > 1 else 0)


class Curve(NamedTuple):
    """Points of one kind: `cost` (GMAC or milliseconds) and `t1` (per cent), and what each of them is."""

    name: str
    cost: tuple[float, ...]
    t1: tuple[float, ...]
    labels: tuple[str, ...]


def count_work(backbone: str = "resnet50") -> list[dict[str, Any]]:
    """Rows with the GMAC of a glance and of a locality, for each of the networks."""
    import torch

    from erpcnet.config import LocalSettings
    from erpcnet.experiments.bench_cases import BenchSettings, count_macs, drawn_network

    rows = []
    for size, zoom in NETWORKS:
        network = drawn_network("pcnet", BenchSettings(backbone=backbone, image_size=size), LocalSettings(zoom=zoom))
        images = torch.zeros(1, 3, zoom * size, zoom * size)
        glance = count_macs(network.backbone, torch.zeros(1, 3, size, size))
        source = network.glance(images).source
        locality = count_macs(network.embed_localities, source, torch.zeros(1, 1, dtype=torch.long))
        rows.append({"input": size, "zoom": zoom, "glance_gmac": glance / 1e9, "locality_gmac": locality / 1e9})
    return rows


def read_work(rows: Rows) -> dict[tuple[int, int], Work]:
    """The work of a network by its input size and zoom."""
    return {
        (int(row["input"]), int(row["zoom"])): Work(float(row["glance_gmac"]), float(row["locality_gmac"]))
        for row in rows
    }


def curves(
    ablations: Sequence[Rows], work: dict[tuple[int, int], Work], sizes: Sequence[dict[str, str]] = ()
) -> list[Curve]:
    """GlobalNet over input sizes, and ERPCNet over steps and over crops, with the hubness correction.

    Args:
        ablations: The rows of each ablation, of one or several seeds.
        work: See `read_work`.
        sizes: Rows of GlobalNet alone, at other input sizes.
    """
    glances: list[tuple[float, float, str]] = []
    found = []
    for size in dict.fromkeys(int(row["input"]) for row in sizes):
        single = [row for row in sizes if row["crops"] == "1" and float(row["hubness"]) and int(row["input"]) == size]
        glances.append((work[size, 1].glance, _mean(single, GLOBALNET, "t1"), f"{size}"))
    for rows in ablations:
        size, zoom = int(rows[0]["input"]), int(rows[0].get("zoom") or 1)
        cost = work[size, zoom]
        tested = [row for row in rows if float(row["hubness"])]
        single = [row for row in tested if row["crops"] == "1"]
        if zoom == 1:
            glances.append((cost.glance, _mean(single, GLOBALNET, "t1"), f"{size}"))
        columns = sorted(name for name in rows[0] if name.startswith("t1_step"))
        steps = range(1, len(columns) + 1)
        name = _describe(size, zoom)
        found.append(
            Curve(
                f"ERPCNet, {name}: {STEPS}",
                tuple(cost.of(step) for step in steps),
                tuple(_mean(single, "ERPCNet", column) for column in columns),
                tuple(f"{step}" for step in steps),
            )
        )
        crops = sorted({int(row["crops"]) for row in tested})
        if len(crops) == 1:
            continue
        by_crops = {count: [row for row in tested if int(row["crops"]) == count] for count in crops}
        found.append(
            Curve(
                f"ERPCNet, {name}: 1, 2 and 4 crops, early stop",
                tuple(cost.of(_mean(own, "ERPCNet", "mean_steps") / 100, count) for count, own in by_crops.items()),
                tuple(_mean(own, "ERPCNet", "t1") for own in by_crops.values()),
                tuple(f"{count}" for count in crops),
            )
        )
    cost_of_sizes, t1, labels = zip(*sorted(glances), strict=True)
    return [Curve(f"{GLOBALNET}: input size", cost_of_sizes, t1, labels), *found]


def timed_curves(ablations: Sequence[Rows], times: Rows, sizes: Rows) -> list[Curve]:
    """GlobalNet over input sizes and ERPCNet over steps as in `curves`, over milliseconds an image in a full batch, in
    the fastest way to execute; of what was timed alone.

    Args:
        ablations: The rows of each ablation, of one or several seeds.
        times: Rows of `benchmarks/curve.py`.
        sizes: Rows of GlobalNet alone, at other input sizes.
    """
    fastest: dict[str, dict[int, float]] = {}
    for row in times:
        if row["batch"] == TIMED_BATCH:
            taken = fastest.setdefault(row["what"], {})
            count, milliseconds = int(row["steps"]), float(row["ms_per_image"])
            taken[count] = min(milliseconds, taken.get(count, milliseconds))

    def tested(rows: Rows) -> Rows:
        return [row for row in rows if row["crops"] == "1" and float(row["hubness"])]

    of_size = {row["input"]: tested([one for one in sizes if one["input"] == row["input"]]) for row in sizes}
    of_size |= {rows[0]["input"]: tested(rows) for rows in ablations if int(rows[0].get("zoom") or 1) == 1}
    glances = sorted(
        (fastest[f"globalnet {size}"][0], _mean(rows, GLOBALNET, "t1"), size)
        for size, rows in of_size.items()
        if f"globalnet {size}" in fastest
    )
    cost, t1, labels = zip(*glances, strict=True)
    found = [Curve(f"{GLOBALNET}: input size", cost, t1, labels)]
    for rows in ablations:
        size, zoom = rows[0]["input"], int(rows[0].get("zoom") or 1)
        taken = fastest.get(f"erpcnet {size} zoom {zoom}", {})
        if taken:
            steps = tuple(sorted(taken))
            found.append(
                Curve(
                    f"ERPCNet, {_describe(size, zoom)}: {STEPS}",
                    tuple(taken[step] for step in steps),
                    tuple(_mean(tested(rows), "ERPCNet", f"t1_step{step}") for step in steps),
                    tuple(f"{step}" for step in steps),
                )
            )
    return found


def _describe(size: int | str, zoom: int) -> str:
    return f"glance {size}, zoom {zoom}" if zoom > 1 else f"windows of the map, {size}"


def _mean(rows: Rows, method: str, column: str) -> float:
    """In per cent, over the seeds."""
    return 100 * mean(float(row[column]) for row in rows if row["method"] == method)


def curve_rows(found: Sequence[Curve], digits: int = 1) -> list[tuple[str, ...]]:
    """A line per point: what it is, its cost with so many digits, and T1."""
    return [
        (curve.name, label, f"{cost:.{digits}f}", f"{t1:.1f}")
        for curve in found
        for label, cost, t1 in zip(curve.labels, curve.cost, curve.t1, strict=True)
    ]


def _network(curve: Curve) -> str:
    """Which network a curve is of: steps and crops of one have the same colour."""
    return curve.name.partition(": ")[0]


def draw_curves(counted: Sequence[Curve], timed: Sequence[Curve], out: Path) -> None:
    """T1 over GMAC, and over milliseconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(ncols=2, sharey=True, figsize=(12, 5), width_ratios=(3, 2))
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    networks = [name for name in dict.fromkeys(_network(curve) for curve in counted) if name != GLOBALNET]
    for axis, found in ((left, counted), (right, timed)):
        for curve in found:
            name = _network(curve)
            colour = "black" if name == GLOBALNET else colours[networks.index(name)]
            style = "s-" if name == GLOBALNET else "o-" if curve.name.endswith(STEPS) else "^--"
            axis.plot(curve.cost, curve.t1, style, color=colour, markersize=5, label=curve.name)
        axis.set_xscale("log")
        axis.grid(alpha=0.3)
    _ticks(left, (2, 3, 4, 6, 8, 10, 15, 20, 30, 50, 80))
    _ticks(right, (0.04, 0.06, 0.1, 0.15, 0.2, 0.3))
    left.set_xlabel("GMAC per image")
    right.set_xlabel(f"milliseconds per image, one H200, batches of {TIMED_BATCH}")
    left.set_ylabel("T1, per cent")
    left.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    plt.close(figure)


def _ticks(axis: Axes, at: Sequence[float]) -> None:
    axis.set_xticks(at, [f"{tick:g}" for tick in at])
    axis.set_xticks([], minor=True)


def main() -> None:
    """Count the arithmetic."""
    write_rows(COUNTED, count_work())


if __name__ == "__main__":
    main()
