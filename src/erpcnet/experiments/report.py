"""Pages written from committed CSV files, so that no figure is typed by hand."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from rich.console import Console

from erpcnet.evaluation.tables import metrics_table
from erpcnet.experiments.curve import COUNTED, TIMED, curve_rows, curves, draw_curves, read_work, timed_curves
from erpcnet.experiments.entropy import best_epoch
from erpcnet.experiments.markdown import fill, markdown_table
from erpcnet.experiments.rows import Rows, read_rows
from erpcnet.experiments.speed_tables import arithmetic_table, bars_table, ratios_table, read_benches, times_tables

VARIANTS = ("GlobalNet", "PCNet", "RPCNet", "ERPCNet")
QUICKSTART = {"T1": "t1", "H": "h", "ECE": "ece"}
FIGURES = ("t1", "t1_per_image", "u", "s", "h", "h_best", "ausuc")


def spread(rows: Rows, column: str, scale: float = 100.0, digits: int = 1) -> str:
    """Mean ± standard deviation over the rows that have a value."""
    values = [scale * float(row[column]) for row in rows if row.get(column)]
    if not values:
        return ""
    middle = f"{mean(values):.{digits}f}"
    return f"{middle} ± {stdev(values):.{digits}f}" if len(values) > 1 else middle


class Condition(NamedTuple):
    """How rows were tested: with which hubness correction, with how many crops of each image."""

    hubness: float
    crops: int

    @classmethod
    def of(cls, row: dict[str, str]) -> Condition:
        return cls(float(row.get("hubness") or 0), int(row.get("crops") or 1))

    def __str__(self) -> str:
        crops = "1 crop" if self.crops == 1 else f"{self.crops} crops"
        return f"{crops}, hubness correction" if self.hubness else crops


def ablation_tables(rows: Rows) -> str:
    """The tables of one ablation, one condition after the other; parts are those of the centre crop."""
    conditions = by_condition(rows)
    if len(conditions) == 1:
        return _ablation_tables(rows)
    first = next(iter(conditions))
    return "\n\n".join(
        f"**{condition}**\n\n{_ablation_tables(own, parts=condition == first)}" for condition, own in conditions.items()
    )


def by_condition(rows: Rows) -> dict[Condition, Rows]:
    """The rows of each condition."""
    found: dict[Condition, Rows] = {}
    for row in sorted(rows, key=Condition.of):
        found.setdefault(Condition.of(row), []).append(row)
    return found


def by_method(rows: Rows) -> dict[str, Rows]:
    """The rows of each method, in their order."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    return {method: [row for row in rows if row["method"] == method] for method in methods}


def _ablation_tables(rows: Rows, parts: bool = True) -> str:
    """Figures per method, and accuracy and hits after each step."""
    own = by_method(rows)
    figures = markdown_table(
        ("method", "T1", "T1 per image", "U", "S", "H", "H, best delta", "AUSUC", "ECE", "mean steps"),
        [
            (
                method,
                *(spread(own[method], column) for column in FIGURES),
                spread(own[method], "ece") or ("not measured" if own[method][0].get("h") else ""),
                spread(own[method], "mean_steps", scale=1, digits=2),
            )
            for method in own
        ],
    )
    tables = [
        figures,
        _by_step(own, "t1", "T1 after step"),
        _oracle_share(own),
        _by_step(own, "hit", "parts in windows after step") if parts else "",
    ]
    return "\n\n".join(table for table in tables if table)


def summary_table(ablations: Sequence[Rows], published: Rows) -> str:
    """T1 of each method, and H of the last of them, under the paper's: over input sizes and conditions."""
    columns = [*((method, "t1") for method in VARIANTS), (VARIANTS[-1], "h")]
    paper = {
        row["method"]: row for row in published if row["dataset"] == "CUB" and row["source"].startswith("the paper")
    }
    table = [("paper (ResNet-101, 224)", *(paper[method][figure] for method, figure in columns))]
    for rows in ablations:
        for condition, tested in by_condition(rows).items():
            own = by_method(tested)
            found = (spread(own.get(method, []), figure) for method, figure in columns)
            table.append((f"{_input(tested[0])}, {condition}", *found))
    return markdown_table(("", *(f"{method} {figure.upper()}" for method, figure in columns)), table)


def _input(row: dict[str, str]) -> str:
    """The size of the glance, and its zoom if there is one."""
    return row["input"] if int(row.get("zoom") or 1) == 1 else f"{row['input']}, zoom {row['zoom']}"


def _by_step(own: dict[str, Rows], kind: str, title: str) -> str:
    columns = sorted({name for rows in own.values() for name in rows[0] if name.startswith(f"{kind}_step")})
    if not columns:
        return ""
    return markdown_table(
        (title, *(name.removeprefix(f"{kind}_step") for name in columns)),
        [(m, *(spread(rows, name) for name in columns)) for m, rows in own.items() if rows[0].get(columns[0])],
    )


def _oracle_share(own: dict[str, Rows]) -> str:
    """Of what the oracle gains over PCNet's random order at each step, the part that each other order gets."""
    if not {"PCNet", "oracle"} <= own.keys():
        return ""
    columns = sorted(name for name in own["oracle"][0] if name.startswith("t1_step"))

    def average(method: str, column: str) -> float:
        return mean(float(row[column]) for row in own[method])

    rows = [
        (
            method,
            *(
                f"{(average(method, c) - average('PCNet', c)) / (average('oracle', c) - average('PCNet', c)):.0%}"
                for c in columns
            ),
        )
        for method, found in own.items()
        if method not in ("PCNet", "oracle") and found[0].get(columns[0])
    ]
    return markdown_table(("of the oracle's gain, at step", *(c.removeprefix("t1_step") for c in columns)), rows)


def entropy_table(rows: Rows) -> str:
    """What entropy does to Stage II: the epoch that is as good as the best, accuracy and steps after the last one."""
    runs: dict[str, list[Rows]] = {}
    for method, own in by_method(rows).items():
        runs[method] = [[row for row in own if row["seed"] == seed] for seed in dict.fromkeys(r["seed"] for r in own)]
    header = ("", "best epoch", "T1 over steps, best epoch", "the same, last epoch", "T1 with early stop", "mean steps")
    table = []
    for method, found in runs.items():
        best = [{"epoch": str(best_epoch(one))} for one in found]
        at_best = [
            next(row for row in one if row["epoch"] == own["epoch"]) for one, own in zip(found, best, strict=True)
        ]
        last = [one[-1] for one in found]
        table.append(
            (
                method,
                spread(best, "epoch", scale=1),
                spread(at_best, "t1_by_order"),
                spread(last, "t1_by_order"),
                spread(last, "t1"),
                spread(last, "mean_steps", scale=1, digits=2),
            )
        )
    return markdown_table(header, table)


def places_table(rows: Rows) -> str:
    """Where attributes are read, part by part and network by network: in brackets what one of the T localities by
    chance would have, and any of them.
    """
    networks = list(dict.fromkeys(row["preset"] for row in rows))
    own = {(row["preset"], row["part"]): row for row in rows if row["order"] == "policy"}
    table = []
    for part in dict.fromkeys(row["part"] for row in rows):
        found = [own[network, part] for network in networks]
        shares = [[f"{float(row[name]):.0%}" for name in ("read", "selected", "any_selected", "pcp")] for row in found]
        middle, middle_box = (f"{float(found[0][name]):.0%}" for name in ("centre", "pcp_centre"))
        reads = [f"{read} ({one}, {some})" for read, one, some, _ in shares]
        table.append((part, *reads, middle, *(pcp for *_, pcp in shares), middle_box))
    header = ("part", *(f"`{name}`" for name in networks), "the middle window")
    return markdown_table((*header, *(f"PCP, `{name}`" for name in networks), "PCP, the middle"), table)


ELSEWHERE = ("animals36", "creatures")
DATASETS = ("SUN", "CUB", "aPY", "AwA2")
SOURCES = ("as the paper has it", "the paper", "since")
NOT_MEASURED = ("not measured",) * 2
BACKBONES = {"resnet50_v1": "ResNet-50", "resnet50": "ResNet-50", "resnet101": "ResNet-101"}


def published_table(rows: Rows, own: Mapping[str, Sequence[Rows]]) -> str:
    """The paper's main table, what was reported since, and this project's rows: T1, and H with U and S behind it.

    Args:
        rows: Of others, one for each method and dataset.
        own: This project's ablations of each of the `DATASETS`; those that are missing were not measured.
    """
    header = ("method", "", "backbone", "input", *(f"{name} {figure}" for name in DATASETS for figure in ("T1", "H")))
    table = []
    for source in SOURCES:
        found: dict[str, dict[str, dict[str, str]]] = {}
        for row in rows:
            if row["source"] == source:
                found.setdefault(row["method"], {})[row["dataset"]] = row
        for method, reported in found.items():
            any_row = next(iter(reported.values()))
            about = (any_row[column] for column in ("kind", "backbone", "input"))
            cells = (cell for name in DATASETS for cell in _published_cells(reported.get(name)))
            table.append((method, *about, *cells))
    tested: dict[tuple[str, str], dict[str, Rows]] = {}
    for name, ablations in own.items():
        for ablation in ablations:
            for condition, found_rows in by_condition(ablation).items():
                erpcnet = by_method(found_rows).get("ERPCNet")
                if erpcnet and condition.crops in (1, 4):
                    backbone = erpcnet[0]["backbone"]
                    how = BACKBONES.get(backbone, backbone), f"{_input(erpcnet[0])}, {condition}"
                    tested.setdefault(how, {})[name] = erpcnet
    for (title, tests), measured in tested.items():
        both = {name: (spread(found_rows, "t1"), spread(found_rows, "h")) for name, found_rows in measured.items()}
        cells = (cell for name in DATASETS for cell in both.get(name, NOT_MEASURED))
        table.append(("**ERPCNet, here**", "end to end", title, tests, *cells))
    return markdown_table(header, table)


def others_table(results: Mapping[str, Rows]) -> str:
    """T1 and H of this project's networks on data that no one else reports on."""
    header = ("", *(f"{method} {figure}" for method in VARIANTS for figure in ("T1", "H")))
    table = []
    for name, rows in results.items():
        for condition, tested in by_condition(rows).items():
            own = by_method(tested)
            cells = (spread(own.get(method, []), figure) for method in VARIANTS for figure in ("t1", "h"))
            table.append((f"{name}, {condition}", *cells))
    return markdown_table(header, table)


def _published_cells(row: dict[str, str] | None) -> tuple[str, str]:
    """T1, and H with U and S where they are given."""
    if row is None:
        return "", ""
    return row["t1"], f"{row['h']} ({row['u']}, {row['s']})" if row["u"] else row["h"]


def quickstart_block(rows: Rows) -> str:
    """What `make quickstart` prints, from the first of these rows, and how far the others are from it."""
    first: dict[str, Any] = {name: _value(text) for name, text in rows[0].items()}
    file = io.StringIO()
    Console(file=file, width=80).print(metrics_table([first]))
    printed = "\n".join(line.rstrip() for line in file.getvalue().strip("\n").splitlines())
    ranges = {name: sorted(100 * float(row[column]) for row in rows) for name, column in QUICKSTART.items()}
    spreads = ", ".join(f"{name} {values[0]:.1f} to {values[-1]:.1f}" for name, values in ranges.items())
    kernels = ", ".join(dict.fromkeys(row["kernels"] for row in rows))
    threads = " and ".join(sorted({row["threads"] for row in rows}))
    about = (
        "These digits are of one CPU. Others round otherwise, and a training makes points out of that: with the "
        f"kernels that torch has for several kinds of CPU ({kernels}) and {threads} threads, {len(rows)} runs of the "
        f"same seed had {spreads} (`python -m erpcnet.experiments.quickstart`). A second `make quickstart` evaluates "
        "the run that is there."
    )
    return f"```\n{printed}\n```\n\n{textwrap.fill(about, 120, break_on_hyphens=False)}"


def _value(text: str) -> Any:
    """A value of a CSV file: a number, nothing, or what it says."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def own_rows(results: Path) -> dict[str, list[Rows]]:
    """The ablations of each of the `DATASETS` in a folder: sun.csv, cub-224.csv, ..."""
    found: dict[str, list[Rows]] = {}
    for name in DATASETS:
        paths = sorted({*results.glob(f"{name.lower()}.csv"), *results.glob(f"{name.lower()}-*.csv")})
        if paths:
            found[name] = [read_rows(path) for path in paths]
    return found


def main() -> None:
    """Fill the pages below docs/ from the CSV files beside them."""
    results = Path("docs/results")
    fill(Path("README.md"), "quickstart", quickstart_block(read_rows(results / "quickstart.csv")))
    for name in ELSEWHERE:
        own = results / f"{name}.md"
        fill(own, "ablation", ablation_tables(read_rows(results / f"{name}.csv")))
        for path in sorted(results.glob(f"{name}-*.csv")):  # other settings, a section each
            fill(own, path.stem, ablation_tables(read_rows(path)))
    page = results.parent / "results.md"
    ablations = {path.stem: read_rows(path) for path in sorted(results.glob("cub-*.csv"))}
    for name, rows in ablations.items():
        fill(page, name, ablation_tables(rows))
    every, sizes = list(ablations.values()), read_rows(results / "globalnet-sizes.csv")
    counted = curves(every, read_work(read_rows(COUNTED)), sizes)
    timed = timed_curves(every, read_rows(TIMED), sizes)
    fill(page, "curve", markdown_table(("", "size, step or crops", "GMAC", "T1"), curve_rows(counted)))
    fill(page, "curve-ms", markdown_table(("", "size or step", "ms", "T1"), curve_rows(timed, digits=3)))
    draw_curves(counted, timed, results.parent / "images" / "curve.png")
    published = read_rows(results / "published.csv")
    fill(page, "summary", summary_table(list(ablations.values()), published))
    fill(page, "published", published_table(published, own_rows(results)))
    fill(page, "places", places_table(read_rows(results / "attribute-places.csv")))
    for name in ("entropy", "entropy-cub"):
        fill(page, name, entropy_table(read_rows(results / f"{name}.csv")))
    fill(page, "others", others_table({name: read_rows(results / f"{name}.csv") for name in ELSEWHERE}))
    speed, timings = results.parent / "speed.md", Path("benchmarks/results")
    fill(speed, "arithmetic", arithmetic_table(read_rows(timings / "arithmetic.csv")))
    for machine, benches in read_benches(timings).items():
        if machine != "cpu":
            fill(speed, f"bars_{machine}", bars_table(benches))
        fill(speed, f"ratios_{machine}", ratios_table(benches))
        fill(speed, f"times_{machine}", times_tables(benches[0]))


if __name__ == "__main__":
    main()
