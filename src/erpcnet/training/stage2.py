"""Stage II: with everything else frozen, the policy learns where to look."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from accelerate import Accelerator
from torch import Tensor

from erpcnet.data import Batch, ImageFeed, ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.reward import rewards
from erpcnet.model.walk import Localities, PolicyOrder, walk
from erpcnet.progress import bar
from erpcnet.training.log import Log
from erpcnet.training.ppo import (
    Episodes,
    alive_steps,
    discounted_returns,
    explained_variance,
    ppo_loss,
    standardise,
    visited_before,
)
from erpcnet.training.settings import Stage2Settings
from erpcnet.training.stage1 import seen_targets
from erpcnet.training.tables import LocalityTable, build_table


def policy_table(
    network: ERPCNet, dataset: ZeroShotDataset, feed: ImageFeed, settings: Stage2Settings, seed: int
) -> LocalityTable:
    """The localities that the policy learns on: a plain view of each training image, and augmented ones."""
    generator = torch.Generator().manual_seed(seed + 1)
    size = settings.batch_size

    def batches() -> Iterator[Batch]:
        yield from feed.plain(dataset.train, size)
        for _ in range(settings.views - 1):
            yield from feed.augmented(dataset.train, size, generator)

    total = settings.views * -(-len(dataset.train) // size)
    return build_table(network, batches(), total, what="Localities of the training images")


def train_stage2(
    network: ERPCNet,
    dataset: ZeroShotDataset,
    table: LocalityTable,
    settings: Stage2Settings,
    *,
    accelerator: Accelerator,
    seed: int,
    log: Log,
) -> None:
    """Train pi and V in place, playing from the table."""
    if network.policy is None:
        raise InputError(f"the variant '{network.variant}' has no policy to train.")
    generator = torch.Generator().manual_seed(seed + 2)
    policy = network.policy.train()
    optimizer = torch.optim.Adam(policy.parameters(), lr=settings.lr)
    phi, places = seen_targets(dataset, accelerator.device)
    labels = places[table.rows]
    images = len(dataset.train)
    with bar("Stage II", settings.epochs) as advance:
        for epoch in range(settings.epochs):
            # Each epoch walks once over every image, in one of its views.
            view = torch.randint(settings.views, (images,), generator=generator)
            order = torch.randperm(images, generator=generator)
            chosen = (view * images + torch.arange(images))[order].to(labels.device)
            episodes, watch = play(network, table.take(chosen), labels[chosen], phi, settings, generator)
            watch |= _update(network, optimizer, episodes, settings, generator, accelerator)
            log.scalars("stage2", watch, epoch + 1)
            advance(note=f"return {watch['mean_return']:.3f}")
    policy.eval()


@torch.no_grad()
def play(
    network: ERPCNet,
    localities: Localities,
    labels: Tensor,
    phi: Tensor,
    settings: Stage2Settings,
    generator: torch.Generator,
) -> tuple[Episodes, dict[str, float]]:
    """Walk once over a batch of images, drawing from pi; returns the episodes and what they earned."""
    policy = network.policy
    assert policy is not None
    seen = walk(network, localities, PolicyOrder(policy, generator), keep=True)
    assert seen.localities is not None
    joint, whole = network.joint_fit(seen.joint, phi), network.global_fit(seen.whole, phi)
    beta = seen.beta if network.uses_entropy else 1.0
    reward = rewards(joint, whole, labels, beta, settings.temperature)
    # The end of an episode is a question of confidence, which is not tempered.
    certainty = rewards(joint, whole, labels, beta)
    alive = alive_steps(certainty, settings.ending, network.settings.sigma)
    returns = discounted_returns(reward, alive, settings.gamma, settings.ending == "absorbing")
    states = torch.cat([localities.embedding[:, None], seen.localities[:, :-1]], dim=1).float()
    visited = visited_before(seen.cells, network.grid.cells)
    outlook = policy(states, localities.descriptors, policy.empty_memory(len(states), states.device))
    chances = policy.log_probabilities(outlook.scores, visited).gather(2, seen.cells[..., None]).squeeze(-1)
    advantages = standardise(returns - outlook.values, alive, settings.advantages)
    episodes = Episodes(states, localities.descriptors, visited, seen.cells, chances, returns, advantages, alive)
    watch = {
        "mean_return": float(returns[:, 0].mean()),
        "mean_reward": float(reward[alive].mean()),
        "mean_steps": float(alive.sum(dim=1).float().mean()),
        "explained_variance": explained_variance(outlook.values, returns, alive),
    }
    return episodes, watch


def _update(
    network: ERPCNet,
    optimizer: torch.optim.Optimizer,
    episodes: Episodes,
    settings: Stage2Settings,
    generator: torch.Generator,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Several passes over the episodes, in minibatches of whole episodes, as the GRU needs them."""
    policy = network.policy
    assert policy is not None
    device = episodes.cells.device
    watched: dict[str, Tensor] = {}
    steps = 0
    for _ in range(settings.updates):
        for rows in torch.randperm(len(episodes.cells), generator=generator).to(device).split(settings.batch_size):
            loss = ppo_loss(policy, episodes.take(rows), settings.clip, settings.value_weight, settings.entropy_weight)
            optimizer.zero_grad()
            accelerator.backward(loss.total)
            torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.grad_clip)
            optimizer.step()
            steps += 1
            for name in ("surrogate", "value", "entropy", "approx_kl", "clip_fraction"):
                watched[name] = watched.get(name, torch.zeros((), device=device)) + getattr(loss, name).detach()
    return {name: float(value) / steps for name, value in watched.items()}
