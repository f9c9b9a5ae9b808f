"""What does prediction cost beside the backbone alone? A trained run on its own test images, with its early stop.

    python benchmarks/prediction.py RUN --data DIR [--batch 256] [--repeats 20]

Timed in turns within one run, on the same images of unseen classes, one view of each: the walk, the backbone frozen as
the walk's is, and the backbone as it comes; the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import erpcnet
from erpcnet.config import load_config
from erpcnet.data import read_dataset
from erpcnet.model.backbone import create_backbone
from erpcnet.model.walk import StopRule
from erpcnet.pipeline import open_workshop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    dataset = read_dataset(options.data)
    # Images of a class lie together, and classes take more or fewer steps.
    spread = np.linspace(0, len(dataset.test_unseen) - 1, options.batch).astype(int)
    rows = dataset.test_unseen[spread]
    found: dict[str, object] = {}
    for way in ("sequential", "parallel", "parallel_graph", "sequential_graph"):
        model = erpcnet.load(options.run, execution=way)
        network = model.network
        feed = open_workshop(replace(load_config(), data=model.data), dataset).feed
        images = next(feed.plain(rows, options.batch)).images
        phi = model.classes.select("unseen").phi().to(images.device)
        seen = torch.zeros(len(phi), dtype=torch.bool, device=images.device)
        stop = StopRule(model.sigma, network.classes(phi, seen))
        steps = float(model.engine.walk(images, stop).steps.double().mean())

        precision = network.precision if images.is_cuda and network.precision else torch.float32
        typed, usual = images.to(precision), create_backbone(network.settings.backbone.name, "none").eval()
        usual = usual.to(images.device, precision, memory_format=torch.channels_last)
        with torch.inference_mode():
            walked, frozen, alone = by_turns(
                [
                    partial(model.engine.walk, images, stop),
                    partial(network.backbone, typed),
                    partial(usual, typed),
                ],
                options.repeats,
            )
        device = torch.cuda.get_device_name() if images.is_cuda else f"{torch.get_num_threads()} CPU threads"
        found[model.engine.way(options.batch)] = {
            "device": device,
            "batch": len(images),
            "mean_steps": steps,
            "ms_per_image": 1000 * walked / len(images),
            "backbone_frozen_ms_per_image": 1000 * frozen / len(images),
            "backbone_ms_per_image": 1000 * alone / len(images),
            "against_frozen": walked / frozen,
            "against_usual": walked / alone,
        }
    print(json.dumps(found, indent=2))


def by_turns(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(repeats + 3):
        for run, taken in zip(runs, seconds, strict=True):
            wait()
            started = time.perf_counter()
            run()
            wait()
            if turn >= 3:  # the first turns warm up
                taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in seconds]


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
