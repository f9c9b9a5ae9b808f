"""Stage II: with everything else frozen, the policy learns by PPO which localities to select."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from erpcnet.config.training import Stage2Settings
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.localities import Localities
from erpcnet.model.policy import ActorCritic
from erpcnet.model.reward import rewards
from erpcnet.model.rollout import rollout
from erpcnet.model.selection import PolicyOrder
from erpcnet.training.checkpoint import Checkpoint
from erpcnet.training.episode_sources import EpisodeSource
from erpcnet.training.log import Log, check_finite, check_weights
from erpcnet.training.ppo import (
    Episodes,
    Rows,
    alive_steps,
    discounted_returns,
    explained_variance,
    mean_alive,
    standardise,
    visited_before,
)
from erpcnet.training.ppo_update import DIAGNOSTICS, PPOUpdate, shuffle_minibatches
from erpcnet.utils.cuda_graphs import GraphedFunction
from erpcnet.utils.progress import bar
from erpcnet.utils.runtime import Runtime

ROLLOUT_METRICS = ("mean_return", "mean_reward", "mean_steps", "explained_variance")


def train_stage2(
    network: ERPCNet,
    source: EpisodeSource,
    settings: Stage2Settings,
    *,
    seed: int,
    log: Log,
    checkpoint: Checkpoint | None = None,
    runtime: Runtime | None = None,
    validation: Callable[[], dict[str, float]] | None = None,
) -> None:
    """Train pi and V in place.

    Args:
        network: With Stage I behind it.
        source: Where episodes take place.
        settings: Of PPO.
        seed: Of everything that is drawn.
        log: Gets the metrics of each epoch.
        checkpoint: Written on the way; one that is there already is resumed from.
        runtime: Precision, and whether CUDA graphs are used.
        validation: Says how good the network's rollouts are now; asked after each epoch.
    """
    trainer = Stage2Trainer(network, source, settings, seed, runtime)
    checkpoint = checkpoint or Checkpoint()
    done = checkpoint.resume(trainer)
    with bar("Stage II", settings.epochs) as advance:
        advance(done)
        for epoch in range(done, settings.epochs):
            metrics = trainer.epoch()
            check_finite(metrics, f"Stage II, epoch {epoch + 1}", "--stage2.lr")
            check_weights(trainer.policy, f"Stage II, epoch {epoch + 1}", "--stage2.lr")
            log.scalars("stage2", metrics, epoch + 1)
            log.scalars("learning_rate", {"stage2": settings.lr}, epoch + 1)
            note = f"return {metrics['mean_return']:.3f}"
            if validation is not None:
                found = validation()
                log.scalars("stage2/validation", found, epoch + 1)
                note += f", validation T1 {found['t1']:.1%}"
            advance(note=note)
            checkpoint.save(trainer, epoch + 1)
    network.zero_grad()  # or they would keep the memory of the CUDA graph that wrote them


class RandomDraws(NamedTuple):
    """What is random in an epoch, drawn on the CPU, so that it is the same wherever rollouts take place.

    Images [N] in random order, a crop of each [N], noise [T, N, cells] for the selection, and minibatches [M, size].
    """

    images: Tensor
    crop: Tensor
    noise: Tensor
    minibatches: Tensor


@dataclass(frozen=True)
class RolloutBatch:
    """Episodes of every image, and the `ROLLOUT_METRICS` of them."""

    episodes: Episodes
    metrics: Tensor


class Stage2Trainer:
    """PPO on the policy of a network whose other parts are done; an epoch at a time.

    Attributes:
        policy: Is trained.
    """

    def __init__(
        self,
        network: ERPCNet,
        source: EpisodeSource,
        settings: Stage2Settings,
        seed: int,
        runtime: Runtime | None = None,
    ) -> None:
        if network.policy is None:
            raise InputError(f"the variant '{network.variant}' has no policy to train.")
        self._network, self.policy, self._source, self._settings = network, network.policy, source, settings
        self._runtime = runtime or Runtime()
        self._generator = torch.Generator().manual_seed(seed + 2)
        device = source.phi.device
        graphs = self._runtime.cuda_graphs and device.type == "cuda"
        self._update = PPOUpdate(network.policy, settings, device, graphs and source.reload is None)
        self._collect: Callable[[Tensor, Tensor, Tensor], RolloutBatch]
        self._collect = partial(collect_rollouts, network, source, settings)
        if graphs and source.is_lookup:
            self._collect = GraphedFunction(self._collect, device)
        self._drawn = self.draw()

    def epoch(self) -> dict[str, float]:
        """Roll out every image once and learn from it; returns the metrics."""
        self.policy.train()
        drawn = self._drawn
        with self._runtime.tf32(self._source.phi.device):
            batch = self.rollouts(drawn)
            diagnostics = self._update(batch.episodes, drawn.minibatches)
        self.policy.eval()
        self._drawn = self.draw()  # a GPU is still at work
        metrics = torch.cat([batch.metrics, diagnostics]).tolist()  # once: it waits for all that a GPU has to do
        return dict(zip((*ROLLOUT_METRICS, *DIAGNOSTICS), metrics, strict=True))

    def rollouts(self, drawn: RandomDraws) -> RolloutBatch:
        """Roll out every image once, in one of its crops; the next epoch may overwrite what comes back."""
        with self._runtime.autocast():
            return self._collect(drawn.images, drawn.crop, drawn.noise)

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        return {
            "policy": self.policy.state_dict(),
            "update": self._update.state_dict(),
            "random": self._before_draw,
            "source_random": None if self._source.generator is None else self._source.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from there."""
        self.policy.load_state_dict(state["policy"])
        self._update.load_state_dict(state["update"])
        if self._source.generator is not None:
            self._source.generator.set_state(state["source_random"])
        self._generator.set_state(state["random"])
        self._drawn = self.draw()

    def draw(self) -> RandomDraws:
        """Draw all that is random in an epoch."""
        source, generator = self._source, self._generator
        self._before_draw = generator.get_state()
        crop = torch.randint(source.crops, (source.images,), generator=generator)
        order = torch.randperm(source.images, generator=generator)
        noise = torch.rand(self._network.steps, source.images, self._network.grid.cells, generator=generator)
        minibatches = shuffle_minibatches(source.images, self._settings, generator)
        return RandomDraws(*(_send(drawn, source.phi.device) for drawn in (order, crop[order], noise, minibatches)))


def _send(value: Tensor, device: torch.device) -> Tensor:
    """The same where rollouts take place; a GPU fetches it by itself, without anyone waiting for what it does."""
    return (value.pin_memory() if device.type == "cuda" else value).to(device, non_blocking=True)


@torch.no_grad()
def collect_rollouts(
    network: ERPCNet, source: EpisodeSource, settings: Stage2Settings, images: Tensor, crop: Tensor, noise: Tensor
) -> RolloutBatch:
    """Roll out these images [N] of a source, each in one of its crops [N], and compute returns and advantages."""
    size, policy, keep = source.batch_size, network.policy, source.reload is None
    assert policy is not None
    parts = [
        collect_episodes(network, source.take(own_crop, own), source.labels[own], source.phi, settings, drawn, keep)
        for own, own_crop, drawn in zip(images.split(size), crop.split(size), noise.split(size, dim=1), strict=True)
    ]
    visited, cells, reward, alive = (
        _cat([getattr(part, name) for part in parts]) for name in ("visited", "cells", "reward", "alive")
    )
    states: Rows
    descriptors: Rows
    if source.reload is not None:
        states, descriptors = source.reload(crop, images, cells)
        batches = torch.arange(len(images), device=cells.device).split(size)
        evaluated = [
            evaluate_actions(policy, states[own], descriptors[own], visited[own], cells[own]) for own in batches
        ]
    else:
        held = _cat([part.states for part in parts if part.states is not None])
        described = _cat([part.descriptors for part in parts if part.descriptors is not None])
        states, descriptors = held, described
        evaluated = [evaluate_actions(policy, held, described, visited, cells)]
    returns = discounted_returns(reward, alive, settings.gamma)
    values, log_probabilities = (_cat([pair[number] for pair in evaluated]) for number in (0, 1))
    advantages = returns - values
    if settings.standardise_advantages:
        advantages = standardise(advantages, alive)
    metrics = {
        "mean_return": returns[:, 0].mean(),
        "mean_reward": mean_alive(reward, alive),
        "mean_steps": alive.sum(dim=1).float().mean(),
        "explained_variance": explained_variance(values, returns, alive),
    }
    episodes = Episodes(states, descriptors, visited, cells, log_probabilities, returns, advantages, alive)
    return RolloutBatch(episodes, torch.stack([metrics[name] for name in ROLLOUT_METRICS]))


@dataclass(frozen=True)
class EpisodePart:
    """Episodes before anything is computed from their rewards: see `Episodes`; reward [N, T].

    States and descriptors are left out where they are reloaded.
    """

    states: Tensor | None
    descriptors: Tensor | None
    visited: Tensor
    cells: Tensor
    reward: Tensor
    alive: Tensor


def collect_episodes(
    network: ERPCNet,
    localities: Localities,
    labels: Tensor,
    phi: Tensor,
    settings: Stage2Settings,
    noise: Tensor,
    keep_states: bool = True,
) -> EpisodePart:
    """Roll out a batch of images, sampling from pi with noise [T, N, cells]; labels [N] are rows of phi [S, A]."""
    policy = network.policy
    assert policy is not None
    answers = settings.reward == "answer"
    order = PolicyOrder(policy, noise)
    rolled_out = rollout(network, localities, order, keep_localities=keep_states, hide_global=not answers)
    joint_logits = network.joint_compatibility(rolled_out.a_j, phi)
    global_logits = network.global_compatibility(rolled_out.a_g, phi) if answers else None
    beta = rolled_out.beta if network.uses_entropy else 1.0
    every = labels[:, None].expand(joint_logits.shape[:2])
    reward = rewards(joint_logits, global_logits, every, beta, settings.reward_temperature)
    # The end of an episode is a question of confidence, which is not tempered.
    sigma = network.settings.sigma if settings.stop_at_sigma else None
    alive = alive_steps(rewards(joint_logits, global_logits, every, beta), sigma)
    visited = visited_before(rolled_out.cells, network.grid.cells)
    if rolled_out.e_l is None:
        return EpisodePart(None, None, visited, rolled_out.cells, reward, alive)
    states = torch.cat([localities.e_g[:, None], rolled_out.e_l[:, :-1]], dim=1).float()
    return EpisodePart(states, localities.descriptors, visited, rolled_out.cells, reward, alive)


def evaluate_actions(
    policy: ActorCritic, states: Tensor, descriptors: Tensor, visited: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    """V [N, T] along episodes, and the log-probability [N, T] that pi gave each cell it selected."""
    output = policy(states, descriptors)
    log_probabilities = policy.log_probabilities(output.logits, visited)
    return output.values, log_probabilities.gather(2, cells[..., None]).squeeze(-1)


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
