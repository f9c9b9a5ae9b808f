"""What a training is going to do, phase by phase, so that how far it is and the time left can be said."""

from __future__ import annotations

from collections.abc import Iterator

from erpcnet.config import WITH_POLICY, Config
from erpcnet.data import ZeroShotDataset
from erpcnet.training.validation import SHARE, with_few_test_images
from erpcnet.utils.progress import Phase, Plan

# Times in proportion: a pass of an image through the network, with and without its localities, and back again.
GLANCE, LOCALITIES, STEP = 1.0, 2.0, 5.0
EPISODE = 0.02  # of Stage II, with all passes of PPO over it
FROZEN_STEP = 0.05  # of heads on embeddings
WHOLE = "all seen classes"  # the training after those of validation folds


def plan_training(config: Config, dataset: ZeroShotDataset) -> Plan:
    """The phases of a run, by the names of their bars."""
    phases: list[Phase] = []
    if config.stage1.freeze_backbone:
        images = len(dataset.train) + len(dataset.test_seen) + len(dataset.test_unseen)
        phases += [Phase("Embeddings", config.data.test_crops * images)]
        phases += [Phase("Embeddings of random crops", (config.stage2.crops - 1) * len(dataset.train))]
    folds = _folds(config, dataset)
    for number, fold in enumerate(folds):
        phases += _training(config, fold, fold_name(number))
    phases += _training(config, dataset, WHOLE if folds else None)
    batch = config.stage1.batch_size * (FROZEN_STEP if config.stage1.freeze_backbone else STEP)
    localities = LOCALITIES if config.variant != "globalnet" else GLANCE
    names = dict.fromkeys(phase.kind for phase in phases)
    guess = {name: batch if name == "Stage I" else localities for name in names}
    guess["Stage II"] = EPISODE * len(dataset.train) * config.stage2.crops
    return Plan(phases, guess)


def fold_name(number: int) -> str:
    """What the training without a fold's validation classes is called, counted from 0."""
    return f"fold {number + 1}"


def _training(config: Config, dataset: ZeroShotDataset, part: str | None) -> Iterator[Phase]:
    batches = max(1, len(dataset.train) // config.stage1.batch_size)
    yield Phase("Stage I", config.stage1.passes(batches) * batches, part)
    frozen, tabulable = config.stage1.freeze_backbone, config.variant != "hardnet"
    if config.variant in WITH_POLICY:
        if tabulable and not frozen:
            yield Phase("Localities of the training images", config.stage2.crops * len(dataset.train), part)
            if part not in (None, WHOLE):
                few = with_few_test_images(dataset, int(SHARE * len(dataset.train)))
                yield Phase("Localities of validation images", len(few.test_seen) + len(few.test_unseen), part)
        yield Phase("Stage II", config.stage2.epochs, part)
    if not frozen:
        splits = {"seen": dataset.test_seen, "unseen": dataset.test_unseen}
        for split, rows in splits.items() if tabulable else reversed(splits.items()):
            if len(rows):
                yield Phase(f"Test images, {split}", config.data.test_crops * len(rows), part)


def _folds(config: Config, dataset: ZeroShotDataset) -> tuple[ZeroShotDataset, ...]:
    chosen = config.model.sigma is None or config.model.delta is None
    if not chosen or config.evaluation.protocol == "test":
        return ()
    return dataset.validation(config.evaluation.folds, seed=config.seed)
