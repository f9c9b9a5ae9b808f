"""What does prediction cost beside the backbone alone, and beside all steps? A trained run on its own test images.

    python benchmarks/prediction.py RUN --dataset DIR [--batch 256] [--images 256] [--repeats 20]

Timed in turns within one run, on the same images of unseen classes, one crop of each: the rollout with its early stop
and with all steps, the backbone fused as the rollout's is, and the backbone as it comes; the medians are compared.
A turn is all images in batches: some stop sooner than others, so that a single image says little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

import erpcnet
from erpcnet.data import read_dataset
from erpcnet.data.loader import open_loader
from erpcnet.inference import Execution
from erpcnet.model import create_backbone
from erpcnet.model.scoring import StopRule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, help="as many as a batch, if not given")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    count = options.images or options.batch
    dataset = read_dataset(options.dataset)
    # Images of a class lie together, and classes take more or fewer steps.
    spread = np.linspace(0, len(dataset.test_unseen) - 1, count).astype(int)
    rows = dataset.test_unseen[spread]
    found: dict[str, object] = {}
    ways: tuple[Execution, ...] = ("sequential", "parallel", "parallel_graph", "sequential_graph", "stopping_graph")
    for way in ways if torch.cuda.is_available() else ways[:2]:
        model = erpcnet.load(options.run, execution=way)
        network = model.network
        device = next(network.parameters()).device
        loader = open_loader(dataset, model.data, model.preprocessing, device)
        images = next(loader.centre_crops(rows, count)).images
        phi = model.classes.select("unseen").phi().to(images.device)
        seen = torch.zeros(len(phi), dtype=torch.bool, device=images.device)
        stop = StopRule(network, network.classes(phi, seen), model.point.sigma)
        crops = [batch[None] for batch in images.split(options.batch)]
        stopped = [model.engine.rollout(batch, stop).steps for batch in crops]
        # The backbone sees what the glance sees.
        precision = (model.runtime.precision if images.is_cuda else None) or torch.float32
        typed = [batch[0, :, :, :: network.zoom, :: network.zoom].to(precision).contiguous() for batch in crops]
        usual = create_backbone(network.settings.backbone.name, "none").eval()
        usual = usual.to(images.device, precision, memory_format=torch.channels_last)  # type: ignore[call-overload]

        with torch.inference_mode():
            rolled_out, whole, fused, alone = by_turns(
                [
                    partial(each, crops, partial(model.engine.rollout, stop=stop)),
                    partial(each, crops, model.engine.rollout),
                    partial(each, typed, network.backbone),
                    partial(each, typed, usual),
                ],
                options.repeats,
            )
        name = torch.cuda.get_device_name() if images.is_cuda else f"{torch.get_num_threads()} CPU threads"
        found[model.engine.way(options.batch)] = {
            "device": name,
            "batch": options.batch,
            "images": len(images),
            "mean_steps": float(torch.cat(stopped, dim=1).double().mean()),
            "ms_per_image": 1000 * rolled_out / len(images),
            "all_steps_ms_per_image": 1000 * whole / len(images),
            "backbone_fused_ms_per_image": 1000 * fused / len(images),
            "backbone_ms_per_image": 1000 * alone / len(images),
            "against_all_steps": rolled_out / whole,
            "against_fused": rolled_out / fused,
            "against_usual": rolled_out / alone,
        }
    print(json.dumps(found, indent=2))


def each(batches: Sequence[torch.Tensor], run: Callable[[torch.Tensor], object]) -> None:
    for batch in batches:
        run(batch)


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
