"""Does input hold training up? Stage I fed by the pipeline, against the same step on one fixed batch.

    python benchmarks/input_pipeline.py --config creatures --dataset data/creatures [--steps 40] [--rounds 5]

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
from erpcnet.training.context import Context, create_network, open_context
from erpcnet.training.gradient_step import gradient_step
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.stage1 import seen_targets
from erpcnet.training.stage1_sources import random_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--dataset", required=True)
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
    context = open_context(config, read_dataset(options.dataset))
    cache_s = time.perf_counter() - started
    if options.not_resident:
        context.loader._resident = None
    found = measure(context, options.steps, options.rounds)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(json.dumps({"config": options.config, "device": device, "cache_s": round(cache_s, 1), **found}))


def measure(context: Context, steps: int, rounds: int) -> dict[str, object]:
    """Seconds per step from the loader and from a fixed batch, by turns."""
    config, dataset, loader = context.config, context.dataset, context.loader
    network = create_network(config, len(dataset.attribute_names))
    network.to(loader.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    objective = Stage1Loss(network, config.stage1)
    optimizer = torch.optim.SGD(network.stage1_parameters(), lr=1e-4, momentum=0.9)
    phi, labels = seen_targets(dataset, loader.device)
    generator = torch.Generator().manual_seed(0)
    gradients = gradient_step(objective, graph_device=loader.device if context.cuda_graphs else None)

    def step(images: torch.Tensor, rows: torch.Tensor) -> None:
        cells = None
        if network.steps:
            cells = random_cells(len(rows), network.grid.cells, network.steps, generator).to(loader.device)
        with context.runtime.autocast():
            gradients(images, cells, labels[rows.to(loader.device)], phi)
        optimizer.step()

    def epochs() -> Iterator[Batch]:
        draws = torch.Generator().manual_seed(1)
        while True:
            yield from loader.epoch(dataset.train, config.stage1.batch_size, draws)

    batches = epochs()  # rounds go on where the last one ended, so that what an epoch does once is spread over it

    def from_loader() -> None:
        for batch in itertools.islice(batches, steps):
            step(batch.images, batch.rows)

    fixed = next(iter(loader.epoch(dataset.train, config.stage1.batch_size, torch.Generator().manual_seed(1))))

    def from_memory() -> None:
        for _ in range(steps):
            step(fixed.images, fixed.rows)

    from_memory()
    from_loader()
    times: dict[str, list[float]] = {"fed": [], "fixed": []}
    memory = []
    for _ in range(rounds):
        for name, run in (("fixed", from_memory), ("fed", from_loader)):
            times[name].append(_timed(run) / steps)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    fed, still = (statistics.median(times[name]) for name in ("fed", "fixed"))
    return {
        "batch_size": config.stage1.batch_size,
        "image_size": config.data.image_size,
        "fed_ms": round(1000 * fed, 2),
        "fixed_ms": round(1000 * still, 2),
        "ratio": round(still / fed, 3),
        "ratio_rounds": [round(b / a, 3) for a, b in zip(times["fed"], times["fixed"], strict=True)],
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
