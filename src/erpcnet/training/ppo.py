"""Proximal policy optimisation of the paper's appendix, on whole batches of episodes of at most T steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.config.training import Stage2Settings
from erpcnet.model.policy import ActorCritic
from erpcnet.model.reward import steps_taken


class Rows(Protocol):
    """A tensor, or what gives rows of one that is too large to hold."""

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Episodes:
    """N episodes of T steps.

    states [N, T, D]; descriptors [N, cells, F]; visited before each step [N, T, cells]; cells chosen [N, T];
    log_probabilities of those, returns and advantages [N, T]; alive [N, T]: the steps that were taken.
    """

    states: Rows
    descriptors: Rows
    visited: Tensor
    cells: Tensor
    log_probabilities: Tensor
    returns: Tensor
    advantages: Tensor
    alive: Tensor

    def take(self, rows: Tensor) -> Episodes:
        return Episodes(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def visited_before(cells: Tensor, count: int) -> Tensor:
    """Which cells lie behind each step: cells [N, T] to [N, T, count] bool."""
    chosen = F.one_hot(cells, count)
    return (chosen.cumsum(dim=1) - chosen).bool()


def alive_steps(reward: Tensor, sigma: float | None) -> Tensor:
    """The steps of each episode [N, T]: all, or those up to the first reward of at least sigma."""
    if sigma is None:
        return torch.ones_like(reward, dtype=torch.bool)
    step = torch.arange(reward.shape[1], device=reward.device)
    return step < steps_taken(reward, sigma)[:, None]


def discounted_returns(reward: Tensor, alive: Tensor, gamma: float) -> Tensor:
    """sum_{i >= t} gamma^{i - t} r_i over the steps taken, [N, T]."""
    steps = reward.shape[1]
    earned = reward * alive
    returns = torch.empty_like(earned)
    ahead = torch.zeros_like(earned[:, 0])
    for step in reversed(range(steps)):
        ahead = earned[:, step] + gamma * ahead
        returns[:, step] = ahead
    return returns


def standardise(advantages: Tensor, alive: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the episodes that take each step, [N, T]."""
    count = alive.sum(dim=0, keepdim=True).clamp_min(1)
    mean = (advantages * alive).sum(dim=0, keepdim=True) / count
    spread = ((advantages - mean).square() * alive).sum(dim=0, keepdim=True) / count
    return (advantages - mean) / (spread.sqrt() + 1e-8)


@dataclass(frozen=True)
class PPOLoss:
    """The loss to minimise, and cleanRL's diagnostics."""

    total: Tensor
    surrogate: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(policy: ActorCritic, episodes: Episodes, settings: Stage2Settings) -> PPOLoss:
    """-E[L_clip - alpha_1 MSE(V, return) + alpha_2 S] over the steps taken, of episodes whose states are at hand."""
    clip = settings.clip_coef
    output = policy(episodes.states, episodes.descriptors)
    log_probabilities = policy.log_probabilities(output.logits, episodes.visited)
    taken = log_probabilities.gather(2, episodes.cells[..., None]).squeeze(-1)
    # A step that was not taken has no ratio: an infinite one would make a gradient of NaN out of nothing.
    log_ratio = (taken - episodes.log_probabilities).masked_fill(~episodes.alive, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * episodes.advantages, clipped * episodes.advantages)
    error = (output.values - episodes.returns).square()
    # A visited cell has log-probability -inf and adds nothing.
    spread = -(log_probabilities.exp() * log_probabilities.masked_fill(episodes.visited, 0.0)).sum(dim=-1)
    surrogate, value, entropy = (mean_alive(part, episodes.alive) for part in (gain, error, spread))
    with torch.no_grad():
        approx_kl = mean_alive(ratio - 1 - log_ratio, episodes.alive)
        clip_fraction = mean_alive(((ratio - 1).abs() > clip).float(), episodes.alive)
    total = -(surrogate - settings.value_coef * value + settings.entropy_coef * entropy)
    return PPOLoss(total, surrogate, value, entropy, approx_kl, clip_fraction)


def explained_variance(values: Tensor, returns: Tensor, alive: Tensor) -> Tensor:
    """1 - Var(return - V) / Var(return) over the steps taken: 1 is a perfect critic, 0 a constant one."""

    def variance(of: Tensor) -> Tensor:
        return mean_alive((of - mean_alive(of, alive)).square(), alive)

    spread = variance(returns)
    # What rounding makes of returns that are all the same is no spread.
    return torch.where(
        spread > 1e-10 * mean_alive(returns.square(), alive),
        1 - variance(returns - values) / spread,
        torch.zeros_like(spread),
    )


def mean_alive(values: Tensor, alive: Tensor) -> Tensor:
    """The mean over the steps taken."""
    # Not `where` with a number, which would be copied to a GPU: the capture of a CUDA graph does not allow that.
    return values.masked_fill(~alive, 0.0).sum() / alive.sum()
