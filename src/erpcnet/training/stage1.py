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
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet, SplitBackbone
from erpcnet.training.checkpoint import Checkpoint
from erpcnet.training.context import Context
from erpcnet.training.ema import ExponentialMovingAverage, batch_norms, refresh_batch_norm
from erpcnet.training.gradient_step import gradient_step
from erpcnet.training.log import Log, check_finite, check_weights
from erpcnet.training.memory_saving import MemorySavingStep, convolution_blocks, keep_everything, whole_batches
from erpcnet.training.shared_batches import share_batches, work_alone
from erpcnet.training.stage1_sources import EmbeddingSource, ImageSource, RandomStreams, Stage1Batch, Stage1Source
from erpcnet.training.validation import Validation
from erpcnet.utils.processes import BatchPart, Share
from erpcnet.utils.progress import bar

REFRESH_BATCHES = 50  # enough images for batch-norm statistics
CHECK_EVERY = 50  # steps after which a GPU is asked whether losses are still numbers; a CPU is asked after each
# Steps. The attributes of a cosine may grow as they like: a full rate from the start throws them so far out that a few
# dozen images never bring them back.
MIN_WARMUP = 20
NAMED = 3  # images of a batch that a complaint names


def train_stage1(
    context: Context,
    network: ERPCNet,
    dataset: ZeroShotDataset,
    log: Log,
    checkpoint: Checkpoint | None = None,
    validation: Validation | None = None,
) -> ERPCNet:
    """Train everything but the policy.

    Args:
        context: Settings, images and machine.
        network: A new network.
        dataset: Whose training images are used: the context's, or a validation fold of it.
        log: Gets the losses of each epoch, and what the validation images say.
        checkpoint: Written on the way; one that is there already is resumed from.
        validation: Says how good the glance is after each epoch; after the last, that of the network that is returned.

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
            log.scalars("stage1/loss", losses, epoch + 1)
            log.scalars("learning_rate", {"stage1": trainer.lr}, epoch + 1)
            note = f"loss {losses['total']:.3f}"
            if validation is not None and epoch + 1 < epochs:
                found = trainer.validate(validation)
                log.scalars("stage1/validation", found, epoch + 1)
                note += f", validation T1 {found['t1']:.1%}"
            advance(0, note=note)
            checkpoint.save(trainer, epoch + 1)
    result = trainer.finish()
    if validation is not None:
        log.scalars("stage1/validation", validation.of_glances(result), epochs)
    return result


class Stage1Trainer:
    """Gradient descent on everything but the policy, an epoch at a time."""

    def __init__(self, context: Context, network: ERPCNet, dataset: ZeroShotDataset) -> None:
        settings, accelerator, seed = context.config.stage1, context.accelerator, context.config.seed
        # Every variant draws the same from here on, whatever its construction drew: so they share Stage I's weights.
        set_seed(seed)
        self._context, self._network, self._dataset, self._settings = context, network, dataset, settings
        self._accelerator, self._random = accelerator, RandomStreams.from_seed(seed)
        device = accelerator.device
        network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._phi, self._labels = seen_targets(dataset, device)
        if network.settings.centred:
            network.centre_attributes(self._phi)
        self._asks_each_step = device.type == "cpu"  # a GPU would have to be waited for
        self._shown: list[Tensor] = []
        self._totals: list[Tensor] = []
        self._source = _open_source(context, network, dataset)
        self.batches = self._source.batches
        self._share = context.share
        self._part = _own_part(self._share, self._source.batch_size)
        self._ema = ExponentialMovingAverage(network, settings.ema_decay) if settings.ema_decay else None
        optimizer = _optimizer(network, settings)
        self._schedule = _schedule(optimizer, settings, self.batches)
        if network.policy is not None:
            network.policy.requires_grad_(False)
        for part in _fixed(network, settings):
            part.requires_grad_(False)
        self._objective, self._optimizer = accelerator.prepare(self._source.loss(network, settings), optimizer)
        if self._part is not None:
            share_batches(network, self._part)
        whole, self._blocks = _memory_saving(context, network)
        self._gradients = MemorySavingStep(
            gradient_step(self._objective, self._backward, device if context.cuda_graphs else None),
            self._objective,
            self._backward,
            whole,
            self._blocks,
        )

    @property
    def lr(self) -> float:
        """The learning rate now, of what is not pretrained."""
        return float(self._schedule.get_last_lr()[0])

    def epoch(self, advance: Callable[[], object]) -> dict[str, float]:
        """Pass once over the training images; the mean of each loss.

        Raises:
            InputError: A loss or a weight is no number any more, or memory does not suffice.
        """
        self._objective.train()
        for norm in batch_norms(*_frozen(self._network, self._settings)):
            norm.eval()
        sums: dict[str, Tensor] = {}
        self._shown, self._totals = [], []
        with self._context.runtime.autocast():
            for batch in self._source.epoch(self._random, self._share):
                losses = self._step(batch)
                for name, value in losses.items():
                    sums[name] = sums[name] + value if name in sums else value.clone()
                self._shown.append(batch.rows)
                self._totals.append(losses["total"].clone())
                advance()
                if self._asks_each_step or len(self._totals) == CHECK_EVERY:
                    self._check_losses()
        self._check_losses()
        check_weights(self._network, self._where(self._schedule.last_epoch, batch.rows), "--stage1.lr")
        return {name: float(self._over_processes(total)) / self.batches for name, total in sums.items()}

    def validate(self, validation: Validation) -> dict[str, float]:
        """What validation images say of the weights that would be used if this were the end."""
        if self._ema is None:
            return validation.of_glances(self._network)
        # The norms of the average have seen nothing yet (see `finish`); those that train are near.
        return validation.of_glances(self._ema.network, dict(self._network.named_buffers()))

    def _backward(self, loss: Tensor) -> None:
        """The gradient of the mean over the whole batch, of which accelerate takes the mean over processes."""
        self._accelerator.backward(loss if self._part is None else loss * self._part.weight)

    def _over_processes(self, mean: Tensor) -> Tensor:
        """A mean over the images of this process to one over those of all."""
        return mean if self._part is None else self._part.sum(mean * self._part.weight) / self._share.processes

    def _check_losses(self) -> None:
        """End the training if one of the losses since the last check is no number."""
        totals = torch.stack(self._totals).tolist() if self._totals else []
        for number, total in enumerate(totals):
            if not math.isfinite(total):
                steps = self._schedule.last_epoch - len(totals) + number + 1
                check_finite({"total": total}, self._where(steps, self._shown[number]), "--stage1.lr")
        self._shown, self._totals = [], []

    def _where(self, steps: int, rows: Tensor) -> str:
        """Which step of which epoch the last of so many was, and which images it was shown."""
        epoch, step = divmod(steps - 1, self.batches)
        paths = [self._dataset.image_paths[row] for row in rows[:NAMED].tolist()]
        others = " and others" if len(rows) > NAMED else ""
        return f"Stage I, epoch {epoch + 1}, step {step + 1}, with {', '.join(paths)}{others} in the batch"

    def _step(self, batch: Stage1Batch) -> dict[str, Tensor]:
        """One step of the optimizer; the losses hold until the next."""
        mixup, targets = self._settings.mixup, self._labels[batch.rows.to(self._labels.device)]
        shown = batch.shown
        if mixup:
            share_of_next = self._random.mixup.beta(mixup, mixup)
            targets = F.one_hot(targets, len(self._phi)).float()
            shown, targets = mix(shown, targets, share_of_next, self._part)
        losses = self._gradients(shown, batch.localities, targets, self._phi)
        self._optimizer.step()
        self._schedule.step()
        if self._ema is not None:
            self._ema.update(self._network)
        return losses

    def finish(self) -> ERPCNet:
        """The network to use, and nothing else left of the training."""
        network, settings = self._network, self._settings
        keep_everything(self._blocks)
        if self._part is not None:
            work_alone(network)
        result = network if self._ema is None else self._ema.network
        with self._context.runtime.autocast():
            if self._ema is not None and not settings.freeze_backbone:
                drawn = zip(range(REFRESH_BATCHES), self._source.epoch(self._random, Share()), strict=False)
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
            "torch_random": _random_states(self._context.device),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        self._network.load_state_dict(state["network"])
        if self._ema is not None:
            self._ema.load_state_dict(state["ema"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._random.load_state_dict(state["random"])
        torch.set_rng_state(state["torch_random"][0])
        if self._context.device.type == "cuda" and len(state["torch_random"]) == 2:
            torch.cuda.set_rng_state(state["torch_random"][1], self._context.device)


def _random_states(device: torch.device) -> list[Tensor]:
    """Where the generators are that networks draw from: every process draws the same, so those of one are enough."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _own_part(share: Share, count: int) -> BatchPart | None:
    """This process's part of batches of so many images; None if it is alone."""
    if count < share.processes:
        raise InputError(
            f"{share.processes} processes cannot share batches of {count} images; start fewer, or raise "
            "--stage1.batch_size."
        )
    return None if share.alone else BatchPart(share, count)


def _memory_saving(context: Context, network: ERPCNet) -> tuple[str | None, list[nn.Module]]:
    """Why batches stay whole, if they do, and the blocks that may be computed twice."""
    settings = context.config.stage1
    if not context.share.alone:
        return "several processes exchange gradients on the way", []
    unused = [*([] if network.policy is None else [network.policy]), *_frozen(network, settings)]
    if settings.freeze_backbone:
        return whole_batches(network, [*unused, *network.embedders]), []
    return whole_batches(network, unused), [] if context.config.compile else convolution_blocks(network)


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
    # Without L_l nothing asks for its logits, and several processes would wait for a gradient.
    idle = [network.local_compatibility] if network.steps and not settings.loss_weights.local_subnet else []
    return [*idle, *(network.embedders if settings.freeze_backbone else _early(network, settings))]


def _early(network: ERPCNet, settings: Stage1Settings) -> list[nn.Module]:
    """The parts that stay as they were pretrained."""
    backbones = [part for part in network.pretrained if isinstance(part, SplitBackbone)]
    return [link for part in backbones for link in part.early] if settings.freeze_early else []


def mix(images: Tensor, targets: Tensor, share: float, part: BatchPart | None = None) -> tuple[Tensor, Tensor]:
    """Every image and its target, of which a `share` is the next one's: batches are shuffled, so that is anyone's.

    With a `part`, these are a process's own of a batch that several share.
    """

    def following(value: Tensor) -> Tensor:
        return value.roll(-1, 0) if part is None else part.next_rows(value)

    return images.lerp(following(images), share), targets.lerp(following(targets), share)


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
        # The momentum of SGD stays what it is set to.
        cycles, total = settings.optimizer == "adamw", settings.passes(batches) * batches + 1
        return OneCycleLR(optimizer, highest, total_steps=total, cycle_momentum=cycles)
    warmup = max(MIN_WARMUP, batches)  # an epoch
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
