"""pi and V: which unvisited cell to select next, and what that is worth."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.config.model import PolicySettings


class StateEncoder(nn.Module):
    """f_E: FC(width)-ReLU-FC(memory)-ReLU-GRU(memory)."""

    def __init__(self, channels: int, width: int, memory: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, memory), nn.ReLU())
        self.gru = nn.GRU(memory, memory, batch_first=True)

    def forward(self, states: Tensor, memory: Tensor | None = None) -> Tensor:
        """states [N, T, D] to the hidden states [N, T, M], from memory [N, M] or from none."""
        hidden, _ = self.gru(self.layers(states), None if memory is None else memory[None])
        return hidden


def flatten_recurrent_weights(network: nn.Module) -> None:
    """Put the weights of its GRUs side by side: a copy's lie apart, and cuDNN would gather them at every call."""
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


class PolicyOutput(NamedTuple):
    """At each step, `logits` [N, T, cells] before masking, and `values` [N, T]."""

    logits: Tensor
    values: Tensor


class ActorCritic(nn.Module):
    """pi = <f_E-FC(|grid|)-Sigmoid> and V = <f_E-FC(1)>.

    With `sees_cells`, the logit of a cell adds a product of the hidden state with a descriptor of that cell, so
    the first choice can differ from image to image with where things are.

    Args:
        channels: D, of the states e_g and e_l.
        descriptor: F, of the cells' descriptors.
        cells: How many cells the grid has.
        settings: Widths, and what the policy sees.
    """

    def __init__(self, channels: int, descriptor: int, cells: int, settings: PolicySettings) -> None:
        super().__init__()
        memory = settings.memory
        self.settings = settings
        self.encoder = StateEncoder(channels, settings.width, memory)
        self.value_encoder = None if settings.shared_encoder else StateEncoder(channels, settings.width, memory)
        self.actor = nn.Linear(memory, cells)
        self.critic = nn.Linear(memory, 1)
        if settings.sees_cells:
            self.describe = nn.Linear(descriptor, memory)
            self.context = nn.Linear(memory, memory)
            # Starts as the paper's policy: what it sees of the cells is learned, not drawn.
            nn.init.zeros_(self.context.weight)
            nn.init.zeros_(self.context.bias)

    def forward(self, states: Tensor, descriptors: Tensor) -> PolicyOutput:
        """pi and V over whole episodes: states [N, T, D] (e_g, e_l,1, ...), descriptors [N, cells, F]."""
        hidden = self.encoder(states)
        of_value = hidden if self.value_encoder is None else self.value_encoder(states)
        return PolicyOutput(self._logits(hidden, self.encode_cells(descriptors)), self.critic(of_value).squeeze(-1))

    def initial_memory(self, count: int, device: torch.device) -> Tensor:
        """pi's memory before the first step, [N, M]."""
        return torch.zeros(count, self.settings.memory, device=device)

    def encode_cells(self, descriptors: Tensor) -> Tensor | None:
        """What pi makes of the descriptors, once for all steps: [N, cells, M], or None if it does not see cells."""
        return self.describe(descriptors) if self.settings.sees_cells else None

    def step(self, state: Tensor, encoded: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step of pi, without V: state [N, D] to logits [N, cells], and the memory after it."""
        hidden = self.encoder(state[:, None], memory)
        return self._logits(hidden, encoded)[:, 0], hidden[:, 0]

    def _logits(self, hidden: Tensor, encoded: Tensor | None) -> Tensor:
        logits: Tensor = self.actor(hidden)
        if encoded is None:
            return logits
        return logits + self.context(hidden) @ encoded.transpose(1, 2) / encoded.shape[-1] ** 0.5

    def log_probabilities(self, logits: Tensor, visited: Tensor) -> Tensor:
        """Logits [..., cells] to log-probabilities over the cells not `visited`; those get -inf.

        They are the paper's sigmoids, renormalised over the cells: the softmax of their logarithms.
        """
        return F.logsigmoid(logits).masked_fill(visited, float("-inf")).log_softmax(dim=-1)
