"""A network for prediction alone: fewer and cheaper steps for the same answers."""

from __future__ import annotations

from torch import nn
from torch.fx.experimental.optimization import fuse as fold_norms

from erpcnet.model.network import ERPCNet


def freeze(network: ERPCNet) -> ERPCNet:
    """Fold every batch norm into the convolution before it, and keep weights in the precision they are used in.

    In place, and for good: a frozen network neither trains nor gives back the weights that it was loaded from.
    """
    network.eval().requires_grad_(False)
    parts: list[tuple[nn.Module, str]] = [(network.backbone, "trunk"), (network.backbone, "last")]
    if network.local is not None:
        parts += [(network.local, name) for name in ("partial", "extractor") if hasattr(network.local, name)]
    on_gpu = next(network.parameters()).is_cuda
    for holder, name in parts:
        folded = _folded(getattr(holder, name))
        setattr(holder, name, folded.to(network.precision) if on_gpu and network.precision else folded)
    return network


def _folded(part: nn.Module) -> nn.Module:
    try:
        return fold_norms(part)
    except Exception:  # what cannot be traced, such as control flow in a backbone of timm, stays as it is
        return part
