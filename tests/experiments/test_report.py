"""The committed figures, and the pages made of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import stdev

import pytest

from erpcnet.evaluation.metrics import harmonic_mean
from erpcnet.experiments.markdown import fill
from erpcnet.experiments.quickstart import CPUS, run_once
from erpcnet.experiments.report import (
    ELSEWHERE,
    ablation_tables,
    entropy_table,
    others_table,
    own_rows,
    places_table,
    published_table,
    quickstart_block,
    spread,
    summary_table,
)
from erpcnet.experiments.rows import read_rows
from erpcnet.experiments.speed_tables import bars_table, ratios_table, read_benches, times_tables

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
OTHERS = (
    "published.csv",
    "quickstart.csv",
    "entropy.csv",
    "single-runs.csv",
    "entropy-cub.csv",
    "globalnet-sizes.csv",
    "attribute-places.csv",
)
RUNS = [path for path in sorted(RESULTS.glob("*.csv")) if path.name not in OTHERS]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_h_is_the_harmonic_mean_of_u_and_s(path: Path) -> None:
    rows = [
        row for row in read_rows(path) if row["method"] != "oracle"
    ]  # which selects for unseen classes' images alone
    assert rows
    for row in rows:
        assert float(row["h"]) == pytest.approx(harmonic_mean(float(row["u"]), float(row["s"])), abs=1e-5)


def test_published_h_is_the_harmonic_mean() -> None:
    """Of rounded U and S; the one that is not is named on the page."""
    rows = [row for row in read_rows(RESULTS / "published.csv") if row["u"]]
    assert len(rows) == 4 * 16 - 10 - 2  # ten methods have no aPY, and two of them no SUN
    wrong = [
        (row["method"], row["dataset"])
        for row in rows
        if float(row["h"]) != pytest.approx(harmonic_mean(float(row["u"]), float(row["s"])), abs=0.12)
    ]
    assert wrong == [("SP-AEN", "AwA2")]
    # U and S are rounded to 0.05, and H moves less than the two together: one lies just beyond that.
    beyond = [
        (row["method"], row["dataset"])
        for row in rows
        if float(row["h"]) != pytest.approx(harmonic_mean(float(row["u"]), float(row["s"])), abs=0.1)
    ]
    assert beyond == [("SP-AEN", "AwA2"), ("RelationNet", "AwA2")]


def test_the_main_table_is_on_the_page() -> None:
    page = (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    table = published_table(read_rows(RESULTS / "published.csv"), own_rows(RESULTS))
    assert table in page
    here = [line for line in table.splitlines() if "ERPCNet, here" in line]
    # 224, 448 and zoom; one crop and four, with the correction and without. And a glance of 160 with one crop.
    assert len(here) == 3 * 4 + 2
    assert all(line.count("not measured") == 6 for line in here)
    assert others_table({name: read_rows(RESULTS / f"{name}.csv") for name in ELSEWHERE}) in page


def test_the_page_says_where_attributes_are_read() -> None:
    rows = read_rows(RESULTS / "attribute-places.csv")
    table = places_table(rows)
    assert table in (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    (head,) = (line for line in table.splitlines() if line.startswith("| head |"))
    (row,) = (r for r in rows if (r["preset"], r["order"], r["part"]) == ("cub", "policy", "head"))
    shares = [f"{100 * float(row[name]):.0f}%" for name in ("read", "selected", "any_selected")]
    assert head.split("|")[2].strip() == "{} ({}, {})".format(*shares)


@pytest.mark.parametrize(("name", "seeds"), [("entropy", 3), ("entropy-cub", 1)])
def test_the_page_says_what_entropy_does(name: str, seeds: int) -> None:
    rows = read_rows(RESULTS / f"{name}.csv")
    assert len(rows) == 2 * seeds * 31
    assert entropy_table(rows) in (RESULTS.parent / "results.md").read_text(encoding="utf-8")


def test_who_has_the_images_fills_the_columns(tmp_path: Path) -> None:
    rows = (RESULTS / "cub-224.csv").read_text(encoding="utf-8")
    (tmp_path / "cub-224.csv").write_text(rows, encoding="utf-8")
    (tmp_path / "awa2.csv").write_text(rows.replace("CUB", "AwA2"), encoding="utf-8")
    found = own_rows(tmp_path)
    assert set(found) == {"CUB", "AwA2"}
    table = published_table([], found).splitlines()
    assert len(table) == 2 + 4
    for line in table[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")][4:]
        assert cells[:2] == cells[4:6] == ["not measured"] * 2  # SUN, aPY
        assert cells[2:4] == cells[6:]
        assert "±" in cells[2]


def test_the_main_table_has_every_method_of_the_paper() -> None:
    table = published_table(read_rows(RESULTS / "published.csv"), {})
    lines = {
        cells[0]: cells for cells in ([c.strip() for c in line.strip("|").split("|")] for line in table.splitlines())
    }
    assert len(lines) == 2 + 15 + 1 + 10  # header and rule, compared methods, the paper's own, later ones
    assert lines["APN"][4:] == [
        "60.9",
        "37.6 (41.9, 34.0)",
        "71.5",
        "67.2 (65.3, 69.3)",
        "",
        "",
        "68.4",
        "65.5 (56.5, 78.0)",
    ]
    assert lines["ERPCNet"][2:8] == ["ResNet-101", "224", "63.3", "38.1 (47.2, 31.9)", "72.5", "68.4 (67.1, 69.6)"]


def test_the_summary_holds_what_the_rows_say() -> None:
    ablations, published = [read_rows(path) for path in RUNS if path.stem.startswith("cub")], RESULTS / "published.csv"
    table = summary_table(ablations, read_rows(published))
    assert table in (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    header, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    assert header == ["", "GlobalNet T1", "PCNet T1", "RPCNet T1", "ERPCNet T1", "ERPCNet H"]
    assert lines[0] == ["paper (ResNet-101, 224)", "68.1", "71.2", "72.0", "72.5", "68.4"]
    crops = ("1 crop", "2 crops", "4 crops")
    tests = [*crops, *(f"{count}, hubness correction" for count in crops)]
    single = (tests[0], tests[3])  # a glance of 160 has one crop alone
    sizes = {"224": tests, "448": tests, "160, zoom 2": single, "224, zoom 2": tests}
    assert [line[0] for line in lines[1:]] == [f"{size}, {test}" for size, own in sizes.items() for test in own]
    best = {"method": "ERPCNet", "crops": "4", "hubness": "0.3"}
    found = [[float(row["h"]) for row in rows if best.items() <= row.items()] for rows in ablations]
    for h, line in zip((h for h in found if h), (lines[6], lines[12], lines[20]), strict=True):
        assert len(h) == 3
        assert line[5] == f"{100 * sum(h) / 3:.1f} ± {100 * stdev(h):.1f}"


def test_the_summary_leaves_missing_methods_empty() -> None:
    rows = [{"method": "GlobalNet", "input": "64", "crops": "2", "t1": "0.5"}]
    lines = summary_table([rows], read_rows(RESULTS / "published.csv")).splitlines()
    assert lines[3] == "| 64, 2 crops | 50.0 |  |  |  |  |"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_pages_hold_the_tables_of_their_rows(path: Path) -> None:
    of_cub = path.stem.startswith("cub")
    page = RESULTS.parent / "results.md" if of_cub else RESULTS / f"{path.stem.partition('-')[0]}.md"
    if path.stem == "backbones":
        pytest.skip("tests/experiments/test_family_rows.py compares its table")
    assert ablation_tables(read_rows(path)) in page.read_text(encoding="utf-8")


def test_the_speed_page_holds_its_tables() -> None:
    root = RESULTS.parents[1]
    page = (RESULTS.parent / "speed.md").read_text(encoding="utf-8")
    benches = read_benches(root / "benchmarks" / "results")
    assert {machine: len(found) for machine, found in benches.items()} == {"cpu": 1, "h200": 4}
    for found in benches.values():
        assert ratios_table(found) in page
        assert times_tables(found[0]) in page
        assert any(row["grown"] for row in found[0])
    bars = bars_table(benches["h200"])
    assert bars in page
    told = float(ratios_table(benches["h200"]).partition("tables against direct | ")[2].split(" | ")[0])
    assert f"tables against direct | at most 1/20 | **1/{1 / told:.0f}**" in bars  # 0.069: missed


def test_spread_is_mean_and_sample_deviation() -> None:
    rows = [{"t1": "0.5"}, {"t1": "0.7"}, {"t1": ""}]
    assert spread(rows, "t1") == "60.0 ± 14.1"
    assert spread(rows[:1], "t1") == "50.0"
    assert spread(rows[2:], "t1") == ""


def test_the_oracles_gain_is_shared_out() -> None:
    found = {"GlobalNet": "", "PCNet": "0.5", "ERPCNet": "0.6", "oracle": "0.9"}
    rows = [{"method": name, "t1": "0.5", "t1_step1": value} for name, value in found.items()]
    assert "| ERPCNet | 25% |" in ablation_tables(rows)


def test_a_page_without_the_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- here -->\nold\n<!-- /here -->\nafter\n")
    fill(page, "here", "new")
    assert page.read_text() == "before\n<!-- here -->\nnew\n<!-- /here -->\nafter\n"
    with pytest.raises(ValueError, match="no place for there"):
        fill(page, "there", "new")


def test_the_readme_has_the_quickstart_that_was_run() -> None:
    rows = read_rows(RESULTS / "quickstart.csv")
    block = quickstart_block(rows)
    assert [(row["kernels"], int(row["threads"])) for row in rows] == [(one or "best", n) for one, n in CPUS]
    assert f"<!-- quickstart -->\n{block}\n<!-- /quickstart -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    figures = [100 * float(row["t1"]) for row in rows]
    assert f"T1 {min(figures):.1f} to {max(figures):.1f}" in " ".join(block.split())


@pytest.mark.slow
def test_a_quickstart_uses_the_kernels_asked_for(creatures: Path) -> None:
    small = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "1",
        "--stage2.epochs",
        "1",
        "--model.sigma",
        "1",
    ]
    row = run_once(str(creatures), "default", 1, [*small, "--model.delta", "0.5", "--variant", "globalnet"])
    assert (row["kernels"], row["threads"], row["delta"], row["protocol"]) == ("default", 1, 0.5, "fixed")
    assert set(row) >= {"t1", "h", "ece", "mean_steps_all"}
    with pytest.raises(subprocess.CalledProcessError):
        run_once(str(creatures), None, 1, ["--model.steps", "999"])
