"""Rows of figures in CSV files: what experiments write and pages are made of."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erpcnet.utils.files import write_atomically

Rows = list[dict[str, str]]


def read_rows(path: Path) -> Rows:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A CSV file with every column that any row has."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    write_atomically(path, file.getvalue().encode())
