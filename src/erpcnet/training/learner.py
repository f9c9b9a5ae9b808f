"""PPO's gradient steps; on a GPU, where they wait for their launches, as one CUDA graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.model.policy import ActorCritic
from erpcnet.recording import aside, record
from erpcnet.training.ppo import Episodes, ppo_loss
from erpcnet.training.settings import Stage2Settings

WATCHED = ("surrogate", "value", "entropy", "approx_kl", "clip_fraction")
WARMING = 3  # steps that rehearse the recording, and in which the optimizer takes its memory
NOBODY = -1  # fills a minibatch up


class Learner:
    """Trains a policy on episodes, and says what one watches.

    A recorded step reads one place in memory: so episodes are copied there, and a step takes the rows to learn from.
    It also has one size: minibatches are filled up with episodes that count for nothing.
    """

    def __init__(
        self, policy: ActorCritic, settings: Stage2Settings, device: torch.device, recorded: bool | None = None
    ) -> None:
        self._policy, self._settings = policy, settings
        self._recorded = device.type == "cuda" if recorded is None else recorded
        self._optimizer = torch.optim.Adam(
            policy.parameters(), lr=settings.lr, capturable=self._recorded, fused=device.type == "cuda"
        )
        self._watched = torch.zeros(len(WATCHED), device=device)
        self._held: Episodes | None = None
        self._rows = torch.empty(0, dtype=torch.long, device=device)
        self._warmed = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def learn(self, episodes: Episodes, generator: torch.Generator) -> dict[str, float]:
        """Several passes over the episodes, in minibatches of whole episodes, as the GRU needs them."""
        count, device = len(episodes.cells), episodes.cells.device
        size = min(count, self._settings.batch_size)
        if self._recorded:
            self._hold(episodes, size)
        self._watched.zero_()
        steps = 0
        for _ in range(self._settings.updates):
            for rows in shuffled(count, size, generator).to(device):
                if self._recorded:
                    self._replay(rows)
                else:
                    self._descend(minibatch(episodes, rows))
                steps += 1
        return {name: value / steps for name, value in zip(WATCHED, self._watched.tolist(), strict=True)}

    def _descend(self, batch: Episodes) -> None:
        settings, parameters = self._settings, self._policy.parameters()
        loss = ppo_loss(self._policy, batch, settings.clip, settings.value_weight, settings.entropy_weight)
        self._optimizer.zero_grad()
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings.grad_clip)
        self._optimizer.step()
        self._watched += torch.stack([getattr(loss, name).detach() for name in WATCHED])

    def _hold(self, episodes: Episodes, size: int) -> None:
        """Put the episodes where the recording reads them; other numbers of them need another recording."""
        if self._held is None or len(self._held.cells) != len(episodes.cells):
            self._held = Episodes(**{name: torch.empty_like(value) for name, value in vars(episodes).items()})
            self._rows = torch.empty(size, dtype=torch.long, device=episodes.cells.device)
            self._graph = None
        for name, value in vars(self._held).items():
            value.copy_(getattr(episodes, name))

    def _replay(self, rows: Tensor) -> None:
        held = self._held
        assert held is not None
        self._rows.copy_(rows)
        if self._warmed < WARMING:
            self._warmed += 1
            with aside(rows.device):
                self._descend(minibatch(held, self._rows))
            return
        if self._graph is None:
            self._graph, _ = record(lambda: self._descend(minibatch(held, self._rows)), rows.device, rehearsals=0)
        self._graph.replay()


def shuffled(count: int, size: int, generator: torch.Generator) -> Tensor:
    """All rows once in random order, [minibatches, size]; `NOBODY` fills the last one up."""
    rows = torch.randperm(count, generator=generator)
    return F.pad(rows, (0, -count % size), value=NOBODY).view(-1, size)


def minibatch(episodes: Episodes, rows: Tensor) -> Episodes:
    """These episodes; for `NOBODY` a copy of another in which no step is alive."""
    filled = episodes.take(rows.clamp_min(0))
    return Episodes(**{**vars(filled), "alive": filled.alive & (rows != NOBODY)[:, None]})
