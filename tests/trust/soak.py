"""Many short epochs: neither time nor memory grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from trust.cases import Row, Size, complaint, draw_tiny, in_child

MIB = 2**20
EPOCHS = {"full": 400, "short": 40}
GROWTH, SLOWER = 32, 1.5  # MiB from the second quarter to the last, and how many times as long it may take


def run(size: Size, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of this campaign."""
    promise = f"the last quarter takes at most {GROWTH} MiB more, and {SLOWER} times as long, as the second"
    data = draw_tiny(folder / "creatures")
    for stage in (1, 2):
        row = Row("soak", f"{EPOCHS[size]} epochs of Stage {'I' * stage}", promise)
        notes = folder / f"stage{stage}.npy"
        work = partial(_train, stage, EPOCHS[size], seed, data, notes)
        ended = in_child(work, folder, 600, memory=None)
        problem = complaint(ended, (0,))
        if problem is None:
            seconds, memory = np.load(notes)
            quarter = len(seconds) // 4
            slower = np.median(seconds[-quarter:]) / np.median(seconds[quarter : 2 * quarter])
            grown = (memory[-quarter:].max() - memory[quarter : 2 * quarter].max()) / MIB
            row.note = f"{grown:+.1f} MiB, {slower:.2f} times as long"
            if grown > GROWTH or slower > SLOWER:
                problem = row.note
        row.count(problem)
        yield row


def _train(stage: int, epochs: int, seed: int, data: Path, notes: Path) -> int:
    """Seconds of processor time and resident bytes after every epoch."""
    import psutil
    import torch

    from erpcnet.config import load_config
    from erpcnet.data import read_dataset
    from erpcnet.training import Log, open_context
    from erpcnet.training.context import create_network
    from erpcnet.training.episode_sources import open_source
    from erpcnet.training.pipeline import run_stage1
    from erpcnet.training.stage1 import Stage1Trainer
    from erpcnet.training.stage2 import Stage2Trainer

    torch.set_num_threads(1)
    config = load_config(
        "creatures", data={"image_size": 64}, stage1={"epochs": 1, "batch_size": 16}, stage2={"minibatch_size": 16}
    )
    config = replace(config, seed=seed)
    dataset = read_dataset(data)
    context = open_context(config, dataset)
    if stage == 1:
        long = replace(context, config=replace(config, stage1=replace(config.stage1, epochs=epochs)))
        network = create_network(long.config, len(dataset.attribute_names))
        trainer: Stage1Trainer | Stage2Trainer = Stage1Trainer(long, network, dataset)
    else:
        network = run_stage1(context, dataset, Log())
        source = open_source(network, dataset, context.loader, config.stage2, config.seed)
        trainer = Stage2Trainer(network, source, config.stage2, config.seed)
    process, found = psutil.Process(), np.zeros((2, epochs))
    for epoch in range(epochs):
        started = time.process_time()  # whatever else the machine does meanwhile
        if isinstance(trainer, Stage1Trainer):
            trainer.epoch(lambda *_: None)
        else:
            trainer.epoch()
        found[:, epoch] = time.process_time() - started, process.memory_info().rss
    np.save(notes, found)
    return 0
