"""From a configuration and a dataset to a trained, calibrated network: what `erpcnet train` does."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from erpcnet.config import Config
from erpcnet.data import ImageFeed, ZeroShotDataset, open_cache
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import (
    EvaluationWalks,
    Metrics,
    OperatingPoint,
    build_test_tables,
    choose_settings,
    measure,
    walk_images,
    walk_tables,
)
from erpcnet.model import ERPCNet
from erpcnet.model.preprocessing import Preprocessing, preprocessing_of
from erpcnet.model.walk import usual_order
from erpcnet.progress import console
from erpcnet.training import Checkpoint, Checkpoints, Log, open_source, train_stage1, train_stage2


@dataclass(frozen=True)
class Workshop:
    """What every step of a run needs: the configuration, the images and the device."""

    config: Config
    dataset: ZeroShotDataset
    feed: ImageFeed
    accelerator: Accelerator


def preprocessing_for(config: Config) -> Preprocessing:
    """What the backbone's weights were trained with, and the crop share that is asked for, if one is."""
    backbone, share = config.model.backbone, config.data.centre
    record = preprocessing_of(backbone.name, backbone.weights)
    return record if share is None else replace(record, crop_share=share)


def open_workshop(config: Config, dataset: ZeroShotDataset, preprocessing: Preprocessing | None = None) -> Workshop:
    """Decode the images, if that was not done before, and find the device.

    A network that is trained already brings its `preprocessing`; a new one has that of its backbone's weights.
    """
    # Told to use CPUs, it lets several processes on them know of each other; by itself it does so on GPUs alone.
    accelerator = Accelerator(cpu=int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available())
    cache = open_cache(dataset, config.data.stored_size)
    feed = ImageFeed(cache, config.data, preprocessing or preprocessing_for(config), accelerator.device)
    return Workshop(config, dataset, feed, accelerator)


def create_network(config: Config, attributes: int) -> ERPCNet:
    """A new network, its weights drawn from the seed."""
    set_seed(config.seed)
    network = ERPCNet(config.model, attributes, config.data.image_size, config.variant)
    return prepare(network, config)


def prepare(network: ERPCNet, config: Config) -> ERPCNet:
    """How the configuration wants it to run on this machine: the convolutions' precision, compiled, recorded."""
    able = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    wanted = config.precision == "bf16" or (config.precision == "auto" and able)
    network.precision = torch.bfloat16 if wanted else None
    network.graphs = config.graphs
    if config.compile:
        network.compile_convolutions()
    return network.to(memory_format=torch.channels_last)


def train_network(shop: Workshop, dataset: ZeroShotDataset, log: Log, kept: Checkpoints | None = None) -> ERPCNet:
    """Both stages on the training images of `dataset`; what was `kept` of them is not done again."""
    kept = kept or Checkpoints()
    network = train_localities(shop, dataset, log, kept.stage(1))
    if network.policy is not None:
        train_policy(shop, network, dataset, log, kept.stage(2))
    return network


def train_localities(
    shop: Workshop, dataset: ZeroShotDataset, log: Log, checkpoint: Checkpoint | None = None
) -> ERPCNet:
    """Stage I."""
    config, accelerator, checkpoint = shop.config, shop.accelerator, checkpoint or Checkpoint()
    network = create_network(config, len(dataset.attribute_names))
    if checkpoint.finished(network):
        return network.to(accelerator.device).eval()
    network = train_stage1(
        network,
        dataset,
        shop.feed,
        config.stage1,
        accelerator=accelerator,
        seed=config.seed,
        log=log,
        checkpoint=checkpoint,
    )
    checkpoint.finish(network)
    return network


def train_policy(
    shop: Workshop, network: ERPCNet, dataset: ZeroShotDataset, log: Log, checkpoint: Checkpoint | None = None
) -> None:
    """Stage II, in place."""
    config, checkpoint = shop.config, checkpoint or Checkpoint()
    if network.policy is not None and checkpoint.finished(network.policy):
        return
    source = open_source(network, dataset, shop.feed, config.stage2, config.seed)
    train_stage2(network, source, config.stage2, seed=config.seed, log=log, checkpoint=checkpoint)
    assert network.policy is not None
    checkpoint.finish(network.policy)


def select_settings(shop: Workshop, log: Log, kept: Checkpoints | None = None) -> OperatingPoint | None:
    """sigma and delta from a network that never saw the validation classes; None where the test decides (`peer`)."""
    model, evaluation = shop.config.model, shop.config.evaluation
    if model.sigma is not None and model.delta is not None:
        return OperatingPoint(model.sigma, model.delta, "fixed")
    if evaluation.protocol == "peer":
        return None
    if not shop.dataset.folds:
        raise InputError(
            f"{shop.dataset.root} has too few seen classes for validation folds; set --model.sigma and --model.delta."
        )
    fold = shop.dataset.fold(evaluation.fold, seed=shop.config.seed)
    console.print(
        f"Choosing sigma and delta on {len(fold.unseen)} validation classes (fold {evaluation.fold}), "
        f"training on the other {len(fold.seen)} seen ones"
    )
    network = train_network(shop, fold, log, kept)
    return choose_settings(walk_test(shop, network, fold), model.sigma, model.delta, evaluation.stop_loss, "validation")


def walk_test(shop: Workshop, network: ERPCNet, dataset: ZeroShotDataset) -> EvaluationWalks:
    """T steps over the dataset's test images, in the variant's own order."""
    size = shop.config.evaluation.batch_size
    if not network.tabulable:
        return walk_images(network, dataset, shop.feed, size, usual_order(network, shop.config.seed))
    tables = build_test_tables(network, dataset, shop.feed, size)
    return walk_tables(network, dataset, tables, usual_order(network, shop.config.seed))


def evaluate(shop: Workshop, network: ERPCNet, settings: OperatingPoint | None) -> tuple[Metrics, OperatingPoint]:
    """The figures on the test images, with the settings used; without any, they are chosen there (`peer`)."""
    walks = walk_test(shop, network.to(shop.accelerator.device), shop.dataset)
    model = shop.config.model
    settings = settings or choose_settings(walks, model.sigma, model.delta, shop.config.evaluation.stop_loss, "peer")
    return measure(walks, settings, shop.config.seed), settings
