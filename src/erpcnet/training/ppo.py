"""Proximal policy optimisation of the paper's appendix, on whole batches of episodes of at most T steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from erpcnet.model.policy import ActorCritic
from erpcnet.model.reward import steps_taken

Ending = Literal["never", "absorbing", "paper"]


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


def alive_steps(reward: Tensor, ending: Ending, sigma: float | None) -> Tensor:
    """The steps of each episode [N, T]: all, or those up to the first reward of at least sigma."""
    if ending == "never" or sigma is None:
        return torch.ones_like(reward, dtype=torch.bool)
    step = torch.arange(reward.shape[1], device=reward.device)
    return step < steps_taken(reward, sigma)[:, None]


def discounted_returns(reward: Tensor, alive: Tensor, gamma: float, absorbing: bool) -> Tensor:
    """sum_{i >= t} gamma^{i - t} r_i over the steps taken, [N, T].

    With `absorbing` the last reward of a short episode is earned again at every step up to T.
    """
    steps = reward.shape[1]
    earned = reward * alive
    if absorbing:
        last = reward.gather(1, alive.sum(dim=1, keepdim=True) - 1)
        earned = torch.where(alive, reward, last)
    returns = torch.empty_like(earned)
    ahead = torch.zeros_like(earned[:, 0])
    for step in reversed(range(steps)):
        ahead = earned[:, step] + gamma * ahead
        returns[:, step] = ahead
    return returns


def standardise(advantages: Tensor, alive: Tensor, how: Literal["step", "batch", "raw"]) -> Tensor:
    """Mean 0 and deviation 1 over the living episodes of each step, over all steps, or as they are."""
    if how == "raw":
        return advantages
    dims = (0,) if how == "step" else (0, 1)
    count = alive.sum(dim=dims, keepdim=True).clamp_min(1)
    mean = (advantages * alive).sum(dim=dims, keepdim=True) / count
    spread = ((advantages - mean).square() * alive).sum(dim=dims, keepdim=True) / count
    return (advantages - mean) / (spread.sqrt() + 1e-8)


@dataclass(frozen=True)
class PpoLoss:
    """The loss to minimise, and what one watches."""

    total: Tensor
    surrogate: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    policy: ActorCritic, episodes: Episodes, clip: float, value_weight: float, entropy_weight: float
) -> PpoLoss:
    """-E[L_clip - alpha_1 MSE(V, return) + alpha_2 S] over the steps taken, of episodes whose states are at hand."""
    outlook = policy(episodes.states, episodes.descriptors)
    chances = policy.log_probabilities(outlook.scores, episodes.visited)
    taken = chances.gather(2, episodes.cells[..., None]).squeeze(-1)
    # A step that was not taken has no ratio: an infinite one would make a gradient of NaN out of nothing.
    log_ratio = (taken - episodes.log_probabilities).masked_fill(~episodes.alive, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * episodes.advantages, clipped * episodes.advantages)
    error = (outlook.values - episodes.returns).square()
    # A visited cell has log-probability -inf and adds nothing.
    spread = -(chances.exp() * chances.masked_fill(episodes.visited, 0.0)).sum(dim=-1)
    surrogate, value, entropy = (mean_alive(part, episodes.alive) for part in (gain, error, spread))
    with torch.no_grad():
        approx_kl = mean_alive(ratio - 1 - log_ratio, episodes.alive)
        clip_fraction = mean_alive(((ratio - 1).abs() > clip).float(), episodes.alive)
    total = -(surrogate - value_weight * value + entropy_weight * entropy)
    return PpoLoss(total, surrogate, value, entropy, approx_kl, clip_fraction)


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
    # Not `where` with a number, which would be copied to a GPU: a recording does not allow that.
    return values.masked_fill(~alive, 0.0).sum() / alive.sum()
