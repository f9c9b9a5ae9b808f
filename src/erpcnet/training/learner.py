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


class Learner:
    """Trains a policy on episodes, and says what one watches.

    A recorded step has one size: minibatches are filled up with episodes that count for nothing.
    """

    def __init__(
        self, policy: ActorCritic, settings: Stage2Settings, device: torch.device, recorded: bool | None = None
    ) -> None:
        self._policy, self._settings = policy, settings
        self._recorded = device.type == "cuda" if recorded is None else recorded
        self._optimizer = torch.optim.Adam(policy.parameters(), lr=settings.lr, capturable=self._recorded)
        self._watched = torch.zeros(len(WATCHED), device=device)
        self._held: Episodes | None = None
        self._warmed = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def learn(self, episodes: Episodes, generator: torch.Generator) -> dict[str, float]:
        """Several passes over the episodes, in minibatches of whole episodes, as the GRU needs them."""
        settings, count, device = self._settings, len(episodes.cells), episodes.cells.device
        self._watched.zero_()
        steps = 0
        for _ in range(settings.updates):
            for rows in torch.randperm(count, generator=generator).to(device).split(settings.batch_size):
                if self._recorded:
                    self._replay(minibatch(episodes, rows, min(count, settings.batch_size)))
                else:
                    self._descend(episodes.take(rows))
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

    def _replay(self, batch: Episodes) -> None:
        held = self._held = batch if self._held is None else self._held
        for name in held.__dataclass_fields__:
            getattr(held, name).copy_(getattr(batch, name))
        if self._warmed < WARMING:
            self._warmed += 1
            with aside():
                self._descend(held)
            return
        if self._graph is None:
            self._graph, _ = record(lambda: self._descend(held), rehearsals=0)
        self._graph.replay()


def minibatch(episodes: Episodes, rows: Tensor, size: int) -> Episodes:
    """These episodes, filled up to `size` with copies of the first in which no step is alive."""
    filled = episodes.take(F.pad(rows, (0, size - len(rows))))
    alive = filled.alive & (torch.arange(size, device=rows.device) < len(rows))[:, None]
    return Episodes(**{**vars(filled), "alive": alive})
