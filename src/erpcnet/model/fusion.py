"""A network for prediction alone: fewer and cheaper steps for the same answers."""

from __future__ import annotations

from torch import nn
from torch.fx.experimental.optimization import fuse as fold_norms

from erpcnet.model.network import ERPCNet, LocalSubnet


def freeze(network: ERPCNet) -> ERPCNet:
    """Fold every batch norm into the convolution before it, and keep weights in the precision they are used in.

    In place, and for good: a frozen network neither trains nor gives back the weights that it was loaded from.
    """
    network.eval().requires_grad_(False)
    holders: list[nn.Module] = [network.backbone]
    if isinstance(network.local, LocalSubnet):
        holders.append(network.local)
    elif network.local is not None:
        holders.append(network.local.extractor)
    on_gpu = next(network.parameters()).is_cuda
    for holder in holders:
        for name in ("trunk", "last", "partial", "extractor"):
            part = getattr(holder, name, None)
            if part is None:
                continue
            frozen = _folded(part)
            setattr(holder, name, frozen.to(network.precision) if on_gpu and network.precision else frozen)
    return network


def _folded(part: nn.Module) -> nn.Module:
    try:
        return fold_norms(part)
    except Exception:  # what cannot be traced, such as control flow in a backbone of timm, stays as it is
        return part
