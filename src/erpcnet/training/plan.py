"""What a training is going to do, phase by phase, so that the time left can be said."""

from __future__ import annotations

from erpcnet.config import WITH_POLICY, Config
from erpcnet.data import ZeroShotDataset
from erpcnet.utils.progress import Plan

# Times in proportion: a pass of an image through the network, with and without its localities, and back again.
GLANCE, LOCALITIES, STEP = 1.0, 2.0, 5.0
EPISODE = 0.02  # of Stage II, with all passes of PPO over it
FROZEN_STEP = 0.05  # of heads on embeddings


def plan_training(config: Config, dataset: ZeroShotDataset) -> Plan:
    """The phases of a run, by the names of their bars."""
    frozen = config.stage1.freeze_backbone
    trainings = [*_folds(config, dataset), dataset]
    phases: list[tuple[str, float]] = []
    if frozen:
        images = len(dataset.train) + len(dataset.test_seen) + len(dataset.test_unseen)
        phases += [("Embeddings", config.data.test_crops * images)]
        phases += [("Embeddings of random crops", (config.stage2.crops - 1) * len(dataset.train))]
    for own in trainings:
        phases += _training(config, own, frozen)
    batch = config.stage1.batch_size * (FROZEN_STEP if frozen else STEP)
    localities = LOCALITIES if config.variant != "globalnet" else GLANCE
    names = dict.fromkeys(name for name, _ in phases)
    guess = {name: batch if name == "Stage I" else localities for name in names}
    guess["Stage II"] = EPISODE * len(dataset.train) * config.stage2.crops
    return Plan(phases, guess)


def _training(config: Config, dataset: ZeroShotDataset, frozen: bool) -> list[tuple[str, float]]:
    batches = max(1, len(dataset.train) // config.stage1.batch_size)
    phases: list[tuple[str, float]] = [("Stage I", config.stage1.passes(batches) * batches)]
    if config.variant in WITH_POLICY:
        if not frozen and config.variant != "hardnet":
            phases += [("Localities of the training images", config.stage2.crops * len(dataset.train))]
        phases += [("Stage II", config.stage2.epochs)]
    if not frozen:
        rows = {"seen": dataset.test_seen, "unseen": dataset.test_unseen}
        phases += [
            (f"Test images, {split}", config.data.test_crops * len(own)) for split, own in rows.items() if len(own)
        ]
    return phases


def _folds(config: Config, dataset: ZeroShotDataset) -> tuple[ZeroShotDataset, ...]:
    chosen = config.model.sigma is None or config.model.delta is None
    if not chosen or config.evaluation.protocol == "test":
        return ()
    return dataset.validation(config.evaluation.folds, seed=config.seed)
