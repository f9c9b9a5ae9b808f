"""Selection orders: which cell of an image comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from erpcnet.config.ranges import check_name
from erpcnet.errors import InputError
from erpcnet.model.localities import Localities
from erpcnet.model.network import ERPCNet
from erpcnet.model.policy import ActorCritic


class SelectionOrder(Protocol):
    """Selects the next cell of each image, in `erpcnet ablation`; what is predicted with is the variant's own.

    Images that are done leave the batch, so what an order keeps of them is indexed by `rows`.
    """

    def begin(self, localities: Localities) -> None:
        """A new batch of images."""

    def select(self, rows: Tensor, previous: Tensor, visited: Tensor) -> Tensor:
        """The next cell [M] of the images `rows` [M].

        Args:
            rows: Which images of the batch are still active.
            previous: [M, D], the embedding of the previous locality, or e_g before the first.
            visited: [M, cells] bool, what must not be selected again.
        """


OrderFactory = Callable[[ERPCNet, int], SelectionOrder]
SELECTION_ORDERS: dict[str, OrderFactory] = {}


def register_order(name: str) -> Callable[[OrderFactory], OrderFactory]:
    """Make an order, as a function of a network and a seed, known by a name; the ablation compares all of them.

    Examples:
        >>> @register_order("corners first")
        ... def corners_first(network, seed):
        ...     return FixedOrder(network.grid.centre_first().flip(0))
    """

    def register(factory: OrderFactory) -> OrderFactory:
        check_name(name, "an order")
        if name in SELECTION_ORDERS:
            raise InputError(f"there is a selection order '{name}' already.")
        if ";" in name:
            raise InputError(f"'{name}' is no name for an order: the command line separates them by semicolons.")
        SELECTION_ORDERS[name] = factory
        return factory

    return register


class FixedOrder:
    """The same cells for every image, as a permutation [cells]."""

    def __init__(self, cells: Tensor) -> None:
        self._rank = cells.argsort()

    def begin(self, localities: Localities) -> None:
        self._rank = self._rank.to(localities.beta.device)

    def select(self, rows: Tensor, previous: Tensor, visited: Tensor) -> Tensor:
        late = self._rank.max() + 1
        return torch.where(visited, late, self._rank).argmin(dim=1)


class RandomOrder:
    """Any unvisited cell. Draws depend on the seed and on an image's place in the batch, not on who else is left."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._rank = torch.empty(0)

    def begin(self, localities: Localities) -> None:
        beta = localities.beta
        self._rank = torch.rand(beta.shape, generator=self._generator).to(beta.device)

    def select(self, rows: Tensor, previous: Tensor, visited: Tensor) -> Tensor:
        return self._rank[rows].masked_fill(visited, 2.0).argmin(dim=1)


class EntropyOrder:
    """Highest beta first: no learning."""

    def begin(self, localities: Localities) -> None:
        self._beta = localities.beta

    def select(self, rows: Tensor, previous: Tensor, visited: Tensor) -> Tensor:
        return self._beta[rows].masked_fill(visited, float("-inf")).argmax(dim=1)


class PolicyOrder:
    """What pi prefers; with noise, a sample from pi.

    noise [T, N, cells], uniform from 0 to 1, is drawn beforehand: so the samples depend on neither the device nor how
    images are batched.
    """

    def __init__(self, policy: ActorCritic, noise: Tensor | None = None) -> None:
        self._policy, self._noise = policy, noise

    def begin(self, localities: Localities) -> None:
        self._step = 0
        self._encoded = self._policy.encode_cells(localities.descriptors)
        self._memory = self._policy.initial_memory(localities.e_g.shape[0], localities.e_g.device)

    def select(self, rows: Tensor, previous: Tensor, visited: Tensor) -> Tensor:
        encoded = None if self._encoded is None else self._encoded[rows]
        logits, self._memory[rows] = self._policy.step(previous.float(), encoded, self._memory[rows])
        if self._noise is None:  # by the logits, as the sigmoids of large ones are all 1
            return logits.masked_fill(visited, float("-inf")).argmax(dim=1)
        log_probabilities = self._policy.log_probabilities(logits, visited)
        noise = self._noise[self._step].to(log_probabilities.device)[rows].clamp_min(1e-9)  # Gumbel's trick
        self._step += 1
        return (log_probabilities - (-noise.log()).log()).argmax(dim=1)


@register_order("random")
def random_order(network: ERPCNet, seed: int) -> SelectionOrder:
    """PCNet's."""
    return RandomOrder(seed)


@register_order("centre first")
def centre_first(network: ERPCNet, seed: int) -> SelectionOrder:
    """From the middle of the grid outwards."""
    return FixedOrder(network.grid.centre_first())


@register_order("highest beta first")
def highest_beta_first(network: ERPCNet, seed: int) -> SelectionOrder:
    """From the most to the least informative window."""
    return EntropyOrder()


def default_order(network: ERPCNet, seed: int) -> SelectionOrder:
    """The order of a variant: its policy, or chance."""
    return RandomOrder(seed) if network.policy is None else PolicyOrder(network.policy)
