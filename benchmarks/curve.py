"""What does an image take over input sizes, steps and zoom, for the curve of the results page?

    python benchmarks/curve.py [--device cuda] [--repeats 3] [--backbone resnet50] > times.csv

Networks are as Stage I leaves them, their weights drawn; every step is taken.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from erpcnet.config import LocalSettings
from erpcnet.experiments.bench_cases import BenchSettings, drawn_network
from erpcnet.inference import Engine, Execution
from erpcnet.model import ERPCNet

WARMUP = 2


def networks(settings: BenchSettings) -> Iterator[tuple[str, ERPCNet]]:
    """GlobalNet over input sizes, windows of the map, and zoom."""
    for size in (160, 224, 288, 320, 384, 448):
        yield f"globalnet {size}", drawn_network("globalnet", replace(settings, image_size=size))
    for size, zoom in ((224, 1), (224, 2), (160, 2)):
        local = LocalSettings(zoom=zoom)
        yield f"erpcnet {size} zoom {zoom}", drawn_network("erpcnet", replace(settings, image_size=size), local)


def milliseconds(engine: Engine, images: torch.Tensor, repeats: int) -> float:
    """The median per image, after some that are not counted."""
    taken = []
    for _ in range(WARMUP + repeats):
        wait()
        started = time.perf_counter()
        engine.rollout(images)
        wait()
        taken.append(time.perf_counter() - started)
    return 1000 * statistics.median(taken[WARMUP:]) / images.shape[1]


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batches", default="1,256")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cuda = options.device == "cuda"
    settings = BenchSettings(options.backbone, device=options.device, precision=torch.bfloat16 if cuda else None)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["batch", "what", "way", "steps", "ms_per_image"])
    for name, network in networks(settings):
        side = network.zoom * network.image_size
        several: tuple[Execution, ...] = ("sequential", "sequential_graph", "parallel_graph")
        ways = several if cuda and network.steps else several[:1]
        every = network.settings
        for batch in map(int, options.batches.split(",")):
            images = torch.randn(1, batch, 3, side, side, device=options.device)
            for way in ways:
                for steps in (6, 3) if network.steps else (0,):
                    network.settings = replace(every, steps=steps or every.steps)
                    engine = Engine(network, way, runtime=settings.runtime)
                    rows.writerow([batch, name, way, steps, f"{milliseconds(engine, images, options.repeats):.4f}"])
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
