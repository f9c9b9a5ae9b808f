from __future__ import annotations

import copy

import pytest
import torch

from erpcnet.config import PolicySettings, Stage2Settings
from erpcnet.model.policy import ActorCritic
from erpcnet.training.ppo import Episodes, ppo_loss, visited_before
from erpcnet.training.ppo_update import DIAGNOSTICS, PADDING, PPOUpdate, minibatch, shuffle_minibatches

COUNT, STEPS, CELLS = 10, 3, 9


def _policy() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(5, 4, CELLS, PolicySettings(width=8, memory=6))


def _episodes() -> Episodes:
    torch.manual_seed(1)
    cells = torch.stack([torch.randperm(CELLS)[:STEPS] for _ in range(COUNT)])
    return Episodes(
        states=torch.randn(COUNT, STEPS, 5),
        descriptors=torch.randn(COUNT, CELLS, 4),
        visited=visited_before(cells, CELLS),
        cells=cells,
        log_probabilities=-2 + 0.1 * torch.randn(COUNT, STEPS),
        returns=torch.randn(COUNT, STEPS),
        advantages=torch.randn(COUNT, STEPS),
        alive=torch.rand(COUNT, STEPS) < 0.7,
    )


def test_padding_changes_neither_loss_nor_gradient() -> None:
    episodes, rows = _episodes(), torch.tensor([7, 2, 4])
    filled_up = minibatch(episodes, torch.tensor([7, 2, 4, PADDING, PADDING]))
    found = []
    for batch in (episodes.take(rows), filled_up):
        policy = _policy()
        loss = ppo_loss(policy, batch, Stage2Settings())
        loss.total.backward()
        found.append([loss.approx_kl, loss.clip_fraction, *(p.grad for p in policy.parameters())])
    assert len(filled_up.cells) == 5
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain)


def test_an_update_is_adams_by_hand() -> None:
    episodes, policy = _episodes(), _policy()
    settings = Stage2Settings(update_epochs=2, minibatch_size=4, lr=1e-2)
    by_hand = copy.deepcopy(policy)
    minibatches = shuffle_minibatches(COUNT, settings, torch.Generator().manual_seed(0))
    diagnostics = PPOUpdate(policy, settings, torch.device("cpu"))(episodes, minibatches)
    optimizer, generator = torch.optim.Adam(by_hand.parameters(), lr=1e-2), torch.Generator().manual_seed(0)
    entropies = []
    for _ in range(2):
        order = torch.randperm(COUNT, generator=generator)
        for rows in (order[:4], order[4:8], order[8:]):  # 10 in minibatches of at most 4
            loss = ppo_loss(by_hand, episodes.take(rows), settings)
            optimizer.zero_grad()
            loss.total.backward()
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), settings.max_grad_norm)
            optimizer.step()
            entropies.append(loss.entropy.item())
    assert diagnostics[DIAGNOSTICS.index("entropy")].item() == pytest.approx(sum(entropies) / 6)
    for found, expected in zip(policy.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_a_captured_update_ends_where_a_plain_one_does() -> None:
    device = torch.device("cuda")
    settings = Stage2Settings(update_epochs=4, minibatch_size=4, lr=1e-3)
    episodes = Episodes(**{name: value.to(device) for name, value in vars(_episodes()).items()})
    found = []
    for cuda_graph in (False, True):
        policy = _policy().to(device)
        update, generator = PPOUpdate(policy, settings, device, cuda_graph), torch.Generator().manual_seed(0)
        # Another number of episodes needs another graph.
        for some in (episodes, episodes.take(torch.arange(7, device=device)), episodes):
            diagnostics = update(some, shuffle_minibatches(len(some.cells), settings, generator).to(device))
        found.append((diagnostics, policy.state_dict()))
        assert not cuda_graph or (update._step is not None and update._step.captured)
    (plain_diagnostics, plain), (diagnostics, weights) = found
    for name, value in plain.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(diagnostics, plain_diagnostics, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "most"), [(10_320, 1024), (7057, 1024), (1025, 1024), (1024, 1024), (5, 1024), (10, 4)]
)
def test_every_minibatch_has_nearly_as_many_episodes(count: int, most: int) -> None:
    settings = Stage2Settings(update_epochs=2, minibatch_size=most)
    found = shuffle_minibatches(count, settings, torch.Generator().manual_seed(0))
    sizes = (found != PADDING).sum(dim=1)
    assert sizes.max() <= most
    assert len(found) == 2 * -(-count // most)  # as many steps as before
    assert sizes.min() > sizes.max() - -(-count // most)
    for rows in found.chunk(2):
        assert sorted(rows[rows != PADDING].tolist()) == list(range(count))


def test_how_a_step_runs_is_no_checkpoints_business() -> None:
    """Begun where steps are no CUDA graphs, and resumed where they are: Adam must be able to be captured."""
    episodes, settings = _episodes(), Stage2Settings(update_epochs=1, minibatch_size=4)
    update = PPOUpdate(_policy(), settings, torch.device("cpu"))
    update(episodes, shuffle_minibatches(COUNT, settings, torch.Generator().manual_seed(0)))
    stored, resumed = copy.deepcopy(update.state_dict()), PPOUpdate(_policy(), settings, torch.device("cpu"))
    resumed._optimizer.param_groups[0]["capturable"] = True
    resumed.load_state_dict(stored)
    (group,) = resumed._optimizer.param_groups
    assert group["capturable"]
    assert group["lr"] == settings.lr
    steps = {float(one["step"]) for one in resumed._optimizer.state_dict()["state"].values()}
    assert steps == {float(one["step"]) for one in stored["state"].values()} != {0.0}
