"""How far the quickstart's figures lie apart on CPUs that round otherwise: the same command with other kernels.

    python -m erpcnet.experiments.quickstart DATASET

trains the preset `creatures`, seed 0, once for each of `CPUS`, and writes docs/results/quickstart.csv, from which
`erpcnet.experiments.report` fills the README. ATEN_CPU_CAPABILITY says which instructions torch's own kernels may use,
OMP_NUM_THREADS among how many threads sums are shared.

    python -m erpcnet.experiments.quickstart DATASET --sheet

draws docs/images/creatures.png, two classes of each of six families, and docs/images/sample.png, one picture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.experiments.rows import write_rows
from erpcnet.inference.examples import load_picture

RESULTS = Path("docs/results/quickstart.csv")
# Kernels (None: the best that this CPU has) and threads. The first is what `make quickstart` does on two cores.
CPUS: tuple[tuple[str | None, int], ...] = ((None, 2), (None, 1), ("avx2", 2), ("default", 1))


def run_once(data: str, kernels: str | None, threads: int, options: Sequence[str] = ()) -> dict[str, Any]:
    """Train in a process of its own; its metrics, and what it ran with."""
    own = {"OMP_NUM_THREADS": str(threads)} | ({} if kernels is None else {"ATEN_CPU_CAPABILITY": kernels})
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **own}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "erpcnet", "train", "--config", "creatures", "--dataset", data]
        subprocess.run([*command, "--out", str(out), *options], env=environment, check=True, stdout=subprocess.DEVNULL)
        metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    figures = {name: value for name, value in metrics.items() if not isinstance(value, list) and name != "data"}
    return {"kernels": kernels or "best", "threads": threads, **figures}


def draw_samples(dataset: ZeroShotDataset, folder: Path, families: int = 6) -> None:
    """A sheet with two unseen classes of each family, which differ in one small part, and one picture by itself."""
    kin: dict[str, list[int]] = {}
    for number in dataset.unseen.tolist():
        kin.setdefault(dataset.classes[number].rpartition(" ")[0], []).append(number)
    shown = [number for own in list(kin.values())[:families] for number in own[:2]]
    pictures = []
    for number in shown:
        row = dataset.test_unseen[np.flatnonzero(dataset.labels[dataset.test_unseen] == number)[0]]
        pictures.append((dataset.classes[number], load_picture(dataset, row)))
    from erpcnet.experiments.figures import draw_sheet

    draw_sheet(pictures, folder / "creatures.png")
    pictures[0][1].save(folder / "sample.png")


def main() -> None:
    """Write the rows, after each of them; or the sheet."""
    if "--sheet" in sys.argv:
        draw_samples(read_dataset(sys.argv[1]), Path("docs/images"))
        return
    rows = []
    for kernels, threads in CPUS:
        rows.append(run_once(sys.argv[1], kernels, threads))
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
