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

    def forward(self, states: Tensor, memory: Tensor | None = None) -> Tensor:
        """states [N, T, D] to the hidden states [N, T, M], from memory [N, M] or from none."""
        hidden, _ = self.gru(self.layers(states), None if memory is None else memory[None])
        return hidden


class Outlook(NamedTuple):
    """What the policy thinks at each step: `scores` [N, T, cells] before masking, `values` [N, T]."""

    scores: Tensor
    values: Tensor


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
            self.describe = nn.Linear(descriptor, memory)
            self.context = nn.Linear(memory, memory)
            # Starts as the paper's policy: what it sees of the cells is learned, not drawn.
            nn.init.zeros_(self.context.weight)
            nn.init.zeros_(self.context.bias)

    def forward(self, states: Tensor, descriptors: Tensor) -> Outlook:
        """pi and V over whole episodes: states [N, T, D] (e_g, e_l,1, ...), descriptors [N, cells, F]."""
        hidden = self.encoder(states)
        of_value = hidden if self.value_encoder is None else self.value_encoder(states)
        return Outlook(self._scores(hidden, self.describe_cells(descriptors)), self.critic(of_value).squeeze(-1))

    def begin(self, count: int, device: torch.device) -> Tensor:
        """pi's memory before the first step, [N, M]."""
        return torch.zeros(count, self.settings.memory, device=device)

    def describe_cells(self, descriptors: Tensor) -> Tensor | None:
        """What pi makes of the descriptors, once for all steps: [N, cells, M], or None if it does not see cells."""
        return self.describe(descriptors) if self.settings.sees_cells else None

    def prefer(self, state: Tensor, described: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step of pi, without V: state [N, D] to scores [N, cells], and the memory after it."""
        hidden = self.encoder(state[:, None], memory)
        return self._scores(hidden, described)[:, 0], hidden[:, 0]

    def _scores(self, hidden: Tensor, described: Tensor | None) -> Tensor:
        scores: Tensor = self.actor(hidden)
        if described is None:
            return scores
        return scores + self.context(hidden) @ described.transpose(1, 2) / described.shape[-1] ** 0.5

    def log_probabilities(self, scores: Tensor, visited: Tensor) -> Tensor:
        """Scores [..., cells] to log-probabilities over the cells not `visited`; those get -inf."""
        if self.settings.scores == "sigmoid":
            scores = F.logsigmoid(scores)  # renormalising sigmoids over cells = softmax of their logarithms
        return scores.masked_fill(visited, float("-inf")).log_softmax(dim=-1)
