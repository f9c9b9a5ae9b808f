from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from erpcnet.config import PolicySettings, Stage2Settings
from erpcnet.model.policy import ActorCritic
from erpcnet.training.ppo import (
    Episodes,
    alive_steps,
    discounted_returns,
    explained_variance,
    mean_alive,
    ppo_loss,
    standardise,
    visited_before,
)


@pytest.mark.parametrize("sigma", [None, 0.7])
def test_returns_against_plain_loops(sigma: float | None) -> None:
    reward, gamma = torch.rand(20, 4), 0.9
    alive = alive_steps(reward, sigma)
    found = discounted_returns(reward, alive, gamma)
    for episode in range(20):
        rewards = reward[episode].tolist()
        end = next((t for t, r in enumerate(rewards) if sigma is not None and r >= sigma), 3)
        earned = [r if t <= end else 0.0 for t, r in enumerate(rewards)]
        assert alive[episode].tolist() == [t <= end for t in range(4)]
        for t in range(end + 1):
            expected = sum(gamma ** (i - t) * earned[i] for i in range(t, 4))
            assert found[episode, t].item() == pytest.approx(expected, rel=1e-5)


def test_stopping_at_sigma_makes_being_sure_costly() -> None:
    sure, unsure = torch.tensor([[0.9, 0.9, 0.9]]), torch.tensor([[0.6, 0.6, 0.6]])

    def value(reward: torch.Tensor, sigma: float | None) -> float:
        return discounted_returns(reward, alive_steps(reward, sigma), 0.99)[0, 0].item()

    assert value(sure, 0.7) < value(unsure, 0.7)
    assert value(sure, None) > value(unsure, None)


def test_visited_before_lists_what_lies_behind() -> None:
    found = visited_before(torch.tensor([[2, 0, 1]]), 4)
    assert found[0].tolist() == [
        [False, False, False, False],
        [False, False, True, False],
        [True, False, True, False],
    ]


def test_advantages_are_standardised_over_steps_taken() -> None:
    advantages = torch.randn(50, 3)
    alive = torch.rand(50, 3) < 0.7
    by_step = standardise(advantages, alive)
    for step in range(3):
        own = by_step[alive[:, step], step]
        assert own.mean().item() == pytest.approx(0, abs=1e-5)
        assert own.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def _episodes(policy: ActorCritic, count: int = 6, steps: int = 3, cells: int = 5) -> Episodes:
    torch.manual_seed(1)
    chosen = torch.stack([torch.randperm(cells)[:steps] for _ in range(count)])
    alive = torch.ones(count, steps, dtype=torch.bool)
    alive[0, 1:] = False
    alive[1, 2:] = False
    return Episodes(
        states=torch.randn(count, steps, 4),
        descriptors=torch.randn(count, cells, 3),
        visited=visited_before(chosen, cells),
        cells=chosen,
        log_probabilities=torch.randn(count, steps) * 0.3 - 1.5,
        returns=torch.randn(count, steps),
        advantages=torch.randn(count, steps),
        alive=alive,
    )


def test_the_loss_against_plain_loops() -> None:
    torch.manual_seed(0)
    policy = ActorCritic(4, 3, 5, PolicySettings(width=8, memory=6))
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    episodes = _episodes(policy)
    found = ppo_loss(policy, episodes, Stage2Settings(clip_coef=0.2, value_coef=0.5, entropy_coef=0.01))
    output = policy(episodes.states, episodes.descriptors)
    surrogate, value, entropy, kl, clipped, count = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for n in range(6):
        for t in range(3):
            if not episodes.alive[n, t]:
                continue
            count += 1
            scores = [1 / (1 + math.exp(-z)) for z in output.logits[n, t].tolist()]
            behind = set(episodes.cells[n, :t].tolist())
            total = sum(s for cell, s in enumerate(scores) if cell not in behind)
            chances = {cell: s / total for cell, s in enumerate(scores) if cell not in behind}
            ratio = chances[int(episodes.cells[n, t])] / math.exp(episodes.log_probabilities[n, t].item())
            advantage = episodes.advantages[n, t].item()
            surrogate += min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            value += (output.values[n, t].item() - episodes.returns[n, t].item()) ** 2
            entropy -= sum(p * math.log(p) for p in chances.values())
            kl += ratio - 1 - math.log(ratio)
            clipped += abs(ratio - 1) > 0.2
    expected = -(surrogate - 0.5 * value + 0.01 * entropy) / count
    assert found.total.item() == pytest.approx(expected, rel=1e-4)
    assert found.approx_kl.item() == pytest.approx(kl / count, rel=1e-3)
    assert found.clip_fraction.item() == pytest.approx(clipped / count, rel=1e-5)


def test_the_loss_has_finite_gradients() -> None:
    torch.manual_seed(0)
    policy = ActorCritic(4, 3, 5, PolicySettings(width=8, memory=6))
    ppo_loss(policy, _episodes(policy), Stage2Settings()).total.backward()
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_explained_variance_of_perfect_constant_and_absurd_critics() -> None:
    returns, alive = torch.randn(30, 2), torch.ones(30, 2, dtype=torch.bool)
    assert explained_variance(returns, returns, alive).item() == pytest.approx(1)
    assert explained_variance(torch.zeros_like(returns), returns, alive).item() == pytest.approx(0)
    assert explained_variance(-returns, returns, alive).item() == pytest.approx(-3, rel=1e-4)
    assert explained_variance(returns, torch.full_like(returns, 0.1), alive).item() == 0  # nothing to explain
    # Steps that were not taken say nothing.
    values, alive = returns + torch.randn(30, 2), torch.rand(30, 2) < 0.5
    expected = 1 - (returns - values)[alive].var() / returns[alive].var()
    assert explained_variance(values, returns, alive).item() == pytest.approx(expected.item(), abs=1e-5)


def test_steps_not_taken_make_no_nan() -> None:
    torch.manual_seed(0)
    policy = ActorCritic(4, 3, 5, PolicySettings(width=8, memory=6))
    episodes = _episodes(policy)
    impossible = episodes.log_probabilities.masked_fill(~episodes.alive, -1e4)  # a ratio of e^10000
    wild = replace(
        episodes, log_probabilities=impossible, advantages=episodes.advantages.masked_fill(~episodes.alive, -1)
    )
    found = ppo_loss(policy, wild, Stage2Settings())
    expected = ppo_loss(policy, episodes, Stage2Settings())
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    assert found.approx_kl.item() == pytest.approx(expected.approx_kl.item(), rel=1e-4)
    found.total.backward()
    assert all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None)


def test_a_mean_ignores_steps_not_taken() -> None:
    values = torch.tensor([[1.0, float("inf")], [3.0, float("nan")]])
    assert float(mean_alive(values, torch.tensor([[True, False], [True, False]]))) == 2.0
