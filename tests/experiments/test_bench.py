from __future__ import annotations

from dataclasses import replace

import pytest

from erpcnet.errors import InputError
from erpcnet.experiments.arithmetic import kernel_arithmetic
from erpcnet.experiments.bench import ratios, run_bench
from erpcnet.experiments.bench_cases import BenchSettings


def test_a_bench_has_every_case() -> None:
    settings = BenchSettings(
        image_size=64, stage1_batches=(2,), batches=(1, 2), stage2_images=4, grown_images=4, repeats=4
    )
    kept: list[dict[str, object]] = []
    found = run_bench(settings, keep=kept.append)
    assert [found] == kept  # of the fourth turn, the first from which on there are quartiles
    usual = [row for row in found["rows"] if not row["grown"]]
    names = {(row["group"], row["name"], row["batch"]): row["ms_per_image"] for row in usual}
    assert len(usual) == len(names) == 4 + 4 + 2 * 5
    grown = {row["grown"] for row in found["rows"]} - {""}
    assert grown == {"T = 1", "T = 3", "T = 12", "9 cells", "25 cells", "1 images", "16 images", "minibatches of 1"}
    assert all(value > 0 for value in names.values())
    assert found["ratios"] == ratios(found["rows"])
    told = found["ratios"]["stage II: tables against direct"]
    assert told == pytest.approx(names["stage II", "tables", 4] / names["stage II", "direct", 4])


def test_with_zoom_localities_are_of_a_finer_image() -> None:
    """What ours computes grows by a backbone on the patches; what it is compared with stays as it is."""
    small = BenchSettings(
        image_size=64, stage1_batches=(2,), batches=(2,), stage2_images=4, grown_images=4, repeats=4, growth=False
    )
    plain, zoomed = (
        {(row["group"], row["name"]): row["gmac_per_image"] for row in run_bench(one)["rows"]}
        for one in (small, replace(small, zoom=2))
    )
    assert plain.keys() == zoomed.keys()
    for case in (("stage I", "backbone"), ("stage I", "hardnet"), ("inference", "backbone"), ("inference", "hardnet")):
        assert zoomed[case] == plain[case]
    # The map of the small backbone is 8 wide and a window 2 of that: 32 of 128 pixels, a quarter of the glance's.
    glance = plain["stage I", "backbone"]
    assert zoomed["stage I", "pcnet"] == pytest.approx(glance * (1 + 6 / 4), rel=0.05)
    assert zoomed["inference", "sequential"] < zoomed["inference", "parallel"]  # six windows, or sixteen
    assert run_bench(replace(small, zoom=2))["rows"][0]["zoom"] == 2


def test_arithmetic_is_counted_as_by_hand() -> None:
    rows = {row["what"]: row["gmac"] for row in kernel_arithmetic("resnet50", 224)}
    assert rows["backbone"] == pytest.approx(4.09, abs=0.02)
    # A full 5 x 5 kernel on 1024 channels reads 25 places of a 5 x 5 window, or 1 without padding.
    kernel = 1024 * 1024 * 25 * 25 / 1e9
    c_l = rows["one locality, full kernel, same"] - kernel
    assert c_l == pytest.approx(0.13, abs=0.03)
    # 1 x 1 to 256 channels, 5 x 5 on them, and 1 x 1 back.
    narrow = (2 * 1024 * 256 + 256 * 256 * 25) * 25 / 1e9
    assert rows["one locality, bottleneck kernel, same"] == pytest.approx(c_l + narrow, abs=1e-3)
    # A patch of 80 counts as one between 80 and 96, since its last map is 3 places wide, not 2.5.
    assert rows["backbone"] * (80 / 224) ** 2 < rows["one patch of HardNet"] < rows["backbone"] * (96 / 224) ** 2


def test_ratios_compare_like_with_like() -> None:
    def row(group: str, name: str, batch: int, value: float, macs: float | None = None) -> dict[str, object]:
        about = {"group": group, "name": name, "batch": batch, "grown": ""}
        return {**about, "ms_per_image": value, "gmac_per_image": macs}

    rows = [row("stage I", "backbone", 8, 2.0, 1.0), row("stage I", "pcnet", 8, 5.0, 2.0)]
    rows += [row("stage II", name, 8, value) for name, value in (("tables", 1.0), ("direct", 20.0), ("hardnet", 50.0))]
    rows += [row("stage II", "building tables", 8, 30.0)]
    rows += [row("inference", name, 1, value) for name, value in (("sequential", 4.0), ("parallel", 3.0))]
    rows += [
        row("inference", name, 1, value)
        for name, value in (("hardnet", 6.0), ("backbone", 5.0), ("backbone, fused", 2.0))
    ]
    found = ratios(rows)
    assert found["stage I, batch 8, pcnet: rate against its arithmetic's share of the backbone's"] == pytest.approx(0.8)
    assert found["stage II: tables, built over 30 epochs, against HardNet"] == pytest.approx(3 / 50)
    assert found["inference, batch 1: against HardNet"] == pytest.approx(0.5)
    assert found["inference, batch 1: against the backbone, fused alike"] == pytest.approx(1.5)
    assert found["inference, batch 1: against the backbone as it comes"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeats": 3},
        {"batches": ()},
        {"batches": (0, 8)},
        {"stage1_batches": ()},
        {"stage1_batches": (0,)},
        {"stage2_images": 0},
        {"grown_images": 3},
    ],
)
def test_a_bench_that_measures_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="at least 4 repeats"):
        BenchSettings(**wrong)  # type: ignore[arg-type]
