"""PPO's gradient steps; on a GPU, where they wait for their launches, as one CUDA graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.model.policy import ActorCritic
from erpcnet.recording import Recorded
from erpcnet.training.ppo import Episodes, ppo_loss
from erpcnet.training.settings import Stage2Settings

WATCHED = ("surrogate", "value", "entropy", "approx_kl", "clip_fraction")
NOBODY = -1  # fills a minibatch up


class Learner:
    """Trains a policy on episodes.

    A recorded step reads one place in memory: so episodes are copied there, and a step takes the rows to learn from.
    It also has one size: minibatches are filled up with episodes that count for nothing.
    """

    def __init__(
        self, policy: ActorCritic, settings: Stage2Settings, device: torch.device, recorded: bool = False
    ) -> None:
        self._recorded = recorded
        self._optimizer = torch.optim.Adam(
            policy.parameters(), lr=settings.lr, capturable=recorded, fused=device.type == "cuda"
        )
        self._watched = torch.zeros(len(WATCHED), device=device)
        # No method: what is recorded must not keep the learner, which keeps the recording.
        self._descend = partial(descend, policy, self._optimizer, settings, self._watched)
        self._held: Episodes | None = None
        self._step: Recorded[None] | None = None

    def learn(self, episodes: Episodes, minibatches: Tensor) -> Tensor:
        """A step on each of the minibatches, rows of episodes [M, size]; the means of what one watches, `WATCHED`.

        Nobody waits for a GPU here: what comes back is still being computed there.
        """
        step = self._recorded_step(episodes) if self._recorded else partial(self._descend, episodes)
        self._watched.zero_()
        for rows in minibatches:
            step(rows)
        return self._watched / len(minibatches)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._optimizer.load_state_dict(state)

    def _recorded_step(self, episodes: Episodes) -> Recorded[None]:
        """A step on these episodes, put where the recording reads them; other numbers of them need another one."""
        if self._held is None or self._step is None or len(self._held.cells) != len(episodes.cells):
            held = Episodes(**{name: torch.empty_like(value) for name, value in vars(episodes).items()})
            self._held, self._step = held, Recorded(partial(self._descend, held), episodes.cells.device)
        for name, value in vars(self._held).items():
            value.copy_(getattr(episodes, name))
        return self._step


def descend(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    settings: Stage2Settings,
    watched: Tensor,
    episodes: Episodes,
    rows: Tensor,
) -> None:
    """One gradient step on these rows of the episodes; what one watches is added to `watched`."""
    batch = minibatch(episodes, rows)
    loss = ppo_loss(policy, batch, settings.clip, settings.value_weight, settings.entropy_weight)
    optimizer.zero_grad()
    loss.total.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.grad_clip)
    optimizer.step()
    watched += torch.stack([getattr(loss, name).detach() for name in WATCHED])


def shuffled(count: int, settings: Stage2Settings, generator: torch.Generator) -> Tensor:
    """All rows once in random order for every pass of PPO, in minibatches of whole episodes, as the GRU needs them:
    [M, size], of nearly the same size, as each gets a whole step; `NOBODY` fills the last one of each pass up.
    """
    size = -(-count // -(-count // settings.batch_size))
    passes = [torch.randperm(count, generator=generator) for _ in range(settings.updates)]
    return torch.cat([F.pad(rows, (0, -count % size), value=NOBODY).view(-1, size) for rows in passes])


def minibatch(episodes: Episodes, rows: Tensor) -> Episodes:
    """These episodes; for `NOBODY` a copy of another in which no step is alive."""
    filled = episodes.take(rows.clamp_min(0))
    return Episodes(**{**vars(filled), "alive": filled.alive & (rows != NOBODY)[:, None]})
