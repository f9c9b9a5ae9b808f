"""EMA: the exponential moving average of the weights, which generalises better than the last of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_ema_multi_avg_fn

from erpcnet.model.policy import flatten_recurrent_weights

Network = TypeVar("Network", bound=nn.Module)


class ExponentialMovingAverage(Generic[Network]):
    """The EMA of a network's parameters, its decay warmed up so that the start is forgotten."""

    def __init__(self, network: Network, decay: float) -> None:
        self.network = copy.deepcopy(network).requires_grad_(False)
        flatten_recurrent_weights(self.network)
        self.decay, self.steps = decay, 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take the parameters after an optimizer step in."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        # What does not train is the same in both.
        every = zip(self.network.parameters(), network.parameters(), strict=True)
        pairs = [both for both in every if both[1].requires_grad]
        own, new = (list(one) for one in zip(*pairs, strict=True))
        get_ema_multi_avg_fn(decay)(own, new, 0)

    def state_dict(self) -> dict[str, Any]:
        """The average, and of how many steps it is."""
        return {"network": self.network.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        self.network.load_state_dict(state["network"])
        self.steps = state["steps"]


def batch_norms(*modules: nn.Module) -> list[_BatchNorm]:
    """Every batch norm inside these modules."""
    return [part for module in modules for part in module.modules() if isinstance(part, _BatchNorm)]


@torch.no_grad()
def refresh_batch_norm(
    network: nn.Module, batches: Iterable[tuple[Tensor | None, ...]], frozen: Iterable[nn.Module] = ()
) -> None:
    """Recompute running means and variances for weights that no training step has used.

    Only the norms are in training mode; each of `batches` holds the network's arguments. Those in `frozen` keep theirs.
    """
    excluded = {id(norm) for norm in batch_norms(*frozen)}
    norms = [norm for norm in batch_norms(network) if id(norm) not in excluded]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
        norm.train()
    for arguments in batches:
        network(*arguments)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.eval()
