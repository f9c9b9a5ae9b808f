"""What entropy guidance does to Stage II: accuracy and steps after every epoch, with and without beta in the reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from erpcnet.config import Config, Variant
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.metrics import per_class_accuracy
from erpcnet.evaluation.operating_point import choose_sigma
from erpcnet.experiments.ablation import Trained, as_variant, train_with_tables
from erpcnet.experiments.rows import Rows
from erpcnet.model.selection import default_order
from erpcnet.training.context import Context, open_context
from erpcnet.training.episode_sources import TableSource
from erpcnet.training.stage2 import Stage2Trainer
from erpcnet.utils.progress import console

METHODS: dict[str, Variant] = {"RPCNet": "rpcnet", "ERPCNet": "erpcnet"}  # without and with entropy
NEAR = 0.001  # of the best accuracy: what lies within is as good


def run_entropy(config: Config, dataset: ZeroShotDataset, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Rows for every seed, method and epoch of Stage II, on the validation classes of the first fold.

    Both methods have the same Stage I, which never saw these classes. Nothing is looked at on the test classes.

    Args:
        config: Every setting; `variant` does not matter.
        dataset: With at least four seen classes.
        seeds: One Stage I each.

    Yields:
        `t1_by_order`: T1 as a mean over all T steps, nobody stopping: how good the order is. `t1` and `mean_steps`:
        with early stop at the sigma that is chosen after the last epoch.

    Examples:
        >>> rows = list(run_entropy(load_config("creatures"), read_dataset("data/creatures"), [0]))
    """
    for seed in seeds:
        own = replace(config, seed=seed, variant="pcnet")
        context = open_context(own, dataset)
        trained = train_with_tables(context, dataset.validation(1, seed=seed)[0])
        for method, variant in METHODS.items():
            console.print(f"seed {seed}, {method}")
            yield from _epochs(replace(context, config=replace(own, variant=variant)), trained, method)


def _epochs(context: Context, trained: Trained, method: str) -> Iterator[dict[str, Any]]:
    config, settings = context.config, context.config.stage2
    assert trained.training is not None
    network = as_variant(context, trained, config.variant)
    taught = replace(trained, network=network)
    source = TableSource(trained.training, trained.dataset, settings.crops)
    trainer = Stage2Trainer(network, source, settings, config.seed, context.runtime)
    found, learned = [], [{"mean_return": float("nan")}]
    for epoch in range(settings.epochs + 1):
        if epoch:
            learned.append(trainer.epoch())
        rollouts = taught.rollouts(default_order(network, config.seed))
        found.append(rollouts.score("unseen", trained.dataset.unseen))
    stop = choose_sigma([rollouts], config.evaluation.stop_loss)
    sigma = float("inf") if stop is None else stop.sigma
    labels = rollouts.labels("unseen")
    classes = torch.from_numpy(trained.dataset.unseen).to(labels.device)
    for epoch, scored in enumerate(found):
        by_step = classes[scored.logits.mean(dim=0).argmax(dim=2)].T[1:]
        answers = scored.stopped(sigma)
        yield {
            "method": method,
            "seed": config.seed,
            "dataset": trained.dataset.name,
            "settings": config.fingerprint(),
            "epoch": epoch,
            "t1_by_order": mean(per_class_accuracy(step, labels) for step in by_step),
            "t1": per_class_accuracy(classes[answers.final.argmax(dim=1)], labels),
            "mean_steps": float(answers.mean_steps.mean()),
            "mean_return": learned[epoch]["mean_return"],
            "sigma": sigma,
        }


def best_epoch(rows: Rows, column: str = "t1_by_order") -> int:
    """The first epoch of one run of Stage II that is as good as its best, within a tenth of a point."""
    best = max(float(row[column]) for row in rows)
    return min(int(row["epoch"]) for row in rows if float(row[column]) >= best - NEAR)


def draw_entropy(rows: Rows, out: Path) -> None:
    """Accuracy and steps over epochs of Stage II, as means over seeds, with and without entropy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for (method, colour), marker in zip((("RPCNet", "#d95f02"), ("ERPCNet", "#1f77b4")), ("s--", "o-"), strict=True):
        own = [row for row in rows if row["method"] == method]
        epochs = sorted({int(row["epoch"]) for row in own})
        title = "with entropy (ERPCNet)" if method == "ERPCNet" else "without (RPCNet)"
        for axis, column, scale in ((axes[0], "t1_by_order", 100), (axes[1], "mean_steps", 1)):
            middle = [scale * mean(float(row[column]) for row in own if int(row["epoch"]) == one) for one in epochs]
            axis.plot(epochs, middle, marker, color=colour, markersize=3, label=title)
    for axis, name in zip(axes, ("T1 of validation classes, mean over steps, per cent", "mean steps"), strict=True):
        axis.set_xlabel("epochs of Stage II")
        axis.set_ylabel(name, fontsize=8)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=130, bbox_inches="tight")
    plt.close(figure)
