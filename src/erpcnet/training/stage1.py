"""Stage I: the network learns to predict from any sequence of localities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR

from erpcnet.data import ImageFeed, ZeroShotDataset
from erpcnet.model import ERPCNet, SplitBackbone
from erpcnet.progress import bar
from erpcnet.training.averaging import AveragedWeights, batch_norms, refresh_batch_norm
from erpcnet.training.log import Log
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.settings import Stage1Settings
from erpcnet.training.step import gradient_step

REFRESH_BATCHES = 50  # enough images for batch-norm statistics
# Steps. The attributes of a cosine may grow as they like: a full rate from the start throws them so far out that a few
# dozen images never bring them back.
LEAST_WARMUP = 20


class Draws(NamedTuple):
    """Who draws what: the feed may run ahead of training, so views and cells are drawn apart."""

    views: torch.Generator
    cells: torch.Generator
    shares: np.random.Generator

    @classmethod
    def from_seed(cls, seed: int) -> Draws:
        return cls(
            views=torch.Generator().manual_seed(seed),
            cells=torch.Generator().manual_seed(seed + 3),
            shares=np.random.default_rng(seed),
        )


def random_cells(count: int, cells: int, steps: int, generator: torch.Generator) -> Tensor:
    """`steps` different cells for each of `count` images, in random order."""
    return torch.rand(count, cells, generator=generator).argsort(dim=1)[:, :steps]


def train_stage1(
    network: ERPCNet,
    dataset: ZeroShotDataset,
    feed: ImageFeed,
    settings: Stage1Settings,
    *,
    accelerator: Accelerator,
    seed: int,
    log: Log,
) -> ERPCNet:
    """Train everything but the policy on the dataset's training images; returns the network to use."""
    # Every variant draws the same from here on, whatever its construction drew: so they share Stage I's weights.
    set_seed(seed, device_specific=True)
    draws = Draws.from_seed(seed)
    device, share = accelerator.device, (accelerator.process_index, accelerator.num_processes)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    phi, labels = seen_targets(dataset, device)
    if network.settings.centred:
        network.centre_attributes(phi)
    batches = feed.batches(len(dataset.train), settings.batch_size)
    averaged = AveragedWeights(network, settings.averaging) if settings.averaging else None
    optimizer = _optimizer(network, settings)
    schedule = _schedule(optimizer, settings, batches)
    if network.policy is not None:
        network.policy.requires_grad_(False)
    for link in _early(network, settings):
        link.requires_grad_(False)
    objective = Stage1Loss(network, settings.weights, settings.label_smoothing, settings.separate)
    objective, optimizer = accelerator.prepare(objective, optimizer)
    # Several processes exchange gradients on the way, which is not recorded.
    recorded = network.graphs and device.type == "cuda" and share[1] == 1
    gradients = gradient_step(objective, accelerator.backward, device if recorded else None)
    epochs = settings.passes(batches)
    with bar("Stage I", epochs * batches) as advance:
        for epoch in range(epochs):
            objective.train()
            for norm in batch_norms(*_frozen(network, settings)):
                norm.eval()
            sums: dict[str, Tensor] = {}
            for images, cells, rows in _batches(network, feed, dataset, settings, draws, share):
                targets = labels[rows.to(device)]
                if settings.mixup:
                    share_of_next = draws.shares.beta(settings.mixup, settings.mixup)
                    images, targets = mix(images, F.one_hot(targets, len(phi)).float(), share_of_next)
                losses = gradients(images, cells, targets, phi)
                optimizer.step()
                schedule.step()
                if averaged is not None:
                    averaged.update(network)
                for name, value in losses.items():
                    sums[name] = sums.get(name, torch.zeros((), device=device)) + value
                advance()
            log.scalars("stage1/loss", {name: float(total) / batches for name, total in sums.items()}, epoch + 1)
            advance(0, note=f"loss {float(sums['total']) / batches:.3f}")
    result = network if averaged is None else averaged.network
    if averaged is not None:
        drawn = _batches(network, feed, dataset, settings, draws, (0, 1))
        fresh = ((images, cells) for _, (images, cells, _) in zip(range(REFRESH_BATCHES), drawn, strict=False))
        refresh_batch_norm(result, fresh, _frozen(result, settings))
    result.requires_grad_(True)
    # A recording's memory lives as long as anything in it, and accelerate keeps what it prepared as long as it lives.
    network.zero_grad()
    del gradients, objective, optimizer, losses, sums
    accelerator.free_memory()
    return result.eval()


def _frozen(network: ERPCNet, settings: Stage1Settings) -> list[nn.Module]:
    """The parts whose norms keep their statistics."""
    return network.pretrained if settings.freeze_norms else _early(network, settings)


def _early(network: ERPCNet, settings: Stage1Settings) -> list[nn.Module]:
    """The parts that stay as they were pretrained."""
    backbones = [part for part in network.pretrained if isinstance(part, SplitBackbone)]
    return [link for part in backbones for link in part.early] if settings.freeze_early else []


def mix(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Every image and its target, of which a `share` is the next one's: batches are shuffled, so that is anyone's."""
    return images.lerp(images.roll(-1, 0), share), targets.lerp(targets.roll(-1, 0), share)


def seen_targets(dataset: ZeroShotDataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """phi of the seen classes [S, A], and every instance's row in it (-1 for unseen classes) [N]."""
    phi = torch.from_numpy(dataset.unit_attributes[dataset.seen]).to(device)
    place = torch.full((len(dataset.classes),), -1)
    place[torch.from_numpy(dataset.seen)] = torch.arange(len(dataset.seen))
    return phi, place[torch.from_numpy(dataset.labels)].to(device)


def _batches(
    network: ERPCNet,
    feed: ImageFeed,
    dataset: ZeroShotDataset,
    settings: Stage1Settings,
    draws: Draws,
    share: tuple[int, int],
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """Images, random cells and dataset rows."""
    for batch in feed.epoch(dataset.train, settings.batch_size, draws.views, share=share):
        cells = None
        if network.steps:
            # Drawn for the whole batch, of which this process has its share, as the feed does with views.
            cells = random_cells(settings.batch_size, network.grid.cells, network.steps, draws.cells)
            cells = cells[share[0] :: share[1]][: len(batch.rows)].to(feed.device)
        yield batch.images, cells, batch.rows


def _optimizer(network: ERPCNet, settings: Stage1Settings) -> torch.optim.Optimizer:
    pretrained = [parameter for part in network.pretrained for parameter in part.parameters()]
    known = {id(parameter) for parameter in pretrained}
    parameters: list[dict[str, Any]] = [
        {"params": [p for p in network.stage1_parameters() if id(p) not in known]},
        {"params": pretrained, "lr": settings.lr * settings.backbone_lr},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)


def _schedule(optimizer: torch.optim.Optimizer, settings: Stage1Settings, batches: int) -> LRScheduler:
    if settings.schedule == "step":
        return StepLR(optimizer, settings.step_epochs * batches, settings.step_factor)
    if settings.schedule == "onecycle":
        highest = [group["lr"] for group in optimizer.param_groups]
        return OneCycleLR(optimizer, highest, total_steps=settings.passes(batches) * batches + 1)
    warmup = max(LEAST_WARMUP, settings.warmup_epochs * batches)
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
