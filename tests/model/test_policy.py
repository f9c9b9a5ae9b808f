from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from erpcnet.config import PolicySettings
from erpcnet.model.policy import ActorCritic
from erpcnet.model.selection import PolicyOrder


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


def test_the_largest_logit_is_selected_however_large() -> None:
    """The sigmoids of 20 and of 30 are both 1 in single precision."""
    policy = _policy(sees_cells=False)
    torch.nn.init.zeros_(policy.actor.weight)
    policy.actor.bias.data = torch.tensor([20.0, 25.0, 30.0, 24.0, 29.0, 1.0, 2.0, 3.0, 28.0])
    order, visited = PolicyOrder(policy), torch.zeros(2, 9, dtype=torch.bool)
    rows = torch.arange(2)
    order.begin(SimpleNamespace(descriptors=torch.zeros(2, 9, 5), e_g=torch.zeros(2, 6)))
    found = []
    for _ in range(4):
        cells = order.select(rows, torch.zeros(2, 6), visited)
        visited = visited.scatter(1, cells[:, None], True)
        found.append(cells.tolist())
    assert found == [[2, 2], [4, 4], [8, 8], [1, 1]]
