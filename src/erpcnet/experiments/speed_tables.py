"""The tables of docs/speed.md, from the rows of `erpcnet bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erpcnet.experiments.bench import ratios
from erpcnet.experiments.markdown import markdown_table
from erpcnet.experiments.rows import Rows, read_rows

# What a GPU has to reach: a ratio of the bench, the most it may be, or with a minus the least.
BARS = {
    "stage II: tables against direct": 1 / 20,
    "stage II: tables against HardNet": 1 / 50,
    "stage II: tables, built over 30 epochs, against HardNet": 1 / 8,
    "inference, batch 1: against HardNet": 1 / 2.5,
    "inference, batch 256: against HardNet": 0.75,
    "inference, batch 256: against the backbone as it comes": 1.2,
    "stage I, batch 64, pcnet: rate against its arithmetic's share of the backbone's": -0.8,
}


def ratios_table(benches: Sequence[Rows]) -> str:
    """The ratios of one machine's benches beside each other."""
    found = [_ratios(rows) for rows in benches]
    names = dict.fromkeys(name for one in found for name in one)
    table = [(name, *(f"{one[name]:.3f}" if name in one else "" for one in found)) for name in names]
    return markdown_table(("ratio", *_titles(benches)), table)


def bars_table(benches: Sequence[Rows]) -> str:
    """The ratios that have a bar, in bold where they miss it."""
    found = [_ratios(rows) for rows in benches]

    def cell(value: float, bar: float) -> str:
        missed = value > bar if bar > 0 else value < -bar
        return f"**{_fraction(value)}**" if missed else _fraction(value)

    bars = {name: f"{'at most' if bar > 0 else 'at least'} {_fraction(abs(bar))}" for name, bar in BARS.items()}
    table = [(name, bars[name], *(cell(one[name], bar) for one in found)) for name, bar in BARS.items()]
    return markdown_table(("", "bar", *_titles(benches)), table)


def _ratios(rows: Rows) -> dict[str, float]:
    numbers = ("ms_per_image", "gmac_per_image")
    return ratios([{**row, "batch": int(row["batch"]), **{n: float(row[n] or "nan") for n in numbers}} for row in rows])


def _titles(benches: Sequence[Rows]) -> list[str]:
    return [f"{rows[0]['backbone']}, {rows[0]['image_size']}" for rows in benches]


def _fraction(value: float) -> str:
    if value >= 0.5:
        return f"{value:.2f}"
    return f"1/{round(1 / value, 0 if value < 0.1 else 1):g}"


def times_tables(rows: Rows) -> str:
    """What was timed, and how it grows."""
    usual = [_timing(row) for row in rows if not row["grown"]]
    grown = [(row["grown"], *_timing(row)) for row in rows if row["grown"]]
    header = ("", "", "batch", "ms per image", "spread", "GMAC per image", "peak MiB")
    tables = [markdown_table(header, usual)]
    if grown:
        tables.append(markdown_table(("other settings", *header), grown))
    return "\n\n".join(tables)


def read_benches(folder: Path) -> dict[str, list[Rows]]:
    """The benches bench_MACHINE[_...].csv of each machine: first the one that says how times grow, then by size."""
    found: dict[str, list[Rows]] = {}
    for path in sorted(folder.glob("bench_*.csv")):
        found.setdefault(path.stem.split("_")[1], []).append(read_rows(path))

    def place(rows: Rows) -> tuple[bool, int, float]:
        growing = any(row["grown"] for row in rows)
        return not growing, int(rows[0]["image_size"]), float(rows[0]["gmac_per_image"])

    return {machine: sorted(benches, key=place) for machine, benches in found.items()}


def _timing(row: dict[str, str]) -> tuple[str, ...]:
    macs = f"{float(row['gmac_per_image']):.3f}" if row["gmac_per_image"] else ""
    memory = f"{float(row['peak_mib']):.0f}" if row["peak_mib"] else ""
    times = (f"{float(row['ms_per_image']):.3f}", f"{float(row['spread']):.0%}", macs, memory)
    return row["group"], row["name"], row["batch"], *times


def arithmetic_table(rows: Rows) -> str:
    """GMAC of a locality with each kind of kernel."""
    return markdown_table(("ResNet-50 at 224", "GMAC"), [(row["what"], f"{float(row['gmac']):.3f}") for row in rows])
