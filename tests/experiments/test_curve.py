"""Accuracy against work: what is counted, and the points of the figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from erpcnet.experiments.curve import (
    COUNTED,
    Work,
    count_work,
    curve_rows,
    curves,
    draw_curves,
    read_work,
    timed_curves,
)
from erpcnet.experiments.rows import read_rows

ROOT = Path(__file__).resolve().parents[2]


def test_work_is_counted_as_by_hand() -> None:
    cost = {(row["input"], row["zoom"]): (row["glance_gmac"], row["locality_gmac"]) for row in count_work()}
    assert cost[224, 1][0] == pytest.approx(4.09, abs=0.01)  # torchvision's own figure
    assert cost[448, 1][0] == pytest.approx(4 * cost[224, 1][0], rel=1e-3)
    # A window of 5 of 14 at twice the scale is an image of 160 x 160.
    assert cost[224, 2][1] == pytest.approx(cost[224, 1][0] * (160 / 224) ** 2, rel=1e-3)
    committed = read_work(read_rows(ROOT / COUNTED))
    for network, (glance, locality) in cost.items():
        assert committed[network] == pytest.approx((glance, locality), rel=1e-4)


def test_crops_cost_a_rollout_each_and_one_glance_more() -> None:
    work = Work(glance=4.0, locality=2.0)
    assert (work.of(3), work.of(0), work.of(3, crops=2)) == (10.0, 4.0, 24.0)


def test_points_are_means_over_seeds(tmp_path: Path) -> None:
    def row(method: str, crops: int, t1: float, steps: float) -> dict[str, str]:
        by_step = {"t1_step1": str(t1 - 0.1), "t1_step2": str(t1)} if method == "ERPCNet" else {}
        common = {"input": "224", "zoom": "2", "hubness": "0.3", "crops": str(crops), "method": method}
        return {
            **common,
            "t1": str(t1),
            "mean_steps": str(steps),
            **dict.fromkeys(("t1_step1", "t1_step2"), ""),
            **by_step,
        }

    zoomed = [row("ERPCNet", crops, t1 + crops / 100, 1.5) for t1 in (0.6, 0.7) for crops in (1, 2)]
    plain = [{**row("GlobalNet", 1, 0.5, 0), "zoom": "1"}, {**row("ERPCNet", 1, 0.6, 1.0), "zoom": "1"}]
    # GlobalNet alone at another size, without the hubness correction too, which is not shown.
    sizes = [{**row("GlobalNet", 1, t1, 0), "zoom": "1", "input": "160"} for t1 in (0.3, 0.4)]
    sizes += [{**sizes[0], "hubness": "0", "t1": "0.1"}]
    single = [{**row("ERPCNet", 1, 0.55, 1.0), "input": "160"}]
    work = {(160, 1): Work(2.0, 0.1), (224, 1): Work(4.0, 0.2), (160, 2): Work(2.0, 1.0), (224, 2): Work(4.0, 2.0)}
    found = curves([plain, zoomed, single], work, sizes)
    points = {(name, label): (float(gmac), float(t1)) for name, label, gmac, t1 in curve_rows(found)}
    assert points["GlobalNet: input size", "224"] == (4.0, 50.0)
    assert points["GlobalNet: input size", "160"] == (2.0, 35.0)
    assert points["ERPCNet, glance 160, zoom 2: steps", "2"] == (4.0, 55.0)
    assert not any(name.startswith("ERPCNet, glance 160, zoom 2: 1, 2") for name, _ in points)  # one crop is no curve
    assert points["ERPCNet, glance 224, zoom 2: steps", "1"] == (6.0, 56.0)
    assert points["ERPCNet, glance 224, zoom 2: steps", "2"] == (8.0, 66.0)
    assert points["ERPCNet, glance 224, zoom 2: 1, 2 and 4 crops, early stop", "2"] == (18.0, 67.0)
    times = [
        {"batch": batch, "what": what, "way": way, "steps": steps, "ms_per_image": taken}
        for batch, what, way, steps, taken in (
            ("256", "globalnet 160", "sequential", "0", "0.04"),
            ("256", "globalnet 224", "sequential", "0", "0.07"),
            ("1", "globalnet 224", "sequential", "0", "4.0"),
            ("256", "erpcnet 224 zoom 2", "sequential", "2", "0.3"),
            ("256", "erpcnet 224 zoom 2", "sequential_graph", "2", "0.2"),
            ("256", "erpcnet 224 zoom 2", "parallel_graph", "2", "0.5"),
        )
    ]
    timed = timed_curves([plain, zoomed, single], times, sizes)
    assert [(name, label, float(ms), float(t1)) for name, label, ms, t1 in curve_rows(timed, digits=2)] == [
        ("GlobalNet: input size", "160", 0.04, 35.0),
        ("GlobalNet: input size", "224", 0.07, 50.0),
        ("ERPCNet, glance 224, zoom 2: steps", "2", 0.2, 66.0),
    ]
    draw_curves(found, timed, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
