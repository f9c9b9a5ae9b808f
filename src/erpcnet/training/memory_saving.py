"""What a gradient step does where memory does not suffice: the same, in less of it and more time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from erpcnet.config import WITH_POLICY, Config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.backbone_split import SplitBackbone
from erpcnet.model.heads import DropRows, SwapRows
from erpcnet.training.gradient_step import GradientStep
from erpcnet.utils.memory import is_out_of_memory, total_memory
from erpcnet.utils.progress import console
from erpcnet.utils.runtime import default_device

REMEDY = "lower --stage1.batch_size or --data.image_size"
CHANNELS, FLOAT_BYTES = 3, 4  # of an image


class _Batch(NamedTuple):
    """A setting with its value, and how many images one process has in memory together by it."""

    setting: str
    value: int
    images: int


def check_memory(config: Config, dataset: ZeroShotDataset) -> None:
    """Refuse settings with which a training cannot fit into memory, before anything is computed.

    Only the pixels of the largest batch are counted, which are there together however little memory the network takes.

    Raises:
        InputError: They alone take more memory than there is.
    """
    size, memory = config.input_data.image_size, total_memory(default_device())
    batches = _batches(config, dataset, int(os.environ.get("WORLD_SIZE", "1")))
    setting, value, images = max(batches, key=lambda batch: batch.images)
    least = images * CHANNELS * FLOAT_BYTES * size**2
    if memory is None or least <= memory:
        return
    zoom = config.model.local.zoom
    finer = f" with --model.local.zoom {zoom}" if zoom > 1 else ""
    raise InputError(
        f"--{setting} {value} and --data.image_size {config.data.image_size}{finer} put {images} images of {size} x "
        f"{size} pixels into memory together, which takes {least / 2**30:.1f} GiB at least, and there are "
        f"{memory / 2**30:.1f} GiB; lower one of them."
    )


def _batches(config: Config, dataset: ZeroShotDataset, processes: int) -> list[_Batch]:
    """What a training is certain to hold at some time; a dataset may have fewer images than a batch could."""
    train, test = len(dataset.train), max(len(dataset.test_seen), len(dataset.test_unseen))
    size = config.evaluation.batch_size
    if config.stage1.freeze_backbone:  # embeddings of all images, and from then on no pixels
        return [_Batch("evaluation.batch_size", size, min(size, train + test))]
    found = [_Batch("evaluation.batch_size", size, min(size, test))]
    size = config.stage1.batch_size
    found.append(_Batch("stage1.batch_size", size, min(size, train) // processes))
    if config.variant in WITH_POLICY:
        size = config.stage2.rollout_batch_size
        shared = processes if config.variant == "hardnet" else 1  # a batch of a table is computed by one process
        found.append(_Batch("stage2.rollout_batch_size", size, min(size, train) // shared))
    return found


class MemorySavingStep:
    """A gradient step of Stage I that is done again in less memory once it runs out of it, and so are all that follow.

    Where the gradients of a batch are the sum of those of its parts, it is computed in halves, and in halves of these.
    Elsewhere the whole batch is shown to the network, but of its blocks only what goes in is kept, and the rest is
    computed again on the way back. What a failed step changed (statistics of norms, what was drawn) is put back first.

    Args:
        step: What `gradient_step` gives.
        objective: The same that it has: of shown [N, ...], localities [N, ...] or None, labels [N, ...], and phi.
        backward: The same that it has.
        whole: Why a batch cannot be split, in half a sentence; None where it can (see `whole_batches`).
        blocks: What can be computed again (see `convolution_blocks`); none where nothing can.

    Attributes:
        parts: Into how many a batch is split.
        recomputes: Whether blocks are computed twice.

    Examples:
        >>> step = MemorySavingStep(gradient_step(objective), objective)
        >>> losses = step(images, cells, labels, phi)
    """

    def __init__(
        self,
        step: GradientStep,
        objective: nn.Module,
        backward: Callable[[Tensor], object] = Tensor.backward,
        whole: str | None = None,
        blocks: Sequence[nn.Module] = (),
    ) -> None:
        self._step: GradientStep | None = step
        self._objective, self._backward, self._whole, self._blocks = objective, backward, whole, blocks
        norms = [part for part in objective.modules() if isinstance(part, _BatchNorm)]
        buffers = [buffer for norm in norms for buffer in norm.buffers()] if whole else []
        kinds = {buffer.dtype for buffer in buffers}  # apart, so that a GPU copies all of a kind at once
        self._statistics = [[one for one in buffers if one.dtype == kind] for kind in kinds]
        self._before = [[one.clone() for one in group] for group in self._statistics]
        self.parts, self.recomputes = 1, False

    def __call__(self, shown: Tensor, localities: Tensor | None, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """The losses, and gradients in the parameters.

        Raises:
            InputError: There is too little memory, however it is done.
        """
        drawn = _random_state(shown.device)
        for before, current in zip(self._before, self._statistics, strict=True):
            torch._foreach_copy_(before, current)
        while True:
            try:
                if self._step is not None:
                    return self._step(shown, localities, labels, phi)
                return self._in_parts(shown, localities, labels, phi)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of there nothing of what was tried is held any more.
            self._save_memory(len(shown), shown.device)
            _set_random_state(drawn, shown.device)
            for before, current in zip(self._before, self._statistics, strict=True):
                torch._foreach_copy_(current, before)

    def _save_memory(self, count: int, device: torch.device) -> None:
        """Find another way for batches of so many images, or refuse."""
        if self._whole is None and self.parts < count:
            self.parts = min(2 * self.parts, count)
            how = f"batches of {count} images are computed in {self.parts} parts"
        elif self._blocks and not self.recomputes:
            recompute(self._blocks)
            self.recomputes = True
            how = "what the blocks of the network compute is not kept, but computed again on the way back"
        elif self._whole is None:
            raise InputError("out of memory with one image at a time; lower --data.image_size.")
        else:
            raise InputError(f"out of memory; {REMEDY} (a batch is not computed in parts, as {self._whole}).")
        self._step = None  # with the memory of its graph
        self._objective.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        console.print(
            f"out of memory: from here on {how}, with the same result, but slower; {REMEDY} to avoid that",
            soft_wrap=True,
        )

    def _in_parts(self, shown: Tensor, localities: Tensor | None, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """Losses are means over images, so a part counts by its share of them."""
        self._objective.zero_grad()
        size = -(-len(shown) // self.parts)
        sums: dict[str, Tensor] = {}
        for start in range(0, len(shown), size):
            own = slice(start, start + size)
            looked = None if localities is None else localities[own]
            losses: dict[str, Tensor] = self._objective(shown[own], looked, labels[own], phi)
            share = len(shown[own]) / len(shown)
            self._backward(losses["total"] * share if share < 1 else losses["total"])
            for name, value in losses.items():
                sums[name] = value.detach() * share + sums.get(name, 0)
        return sums


def whole_batches(network: nn.Module, unused: Sequence[nn.Module] = ()) -> str | None:
    """Why the gradients of a batch are not the sum of those of its parts, in half a sentence; None where they are.

    That images are mixed does not matter: they are before a step.

    Args:
        network: In training.
        unused: Parts of it that do not run, or whose norms keep their statistics.
    """
    unused_modules = {id(module) for part in unused for module in part.modules()}
    for module in network.modules():
        if isinstance(module, _BatchNorm) and id(module) not in unused_modules:
            return "batch norms take their statistics from all of it"
        if isinstance(module, SwapRows) and module.share:
            return "model.joint.global_swap swaps images within it"
        if isinstance(module, DropRows) and module.share:
            return "model.joint.global_dropout would be drawn otherwise"
        if isinstance(module, _DropoutNd) and module.p:
            return "dropout would be drawn otherwise"
    return None


def convolution_blocks(network: ERPCNet) -> list[nn.Module]:
    """The blocks of everything that makes embeddings: what holds modules of its own and is no chain of such."""
    return [block for part in network.embedders for block in _blocks(part)]


def _blocks(part: nn.Module) -> Iterator[nn.Module]:
    inside = list(part.children())
    if isinstance(part, nn.Sequential | SplitBackbone):
        for child in inside:
            yield from _blocks(child)
    elif inside:
        yield part


def recompute(blocks: Sequence[nn.Module]) -> None:
    """From here on, keep only what goes into each block, and compute the rest again where gradients need it."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=partial(_contexts, block))


def keep_everything(blocks: Sequence[nn.Module]) -> None:
    """Undo `recompute`."""
    for block in blocks:
        vars(block).pop("forward", None)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _without_statistics(block)


@contextmanager
def _without_statistics(block: nn.Module) -> Iterator[None]:
    """Within, norms that train do not count what they see once more."""
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm) and part.training]
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in held:
            norm.momentum, norm.num_batches_tracked = momentum, count


def _random_state(device: torch.device) -> Tensor:
    """Where the generator is that networks draw from there."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
