"""Does input hold training up? Stage I fed by the pipeline, against the same step on one fixed batch.

    python benchmarks/input_pipeline.py --config creatures --data data/creatures [--steps 40] [--rounds 5]

Both are timed in turns within one run, and the medians compared: 1.0 means that input costs nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from erpcnet.config import load_config
from erpcnet.data import Batch, read_dataset
from erpcnet.pipeline import create_network, open_workshop
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.stage1 import random_cells, seen_targets
from erpcnet.training.step import gradient_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--variant", default="pcnet")
    parser.add_argument("--weights", help="file of backbone weights, or 'none'")
    parser.add_argument("--backbone")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--not-resident", action="store_true", help="keep pixels in host memory")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    backbone = {k: v for k, v in {"name": options.backbone, "weights": options.weights}.items() if v}
    data = {"image_size": options.image_size, "cache_size": None} if options.image_size else {}
    config = load_config(options.config, variant=options.variant, model={"backbone": backbone}, data=data)
    started = time.perf_counter()
    shop = open_workshop(config, read_dataset(options.data))
    cache_s = time.perf_counter() - started
    if options.not_resident:
        shop.feed._resident = None
    found = measure(shop, options.steps, options.rounds)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"config": options.config, "device": device, "cache_s": round(cache_s, 1), **found}))


def measure(shop, steps: int, rounds: int) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Seconds per step from the feed and from a fixed batch, by turns."""
    config, dataset, feed = shop.config, shop.dataset, shop.feed
    network = create_network(config, len(dataset.attribute_names))
    network.to(feed.device, memory_format=torch.channels_last).train()
    objective = Stage1Loss(network, config.stage1.weights, 0.0)
    optimizer = torch.optim.SGD(network.stage1_parameters(), lr=1e-4, momentum=0.9)
    phi, labels = seen_targets(dataset, feed.device)
    generator = torch.Generator().manual_seed(0)
    gradients = gradient_step(objective, recorded_on=feed.device if feed.device.type == "cuda" else None)

    def step(images: torch.Tensor, rows: torch.Tensor) -> None:
        cells = None
        if network.steps:
            cells = random_cells(len(rows), network.grid.cells, network.steps, generator).to(feed.device)
        gradients(images, cells, labels[rows.to(feed.device)], phi)
        optimizer.step()

    def epochs() -> Iterator[Batch]:
        draws = torch.Generator().manual_seed(1)
        while True:
            yield from feed.epoch(dataset.train, config.stage1.batch_size, draws)

    batches = epochs()  # rounds go on where the last one ended, so that what an epoch does once is spread over it

    def from_feed() -> None:
        for batch in itertools.islice(batches, steps):
            step(batch.images, batch.rows)

    fixed = next(iter(feed.epoch(dataset.train, config.stage1.batch_size, torch.Generator().manual_seed(1))))

    def from_memory() -> None:
        for _ in range(steps):
            step(fixed.images, fixed.rows)

    from_memory()
    from_feed()
    times: dict[str, list[float]] = {"feed": [], "fixed": []}
    memory = []
    for _ in range(rounds):
        for name, run in (("fixed", from_memory), ("feed", from_feed)):
            times[name].append(_timed(run) / steps)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    fed, still = (statistics.median(times[name]) for name in ("feed", "fixed"))
    return {
        "batch_size": config.stage1.batch_size,
        "image_size": config.data.image_size,
        "fed_ms": round(1000 * fed, 2),
        "fixed_ms": round(1000 * still, 2),
        "ratio": round(still / fed, 3),
        "ratio_rounds": [round(b / a, 3) for a, b in zip(times["feed"], times["fixed"], strict=True)],
        "host_mib_growth": round(memory[-1] - memory[0], 1),
    }


def _timed(run: Callable[[], None]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
