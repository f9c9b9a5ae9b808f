"""A batch that several processes share, as if one process had it: statistics of norms, and what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from erpcnet.model.heads import ReplaceRows
from erpcnet.utils.processes import BatchPart


def share_batches(network: nn.Module, part: BatchPart) -> None:
    """From here on, what depends on a whole batch in training is computed of all of it.

    Batch norms take their statistics from the rows of all processes, dropout draws for all of them, and rows that are
    replaced by others' may be by those that another process has. What a backbone draws beside that (stochastic depth)
    is drawn for a process's own rows.

    Args:
        network: In training.
        part: The rows of this process.
    """
    for module, forward in _sharing(network):
        module.forward = torch.compiler.disable(partial(forward, module, part, module.forward))


def work_alone(network: nn.Module) -> None:
    """Undo `share_batches`."""
    for module, _ in _sharing(network):
        vars(module).pop("forward", None)


Forward = Callable[[nn.Module, BatchPart, Callable[[Tensor], Tensor], Tensor], Tensor]


def _sharing(network: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            yield module, _batch_norm
        elif isinstance(module, _DropoutNd) and module.p:
            yield module, _dropout
        elif isinstance(module, ReplaceRows) and module.share:
            yield module, _replace_rows


def _batch_norm(norm: nn.Module, part: BatchPart, plain: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """As torch's, with mean and variance over the rows of all processes."""
    assert isinstance(norm, _BatchNorm)
    if not norm.training:
        return plain(value)
    exact = value.float()
    axes = [axis for axis in range(exact.dim()) if axis != 1]
    shape = [1, -1, *[1] * (exact.dim() - 2)]
    count = exact[0, 0].numel() * part.total_rows(len(exact))
    mean = part.sum(exact.sum(dim=axes)) / count
    variance = part.sum((exact - mean.view(shape)).square().sum(dim=axes)) / count
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        momentum = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
        with torch.no_grad():
            norm.running_mean.lerp_(mean, momentum)
            norm.running_var.lerp_(variance * (count / max(count - 1, 1)), momentum)
    # Multiplied and added as torch does, so that rounding moves few values across the 0 of a ReLU.
    scale = (variance + norm.eps).rsqrt()
    scale = scale * norm.weight if norm.affine else scale
    offset = norm.bias - mean * scale if norm.affine else -mean * scale
    result = exact * scale.view(shape) + offset.view(shape)
    return result.to(value.dtype)


def _dropout(dropout: nn.Module, part: BatchPart, plain: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    if not dropout.training:
        return plain(value)
    drawn = plain(value.new_ones(part.total_rows(len(value)), *value.shape[1:]))
    return value * drawn[part.own_rows(len(value))]


def _replace_rows(rows: nn.Module, part: BatchPart, plain: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    if not rows.training:
        return plain(value)
    return plain(part.gather(value))[part.own_rows(len(value))]
