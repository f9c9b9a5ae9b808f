"""`PYTHONPATH=tests python -m trust`: run the campaigns and print their table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a process of many threads cannot be forked
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from rich.console import Console
from rich.table import Table

from erpcnet.experiments.markdown import fill, markdown_table
from erpcnet.experiments.rows import write_rows
from trust import clusters, inputs, kills, processes, server, soak
from trust.cases import Row, temporary

CAMPAIGNS = {
    "kills": kills.run,
    "inputs": inputs.run,
    "processes": processes.run,
    "soak": soak.run,
    "server": server.run,
    "ray": clusters.run,
}
SEED = 23
HEADER = ("campaign", "what", "promise", "tried", "held")


def main(words: Sequence[str] | None = None) -> int:
    """Run them; 1 if anything did not hold."""
    options = _options(words)
    import torch

    torch.set_num_threads(1)
    started = time.monotonic()
    size, rows = "short" if options.short else "full", []
    for name in options.only:
        for folder in temporary():
            for row in CAMPAIGNS[name](size, options.seed, folder):  # type: ignore[arg-type]
                rows.append(row)
                _tell(row, options.seed, time.monotonic() - started)
    _print(rows)
    wrong = sum(row.tried - row.held for row in rows)
    tried, minutes = sum(row.tried for row in rows), (time.monotonic() - started) / 60
    print(f"{tried} tried, {tried - wrong} held, in {minutes:.1f} minutes; seed {options.seed}")
    if options.out:
        write_rows(Path(options.out), [_as_row(row, options.seed) for row in rows])
    if options.page:
        fill(Path(options.page), "trust", page_table(rows, options.seed, minutes))
    return 1 if wrong else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trust", description="Try to break the package, and print one table.")
    parser.add_argument("--seed", type=int, default=SEED, help="another one tries other things")
    parser.add_argument("--short", action="store_true", help="a few cases of each kind")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(CAMPAIGNS), help=f"of {','.join(CAMPAIGNS)}"
    )
    parser.add_argument("--out", help="a CSV file for the table")
    parser.add_argument("--page", help="a page with a place for the table")
    options = parser.parse_args(words)
    unknown = [name for name in options.only if name not in CAMPAIGNS]
    if unknown:
        parser.error(f"there is no campaign '{unknown[0]}'; there are {', '.join(CAMPAIGNS)}")
    return options


def _tell(row: Row, seed: int, seconds: float) -> None:
    print(
        f"{seconds / 60:5.1f} min  {row.campaign}, {row.kind}: {row.held} of {row.tried}", file=sys.stderr, flush=True
    )
    for problem in row.problems:
        print(f"  did not hold: {problem}\n  again: --only {row.campaign} --seed {seed}", file=sys.stderr, flush=True)


def _print(rows: Sequence[Row]) -> None:
    table = Table(*HEADER, title="trust")
    for row in rows:
        table.add_row(row.campaign, _what(row), row.promise, str(row.tried), str(row.held))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _what(row: Row) -> str:
    return f"{row.kind} ({row.note})" if row.note else row.kind


def _as_row(row: Row, seed: int) -> dict[str, object]:
    return {
        "campaign": row.campaign,
        "what": row.kind,
        "note": row.note,
        "promise": row.promise,
        "tried": row.tried,
        "held": row.held,
        "seed": seed,
    }


def page_table(rows: Sequence[Row], seed: int, minutes: float) -> str:
    """The table as the page shows it."""
    lines = [(row.campaign, _what(row), row.promise, str(row.tried), str(row.held)) for row in rows]
    tried, held = (sum(getattr(row, name) for row in rows) for name in ("tried", "held"))
    told = f"Seed {seed}, 2 CPU cores, {minutes:.0f} minutes: {held} of {tried} held."
    return f"{told}\n\n{markdown_table(HEADER, lines)}"


if __name__ == "__main__":
    sys.exit(main())
