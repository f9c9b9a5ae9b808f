"""Is `erpcnet predict FOLDER` as fast as the bare loop over the same batches, in flat memory?

    python benchmarks/folder.py RUN [--pictures 10000] [--out FILE.csv]

Draws a folder of pictures of noise, and predicts it by the command and by a loop that opens a batch, predicts it and
keeps nothing, each in a process of its own, by turns. Memory is a process's largest resident size at a quarter of the
pictures and at the end.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from erpcnet.experiments.rows import write_rows

BATCH, SIZE = 32, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=("command", "loop"), help="what a process of its own does")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.way:
        print(*(in_process(options.way, options.run, options.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        for number in range(options.pictures):
            pixels = random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(folder) / f"{number:06d}.png")
        rows = []
        for way in ("loop", "command", "loop", "command"):
            own = [sys.executable, __file__, options.run, "--way", way, "--folder", folder]
            told = subprocess.run(own, capture_output=True, text=True, check=True).stdout.split()
            seconds, early, late = map(float, told[-3:])
            rate = options.pictures / seconds
            rows.append({"way": way, "pictures": options.pictures, "per_second": rate, "early_mib": early, "mib": late})
            print(f"{way:8s} {rate:7.1f} pictures a second, {early:.0f} MiB early, {late:.0f} MiB in the end")
    if options.out is not None:
        write_rows(options.out, rows)


def in_process(way: str, run: str, folder: Path) -> tuple[float, float, float]:
    """Seconds without what starting takes, and memory early and in the end, in MiB."""
    import erpcnet
    from erpcnet.cli import main as command
    from erpcnet.data.images import load_image

    model = erpcnet.load(run, "cpu")
    names = sorted(folder.glob("*.png"))
    model.predict([load_image(name) for name in names[:BATCH]])
    few = folder.parent / f"{folder.name}-few"
    few.mkdir(exist_ok=True)
    for name in names[: len(names) // 4]:
        if not (few / name.name).exists():
            (few / name.name).symlink_to(name)

    def predict(place: Path) -> None:
        if way == "command":
            out = place.parent / f"{place.name}.csv"
            assert command(["predict", run, str(place), "--out", str(out), "--overwrite", "--device", "cpu"]) == 0
            return
        own = sorted(place.glob("*.png"))
        for start in range(0, len(own), BATCH):
            model.predict([load_image(name) for name in own[start : start + BATCH]])

    predict(few)
    early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    predict(folder)
    return time.perf_counter() - started, early, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
