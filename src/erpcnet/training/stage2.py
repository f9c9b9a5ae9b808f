"""Stage II: with everything else frozen, the policy learns where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from erpcnet.data import Batch, ImageFeed, ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.policy import ActorCritic
from erpcnet.model.reward import rewards
from erpcnet.model.walk import DirectLocalities, Localities, PolicyOrder, walk
from erpcnet.precision import rough_products
from erpcnet.progress import bar
from erpcnet.training.learner import Learner
from erpcnet.training.log import Log
from erpcnet.training.ppo import (
    Episodes,
    alive_steps,
    discounted_returns,
    explained_variance,
    standardise,
    visited_before,
)
from erpcnet.training.settings import Stage2Settings
from erpcnet.training.stage1 import seen_targets
from erpcnet.training.tables import LocalityTable, build_table


class Source(Protocol):
    """Where episodes are played: `images` images, each in `views` views, the first of them plain.

    phi [S, A] are the seen classes' attributes, labels [images] rows of it; `at_once` says how many images to walk
    over together.
    """

    images: int
    views: int
    at_once: int
    phi: Tensor
    labels: Tensor

    def take(self, images: Tensor, view: Tensor) -> Localities:
        """Some images [N], each in one of its views [N], to walk over."""


class TableSource:
    """All localities of all views, computed once: walks are look-ups. `views` may be fewer than the table holds."""

    def __init__(self, table: LocalityTable, dataset: ZeroShotDataset, views: int) -> None:
        self._table, self.views = table, views
        self.images = self.at_once = len(dataset.train)
        self.phi, labels = seen_targets(dataset, table.rows.device)
        self.labels = labels[table.rows[: self.images]]

    def take(self, images: Tensor, view: Tensor) -> Localities:
        return self._table.take((view * self.images + images).to(self._table.rows.device))


class DirectSource:
    """Localities computed at each look, by the frozen network; every augmented view is a new one."""

    def __init__(
        self, network: ERPCNet, dataset: ZeroShotDataset, feed: ImageFeed, settings: Stage2Settings, seed: int
    ) -> None:
        self._network, self._feed = network.eval(), feed
        self._rows = torch.from_numpy(dataset.train)
        self._generator = torch.Generator().manual_seed(seed + 1)
        self.images, self.views, self.at_once = len(dataset.train), settings.views, settings.play_size
        self.phi, labels = seen_targets(dataset, feed.device)
        self.labels = labels[self._rows.to(feed.device)]

    def take(self, images: Tensor, view: Tensor) -> Localities:
        batch = self._feed.views(self._rows[images], view > 0, self._generator)
        return DirectLocalities(self._network, batch.images)


def open_source(
    network: ERPCNet, dataset: ZeroShotDataset, feed: ImageFeed, settings: Stage2Settings, seed: int
) -> Source:
    """A table where an image has few localities, unless the settings ask for the direct way."""
    if settings.localities == "direct" or not network.tabulable:
        return DirectSource(network, dataset, feed, settings, seed)
    return TableSource(policy_table(network, dataset, feed, settings, seed), dataset, settings.views)


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
    source: Source,
    settings: Stage2Settings,
    *,
    seed: int,
    log: Log,
) -> None:
    """Train pi and V in place, playing from the source."""
    if network.policy is None:
        raise InputError(f"the variant '{network.variant}' has no policy to train.")
    generator = torch.Generator().manual_seed(seed + 2)
    policy = network.policy.train()
    learner = Learner(policy, settings, source.phi.device)
    with bar("Stage II", settings.epochs) as advance, rough_products(network):
        for epoch in range(settings.epochs):
            episodes, watch = judge(policy, play_all(network, source, settings, generator), settings)
            watch |= learner.learn(episodes, generator)
            log.scalars("stage2", watch, epoch + 1)
            advance(note=f"return {watch['mean_return']:.3f}")
    policy.eval()


@torch.no_grad()
def play_all(network: ERPCNet, source: Source, settings: Stage2Settings, generator: torch.Generator) -> list[Played]:
    """Walk once over every image, in one of its views."""
    view = torch.randint(source.views, (source.images,), generator=generator)
    order = torch.randperm(source.images, generator=generator)
    noise = torch.rand(network.steps, source.images, network.grid.cells, generator=generator)
    played = []
    for places in torch.arange(source.images).split(source.at_once):
        own = order[places]
        localities, labels = source.take(own, view[own]), source.labels[own.to(source.labels.device)]
        played.append(play(network, localities, labels, source.phi, settings, noise[:, places]))
    return played


@dataclass(frozen=True)
class Played:
    """What walks went through and earned: see `Episodes`; reward [N, T]."""

    states: Tensor
    descriptors: Tensor
    visited: Tensor
    cells: Tensor
    reward: Tensor
    alive: Tensor


def play(
    network: ERPCNet,
    localities: Localities,
    labels: Tensor,
    phi: Tensor,
    settings: Stage2Settings,
    noise: Tensor,
) -> Played:
    """Walk once over a batch of images, drawing from pi with noise [T, N, cells]."""
    policy = network.policy
    assert policy is not None
    seen = walk(network, localities, PolicyOrder(policy, noise), keep=True)
    assert seen.localities is not None
    joint, whole = network.joint_fit(seen.joint, phi), network.global_fit(seen.whole, phi)
    beta = seen.beta if network.uses_entropy else 1.0
    reward = rewards(joint, whole, labels, beta, settings.temperature)
    # The end of an episode is a question of confidence, which is not tempered.
    certainty = rewards(joint, whole, labels, beta)
    alive = alive_steps(certainty, settings.ending, network.settings.sigma)
    states = torch.cat([localities.embedding[:, None], seen.localities[:, :-1]], dim=1).float()
    visited = visited_before(seen.cells, network.grid.cells)
    return Played(states, localities.descriptors, visited, seen.cells, reward, alive)


@torch.no_grad()
def judge(policy: ActorCritic, played: Sequence[Played], settings: Stage2Settings) -> tuple[Episodes, dict[str, float]]:
    """Returns and advantages of everything played, and what one watches."""
    states, descriptors, visited, cells, reward, alive = (
        torch.cat([getattr(own, name) for own in played]) for name in Played.__dataclass_fields__
    )
    returns = discounted_returns(reward, alive, settings.gamma, settings.ending == "absorbing")
    outlook = policy(states, descriptors)
    chances = policy.log_probabilities(outlook.scores, visited).gather(2, cells[..., None]).squeeze(-1)
    advantages = standardise(returns - outlook.values, alive, settings.advantages)
    watch = {
        "mean_return": float(returns[:, 0].mean()),
        "mean_reward": float(reward[alive].mean()),
        "mean_steps": float(alive.sum(dim=1).float().mean()),
        "explained_variance": explained_variance(outlook.values, returns, alive),
    }
    return Episodes(states, descriptors, visited, cells, chances, returns, advantages, alive), watch
