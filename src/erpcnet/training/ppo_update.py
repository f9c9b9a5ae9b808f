"""PPO's gradient steps; on a GPU, where they wait for their launches, as one CUDA graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.config.training import Stage2Settings
from erpcnet.model.policy import ActorCritic
from erpcnet.training.ppo import Episodes, ppo_loss
from erpcnet.utils.cuda_graphs import GraphedFunction

DIAGNOSTICS = ("surrogate", "value", "entropy", "approx_kl", "clip_fraction")
PADDING = -1  # fills a minibatch up


class PPOUpdate:
    """Updates a policy by PPO on episodes.

    A CUDA graph reads one place in memory: so episodes are copied there, and a step takes the rows to learn from.
    It also has one size: minibatches are filled up with episodes that count for nothing.
    """

    def __init__(
        self, policy: ActorCritic, settings: Stage2Settings, device: torch.device, cuda_graph: bool = False
    ) -> None:
        self._cuda_graph = cuda_graph
        self._optimizer = torch.optim.Adam(
            policy.parameters(), lr=settings.lr, capturable=cuda_graph, fused=device.type == "cuda"
        )
        self._sums = torch.zeros(len(DIAGNOSTICS), device=device)
        # No method: a graph must not keep this object, which keeps the graph.
        self._update = partial(update, policy, self._optimizer, settings, self._sums)
        self._episodes: Episodes | None = None
        self._step: GraphedFunction[None] | None = None

    def __call__(self, episodes: Episodes, minibatches: Tensor) -> Tensor:
        """A step on each of the minibatches, rows of episodes [M, size]; the means of the `DIAGNOSTICS`.

        Nobody waits for a GPU here: what comes back is still being computed there.
        """
        step = self._graphed_step(episodes) if self._cuda_graph else partial(self._update, episodes)
        self._sums.zero_()
        for rows in minibatches:
            step(rows)
        return self._sums / len(minibatches)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        own = self._optimizer.param_groups  # how a step runs is this machine's matter
        groups = [
            {**stored, **{name: mine[name] for name in ("capturable", "fused")}}
            for stored, mine in zip(state["param_groups"], own, strict=True)
        ]
        self._optimizer.load_state_dict({**state, "param_groups": groups})

    def _graphed_step(self, episodes: Episodes) -> GraphedFunction[None]:
        """A step on these episodes, put where the graph reads them; other numbers of them need another graph."""
        if self._episodes is None or self._step is None or len(self._episodes.cells) != len(episodes.cells):
            held = Episodes(**{name: torch.empty_like(value) for name, value in vars(episodes).items()})
            self._episodes, self._step = held, GraphedFunction(partial(self._update, held), episodes.cells.device)
        for name, value in vars(self._episodes).items():
            value.copy_(getattr(episodes, name))
        return self._step


def update(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    settings: Stage2Settings,
    sums: Tensor,
    episodes: Episodes,
    rows: Tensor,
) -> None:
    """One gradient step on these rows of the episodes; the diagnostics are added to `sums`."""
    batch = minibatch(episodes, rows)
    loss = ppo_loss(policy, batch, settings)
    optimizer.zero_grad()
    loss.total.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
    optimizer.step()
    sums += torch.stack([getattr(loss, name).detach() for name in DIAGNOSTICS])


def shuffle_minibatches(count: int, settings: Stage2Settings, generator: torch.Generator) -> Tensor:
    """All rows once in random order for every pass of PPO, in minibatches of whole episodes, as the GRU needs them:
    [M, size], of nearly the same size, as each gets a whole step; `PADDING` fills the last one of each pass up.
    """
    size = -(-count // -(-count // settings.minibatch_size))
    passes = [torch.randperm(count, generator=generator) for _ in range(settings.update_epochs)]
    return torch.cat([F.pad(rows, (0, -count % size), value=PADDING).view(-1, size) for rows in passes])


def minibatch(episodes: Episodes, rows: Tensor) -> Episodes:
    """These episodes; for `PADDING` a copy of another in which no step is alive."""
    filled = episodes.take(rows.clamp_min(0))
    return Episodes(**{**vars(filled), "alive": filled.alive & (rows != PADDING)[:, None]})
