"""From a configuration and a dataset to a trained network and its operating point: what `erpcnet train` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.operating_point import (
    Choice,
    Plainer,
    choose_on_test,
    choose_operating_point,
    with_diagnosis,
)
from erpcnet.evaluation.protocol import Metrics, measure, measure_plainer
from erpcnet.evaluation.rollouts import EvaluationRollouts, build_test_tables, rollout_images, rollout_tables
from erpcnet.model import ERPCNet, OperatingPoint
from erpcnet.model.locality_tables import LocalityTable
from erpcnet.model.selection import default_order
from erpcnet.training.checkpoint import Checkpoint, Checkpoints
from erpcnet.training.context import Context, create_network
from erpcnet.training.episode_sources import DirectSource, EpisodeSource, TableSource, policy_table
from erpcnet.training.log import Log
from erpcnet.training.plan import fold_name
from erpcnet.training.stage1 import train_stage1
from erpcnet.training.stage2 import train_stage2
from erpcnet.training.validation import Validation
from erpcnet.utils.progress import console, enter


def train_network(
    context: Context,
    dataset: ZeroShotDataset,
    log: Log,
    checkpoints: Checkpoints | None = None,
    validation: Validation | None = None,
) -> ERPCNet:
    """Both stages on the training images of `dataset`; what checkpoints hold of them is not done again."""
    checkpoints = checkpoints or Checkpoints()
    network = run_stage1(context, dataset, log, checkpoints.stage(1), validation)
    if network.policy is not None:
        run_stage2(context, network, dataset, log, checkpoints.stage(2), validation)
    return network


def run_stage1(
    context: Context,
    dataset: ZeroShotDataset,
    log: Log,
    checkpoint: Checkpoint | None = None,
    validation: Validation | None = None,
) -> ERPCNet:
    """Stage I of a new network, unless a checkpoint holds what came out of it."""
    checkpoint = checkpoint or Checkpoint()
    network = create_network(context.config, len(dataset.attribute_names))
    if checkpoint.finished(network):
        return network.to(context.device).eval()
    network = train_stage1(context, network, dataset, log, checkpoint, validation)
    checkpoint.finish(network)
    return network


def run_stage2(
    context: Context,
    network: ERPCNet,
    dataset: ZeroShotDataset,
    log: Log,
    checkpoint: Checkpoint | None = None,
    validation: Validation | None = None,
) -> None:
    """Stage II, in place, unless a checkpoint holds what came out of it."""
    config, checkpoint = context.config, checkpoint or Checkpoint()
    assert network.policy is not None
    if checkpoint.finished(network.policy):
        return
    if network.tabulable:
        source: EpisodeSource = TableSource(training_table(context, network, dataset), dataset, config.stage2.crops)
    else:
        source = DirectSource(network, dataset, context.loader, config.stage2, config.seed)
    train_stage2(
        network,
        source,
        config.stage2,
        seed=config.seed,
        log=log,
        checkpoint=checkpoint,
        runtime=context.runtime,
        validation=None if validation is None else validation.of_policy(network),
    )
    checkpoint.finish(network.policy)


def training_table(context: Context, network: ERPCNet, dataset: ZeroShotDataset) -> LocalityTable:
    """The localities that the policy learns on."""
    config = context.config
    if config.stage1.freeze_backbone:
        return context.embeddings.training(network, dataset.train)
    with context.runtime.autocast():
        return policy_table(network, dataset, context.loader, config.stage2, config.seed)


def test_tables(context: Context, network: ERPCNet, dataset: ZeroShotDataset) -> dict[str, LocalityTable]:
    """The localities of the test images of seen and of unseen classes."""
    config = context.config
    if config.stage1.freeze_backbone:
        rows = {"seen": dataset.test_seen, "unseen": dataset.test_unseen}
        return {split: context.embeddings.test(network, own) for split, own in rows.items() if len(own)}
    with context.runtime.autocast():
        return build_test_tables(network, dataset, context.loader, config.evaluation.batch_size)


def rollout_test(context: Context, network: ERPCNet, dataset: ZeroShotDataset) -> EvaluationRollouts:
    """T steps over the dataset's test images."""
    config, order = context.config, default_order(network, context.config.seed)
    if network.tabulable:
        return rollout_tables(network, dataset, test_tables(context, network, dataset), order)
    with context.runtime.autocast():
        return rollout_images(network, dataset, context.loader, config.evaluation.batch_size, order)


def select_operating_point(
    context: Context, log: Log, checkpoints: Callable[[str], Checkpoints] | None = None
) -> Choice | None:
    """sigma and delta from networks that never saw the validation classes; None where the test classes decide.

    Args:
        context: Settings, images and machine.
        log: Gets what all trainings tell, that of the first fold within `fold0`.
        checkpoints: Of the training that is named.
    """
    model, evaluation = context.config.model, context.config.evaluation
    if model.sigma is not None and model.delta is not None:
        return Choice(OperatingPoint(model.sigma, model.delta, "fixed"))
    if evaluation.protocol == "test":
        return None
    rollouts = []
    folds = context.dataset.validation(evaluation.folds, seed=context.config.seed)
    for number, fold in enumerate(folds):
        enter(fold_name(number))
        console.print(
            f"Choosing sigma and delta on {len(fold.unseen)} validation classes (fold {number + 1} of {len(folds)}), "
            f"training on the other {len(fold.seen)} seen ones"
        )
        named = None if checkpoints is None else checkpoints(f"validation{number}")
        network = train_network(context, fold, log.within(f"fold{number}"), named, Validation(context, fold))
        rollouts.append(rollout_test(context, network, fold))
    choice = choose_operating_point(rollouts, model.sigma, model.delta, evaluation.stop_loss)
    choice = with_diagnosis(choice, rollouts, model.sigma, model.delta, evaluation.stop_loss)
    for found in (choice.stop, choice.curve, choice.reject):
        if found is not None:
            console.print(found.describe(), soft_wrap=True)
    return choice


def evaluate(
    context: Context, network: ERPCNet, point: OperatingPoint | None, plainer: Sequence[Plainer] = ()
) -> tuple[Metrics, OperatingPoint]:
    """The figures on the test images, with the operating point used; without one, it is chosen there (`test`)."""
    rollouts = rollout_test(context, network.to(context.device), context.dataset)
    if point is None:
        model, stop_loss = context.config.model, context.config.evaluation.stop_loss
        point = choose_on_test(rollouts, model.sigma, model.delta, stop_loss)
    metrics = measure(rollouts, point, context.config.seed)
    return replace(metrics, plainer=measure_plainer(rollouts, plainer, context.config.seed)), point
