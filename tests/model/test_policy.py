from __future__ import annotations

import pytest
import torch

from erpcnet.model.policy import ActorCritic
from erpcnet.model.settings import PolicySettings


def _policy(**settings: object) -> ActorCritic:
    torch.manual_seed(0)
    policy = ActorCritic(6, 5, 9, PolicySettings(width=16, memory=8, **settings))  # type: ignore[arg-type]
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return policy


@pytest.mark.parametrize("sees_cells", [True, False])
@pytest.mark.parametrize("shared_encoder", [True, False])
def test_a_sequence_is_its_steps_one_after_the_other(sees_cells: bool, shared_encoder: bool) -> None:
    policy = _policy(sees_cells=sees_cells, shared_encoder=shared_encoder)
    states, descriptors = torch.randn(4, 3, 6), torch.randn(4, 9, 5)
    whole = policy(states, descriptors)
    memory, described = policy.begin(4, states.device), policy.describe_cells(descriptors)
    for step in range(3):
        scores, memory = policy.prefer(states[:, step], described, memory)
        torch.testing.assert_close(scores, whole.scores[:, step])
        torch.testing.assert_close(policy(states[:, : step + 1], descriptors).values, whole.values[:, : step + 1])


def test_sigmoid_scores_are_renormalised_over_unvisited_cells() -> None:
    policy = _policy(scores="sigmoid")
    scores, visited = torch.randn(4, 9), torch.rand(4, 9) < 0.5
    visited[:, 0] = False
    found = policy.log_probabilities(scores, visited).exp()
    open_scores = scores.sigmoid() * ~visited
    torch.testing.assert_close(found, open_scores / open_scores.sum(dim=1, keepdim=True))
    assert (found[visited] == 0).all()


def test_softmax_scores_are_a_variant() -> None:
    policy = _policy(scores="softmax")
    scores, visited = torch.randn(4, 9), torch.zeros(4, 9, dtype=torch.bool)
    torch.testing.assert_close(policy.log_probabilities(scores, visited).exp(), scores.softmax(dim=1))


def test_only_a_policy_that_sees_cells_depends_on_them() -> None:
    states = torch.randn(2, 1, 6)
    for sees_cells in (True, False):
        policy = _policy(sees_cells=sees_cells)
        first, second = (policy(states, torch.randn(2, 9, 5)).scores for _ in range(2))
        assert torch.equal(first, second) is not sees_cells
