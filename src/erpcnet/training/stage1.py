"""Stage I: the network learns to predict from any sequence of localities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR

from erpcnet.config.training import Stage1Settings
from erpcnet.data import ZeroShotDataset
from erpcnet.model import ERPCNet, SplitBackbone
from erpcnet.training.checkpoint import Checkpoint
from erpcnet.training.context import Context
from erpcnet.training.ema import ExponentialMovingAverage, batch_norms, refresh_batch_norm
from erpcnet.training.gradient_step import gradient_step
from erpcnet.training.log import Log, check_finite
from erpcnet.training.stage1_sources import EmbeddingSource, ImageSource, RandomStreams, Stage1Batch, Stage1Source
from erpcnet.utils.progress import bar

REFRESH_BATCHES = 50  # enough images for batch-norm statistics
# Steps. The attributes of a cosine may grow as they like: a full rate from the start throws them so far out that a few
# dozen images never bring them back.
MIN_WARMUP = 20


def train_stage1(
    context: Context,
    network: ERPCNet,
    dataset: ZeroShotDataset,
    log: Log,
    checkpoint: Checkpoint | None = None,
) -> ERPCNet:
    """Train everything but the policy.

    Args:
        context: Settings, images and machine.
        network: A new network.
        dataset: Whose training images are used: the context's, or a validation fold of it.
        log: Gets the losses of each epoch.
        checkpoint: Written on the way; one that is there already is resumed from.

    Returns:
        The network to use: with EMA, another one than was given.
    """
    settings = context.config.stage1
    trainer = Stage1Trainer(context, network, dataset)
    checkpoint = checkpoint or Checkpoint()
    epochs, done = settings.passes(trainer.batches), checkpoint.resume(trainer)
    with bar("Stage I", epochs * trainer.batches) as advance:
        advance(done * trainer.batches)
        for epoch in range(done, epochs):
            losses = trainer.epoch(advance)
            check_finite(losses, f"Stage I, epoch {epoch + 1}{trainer.diverged_at(losses)}", "--stage1.lr")
            log.scalars("stage1/loss", losses, epoch + 1)
            advance(0, note=f"loss {losses['total']:.3f}")
            checkpoint.save(trainer, epoch + 1)
    return trainer.finish()


class Stage1Trainer:
    """Gradient descent on everything but the policy, an epoch at a time."""

    def __init__(self, context: Context, network: ERPCNet, dataset: ZeroShotDataset) -> None:
        settings, accelerator, seed = context.config.stage1, context.accelerator, context.config.seed
        # Every variant draws the same from here on, whatever its construction drew: so they share Stage I's weights.
        set_seed(seed, device_specific=True)
        self._context, self._network, self._dataset, self._settings = context, network, dataset, settings
        self._accelerator, self._seed, self._random = accelerator, seed, RandomStreams.from_seed(seed)
        device = accelerator.device
        network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._phi, self._labels = seen_targets(dataset, device)
        if network.settings.centred:
            network.centre_attributes(self._phi)
        self._shown: list[Tensor] = []
        self._totals: list[Tensor] = []
        self._source = _open_source(context, network, dataset)
        self.batches = self._source.batches
        self._ema = ExponentialMovingAverage(network, settings.ema_decay) if settings.ema_decay else None
        optimizer = _optimizer(network, settings)
        self._schedule = _schedule(optimizer, settings, self.batches)
        if network.policy is not None:
            network.policy.requires_grad_(False)
        for part in _fixed(network, settings):
            part.requires_grad_(False)
        self._objective, self._optimizer = accelerator.prepare(self._source.loss(network, settings), optimizer)
        self._gradients = gradient_step(self._objective, accelerator.backward, device if context.cuda_graphs else None)

    def epoch(self, advance: Callable[[], object]) -> dict[str, float]:
        """Pass once over the training images; the mean of each loss."""
        self._objective.train()
        for norm in batch_norms(*_frozen(self._network, self._settings)):
            norm.eval()
        sums: dict[str, Tensor] = {}
        self._shown, self._totals = [], []
        share = self._accelerator.process_index, self._accelerator.num_processes
        with self._context.runtime.autocast():
            for batch in self._source.epoch(self._random, share):
                losses = self._step(batch)
                for name, value in losses.items():
                    sums[name] = sums[name] + value if name in sums else value.clone()
                self._shown.append(batch.rows)
                self._totals.append(losses["total"].clone())
                advance()
        return {name: float(total) / self.batches for name, total in sums.items()}

    def diverged_at(self, losses: dict[str, float]) -> str:
        """Where in the last epoch the loss stopped being a number, and which images it was shown then; or nothing."""
        if math.isfinite(losses["total"]):
            return ""
        step = int((~torch.stack(self._totals).isfinite()).int().argmax())
        paths = [self._dataset.image_paths[row] for row in self._shown[step][:3].tolist()]
        return f", step {step + 1}, with {', '.join(paths)} and others in the batch"

    def _step(self, batch: Stage1Batch) -> dict[str, Tensor]:
        """One step of the optimizer; the losses hold until the next."""
        mixup, targets = self._settings.mixup, self._labels[batch.rows.to(self._labels.device)]
        shown = batch.shown
        if mixup:
            share_of_next = self._random.mixup.beta(mixup, mixup)
            shown, targets = mix(shown, F.one_hot(targets, len(self._phi)).float(), share_of_next)
        losses = self._gradients(shown, batch.localities, targets, self._phi)
        self._optimizer.step()
        self._schedule.step()
        if self._ema is not None:
            self._ema.update(self._network)
        return losses

    def finish(self) -> ERPCNet:
        """The network to use, and nothing else left of the training."""
        network, settings = self._network, self._settings
        result = network if self._ema is None else self._ema.network
        with self._context.runtime.autocast():
            if self._ema is not None and not settings.freeze_backbone:
                drawn = zip(range(REFRESH_BATCHES), self._source.epoch(self._random, (0, 1)), strict=False)
                batches = ((batch.shown, batch.localities) for _, batch in drawn)
                refresh_batch_norm(result, batches, _frozen(result, settings))
            result.requires_grad_(True).eval()
            if network.settings.hubness:
                result.set_prototypes(self._prototypes(result))
        # A CUDA graph's memory lives as long as anything in it, and accelerate keeps what it prepared as long as it
        # lives.
        network.zero_grad()
        del self._gradients, self._objective, self._optimizer
        self._accelerator.free_memory()
        return result

    @torch.no_grad()
    def _prototypes(self, network: ERPCNet) -> Tensor:
        """The mean direction of a_g over the training images of each seen class: [S, A]."""
        total, labels = torch.zeros_like(self._phi), self._labels
        for a_g, rows in self._source.glances(network):
            own = F.one_hot(labels[rows.to(labels.device)], len(total)).float()
            total += own.T @ F.normalize(a_g, dim=1)
        return total / torch.bincount(labels[self._dataset.train], minlength=len(total))[:, None]

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        return {
            "network": self._network.state_dict(),
            "ema": None if self._ema is None else self._ema.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "random": self._random.state_dict(),
            "torch_random": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        self._network.load_state_dict(state["network"])
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._random.load_state_dict(state["random"])
        if self._accelerator.num_processes > 1:
            # What dropout draws is each process's own, and only the first one's is kept.
            set_seed(self._seed + self._schedule.last_epoch, device_specific=True)
            return
        torch.set_rng_state(state["torch_random"][0])
        if torch.cuda.device_count() == len(state["torch_random"]) - 1:
            torch.cuda.set_rng_state_all(state["torch_random"][1:])


def _open_source(context: Context, network: ERPCNet, dataset: ZeroShotDataset) -> Stage1Source:
    settings = context.config.stage1
    if settings.freeze_backbone:
        return EmbeddingSource(network, context.embeddings.training(network, dataset.train), settings)
    return ImageSource(network, context.loader, dataset, settings)


def _frozen(network: ERPCNet, settings: Stage1Settings) -> list[nn.Module]:
    """The parts whose norms keep their statistics."""
    return network.pretrained if settings.freeze_norms else _early(network, settings)


def _fixed(network: ERPCNet, settings: Stage1Settings) -> list[nn.Module]:
    """The parts whose weights stay as they are."""
    return network.embedders if settings.freeze_backbone else _early(network, settings)


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
    warmup = max(MIN_WARMUP, batches)  # an epoch
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
