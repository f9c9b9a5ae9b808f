"""pi and V: which unvisited cell to look at next, and what that is worth."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.model.settings import PolicySettings


class StateEncoder(nn.Module):
    """f_E: FC(width)-ReLU-FC(memory)-ReLU-GRU(memory)."""

    def __init__(self, channels: int, width: int, memory: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, memory), nn.ReLU())
        self.gru = nn.GRU(memory, memory, batch_first=True)

    def forward(self, states: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """states [N, T, D], memory [N, M] to the hidden states [N, T, M] and the last of them [N, M]."""
        hidden, last = self.gru(self.layers(states), memory.unsqueeze(0).contiguous())
        return hidden, last[0]


class Outlook(NamedTuple):
    """What the policy thinks at each step: `scores` [N, T, cells] before masking, `values` [N, T], `memory`."""

    scores: Tensor
    values: Tensor
    memory: Tensor


class ActorCritic(nn.Module):
    """pi = <f_E-FC(|grid|)-Sigmoid> and V = <f_E-FC(1)>.

    With `sees_cells`, the score of a cell adds a product of the hidden state with a descriptor of that cell, so
    the first choice can differ from image to image with where things are.
    """

    def __init__(self, channels: int, descriptor: int, cells: int, settings: PolicySettings) -> None:
        super().__init__()
        memory = settings.memory
        self.settings, self.cells = settings, cells
        self.encoder = StateEncoder(channels, settings.width, memory)
        self.value_encoder = None if settings.shared_encoder else StateEncoder(channels, settings.width, memory)
        self.actor = nn.Linear(memory, cells)
        self.critic = nn.Linear(memory, 1)
        if settings.sees_cells:
            self.describe = nn.Sequential(nn.LayerNorm(descriptor), nn.Linear(descriptor, memory))
            self.context = nn.Linear(memory, memory)
            # Starts as the paper's policy: what it sees of the cells is learned, not drawn.
            nn.init.zeros_(self.context.weight)
            nn.init.zeros_(self.context.bias)

    def empty_memory(self, count: int, device: torch.device) -> Tensor:
        """h_0, for pi and V: [N, 2, M]."""
        return torch.zeros(count, 2, self.settings.memory, device=device)

    def forward(self, states: Tensor, descriptors: Tensor, memory: Tensor) -> Outlook:
        """states [N, T, D] (e_g, e_l,1, ...), descriptors [N, cells, F], memory [N, 2, M]."""
        hidden, last = self.encoder(states, memory[:, 0])
        value_hidden, value_last = hidden, last
        if self.value_encoder is not None:
            value_hidden, value_last = self.value_encoder(states, memory[:, 1])
        scores = self.actor(hidden)
        if self.settings.sees_cells:
            described = self.describe(descriptors)
            scores = scores + self.context(hidden) @ described.transpose(1, 2) / described.shape[-1] ** 0.5
        return Outlook(scores, self.critic(value_hidden).squeeze(-1), torch.stack([last, value_last], dim=1))

    def log_probabilities(self, scores: Tensor, visited: Tensor) -> Tensor:
        """Scores [..., cells] to log-probabilities over the cells not `visited`; those get -inf."""
        if self.settings.scores == "sigmoid":
            scores = F.logsigmoid(scores)  # renormalising sigmoids over cells = softmax of their logarithms
        return scores.masked_fill(visited, float("-inf")).log_softmax(dim=-1)
