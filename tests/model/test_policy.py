from __future__ import annotations

import pytest
import torch

from erpcnet.config import PolicySettings
from erpcnet.model.policy import ActorCritic


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
    memory, encoded = policy.initial_memory(4, states.device), policy.encode_cells(descriptors)
    for step in range(3):
        logits, memory = policy.step(states[:, step], encoded, memory)
        torch.testing.assert_close(logits, whole.logits[:, step])
        torch.testing.assert_close(policy(states[:, : step + 1], descriptors).values, whole.values[:, : step + 1])


def test_sigmoids_are_renormalised_over_unvisited_cells() -> None:
    policy = _policy()
    logits, visited = torch.randn(4, 9), torch.rand(4, 9) < 0.5
    visited[:, 0] = False
    found = policy.log_probabilities(logits, visited).exp()
    left = logits.sigmoid() * ~visited
    torch.testing.assert_close(found, left / left.sum(dim=1, keepdim=True))
    assert (found[visited] == 0).all()


def test_only_a_policy_that_sees_cells_depends_on_them() -> None:
    states = torch.randn(2, 1, 6)
    for sees_cells in (True, False):
        policy = _policy(sees_cells=sees_cells)
        first, second = (policy(states, torch.randn(2, 9, 5)).logits for _ in range(2))
        assert torch.equal(first, second) is not sees_cells
