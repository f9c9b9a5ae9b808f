"""Stage II: with everything else frozen, the policy learns where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from erpcnet.data import Batch, ImageFeed, ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.locality_tables import FETCHED, LocalityTable, build_table
from erpcnet.model.policy import ActorCritic
from erpcnet.model.reward import rewards
from erpcnet.model.walk import DirectLocalities, Localities, PolicyOrder, walk
from erpcnet.precision import rough_products
from erpcnet.progress import bar
from erpcnet.recording import Recorded
from erpcnet.training.checkpoint import Checkpoint
from erpcnet.training.learner import WATCHED, Learner, shuffled
from erpcnet.training.log import Log, check_finite
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
from erpcnet.training.settings import Stage2Settings
from erpcnet.training.stage1 import seen_targets

# Images [N], their views [N] and the cells [N, T] that were looked at, to states and descriptors: see `Episodes`.
Recall = Callable[[Tensor, Tensor, Tensor], tuple[Rows, Rows]]


class Source(Protocol):
    """Where episodes are played: `images` images, each in `views` views, the first of them plain.

    phi [S, A] are the seen classes' attributes, labels [images] rows of it; `at_once` says how many images to walk
    over together, and `looks_up` that it only reads tensors on the device that stay where they are.
    """

    looks_up: bool
    images: int
    views: int
    at_once: int
    phi: Tensor
    labels: Tensor

    @property
    def generator(self) -> torch.Generator | None:
        """What it draws from, if it leaves anything to chance."""

    def take(self, images: Tensor, view: Tensor) -> Localities:
        """Some images [N], each in one of its views [N], to walk over."""

    @property
    def recall(self) -> Recall | None:
        """Fetches states and descriptors anew, where there are too many to hold."""


class TableSource:
    """All localities of all views, computed once: walks are look-ups. `views` may be fewer than the table holds."""

    generator = None

    def __init__(self, table: LocalityTable, dataset: ZeroShotDataset, views: int) -> None:
        self._table, self.views, self.looks_up = table, views, table.at_hand
        self.images = len(dataset.train)
        self.at_once = self.images if table.at_hand else FETCHED
        self.phi, labels = seen_targets(dataset, table.rows.device)
        self.labels = labels[table.rows[: self.images]]

    def take(self, images: Tensor, view: Tensor) -> Localities:
        return self._table.take(view * self.images + images)

    @property
    def recall(self) -> Recall | None:
        if self._table.at_hand:
            return None
        return lambda images, view, cells: self._table.recall(view * self.images + images, cells)


class DirectSource:
    """Localities computed at each look, by the frozen network; every augmented view is a new one."""

    looks_up, recall = False, None

    def __init__(
        self, network: ERPCNet, dataset: ZeroShotDataset, feed: ImageFeed, settings: Stage2Settings, seed: int
    ) -> None:
        self._network, self._feed = network.eval(), feed
        self._rows = torch.from_numpy(dataset.train)
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.images, self.views, self.at_once = len(dataset.train), settings.views, settings.play_size
        self.phi, labels = seen_targets(dataset, feed.device)
        self.labels = labels[self._rows.to(feed.device)]

    def take(self, images: Tensor, view: Tensor) -> Localities:
        batch = self._feed.views(self._rows[images.cpu()], view > 0, self.generator)
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
    size = settings.play_size

    def batches() -> Iterator[Batch]:
        yield from feed.plain(dataset.train, size)
        for _ in range(settings.views - 1):
            yield from feed.augmented(dataset.train, size, generator)

    count = settings.views * len(dataset.train)
    return build_table(network, batches(), count, what="Localities of the training images")


class PolicyTraining:
    """PPO on the policy of a network whose other parts are done, playing from a source; an epoch at a time."""

    def __init__(self, network: ERPCNet, source: Source, settings: Stage2Settings, seed: int) -> None:
        if network.policy is None:
            raise InputError(f"the variant '{network.variant}' has no policy to train.")
        self._network, self._policy, self._source, self._settings = network, network.policy, source, settings
        self._generator = torch.Generator().manual_seed(seed + 2)
        device = source.phi.device
        recorded = network.graphs and device.type == "cuda"
        self._learner = Learner(network.policy, settings, device, recorded and source.recall is None)
        self._round: Callable[[Tensor, Tensor, Tensor], Round] = partial(play_round, network, source, settings)
        if recorded and source.looks_up:
            self._round = Recorded(self._round, device)
        self._drawn = self.draw()

    def epoch(self) -> dict[str, float]:
        """Walk once over every image and learn from it; what one watches."""
        self._policy.train()
        drawn = self._drawn
        with rough_products(self._network):
            found = self.play(drawn)
            learned = self._learner.learn(found.episodes, drawn.minibatches)
        self._policy.eval()
        self._drawn = self.draw()  # a GPU is still at work
        watched = torch.cat([found.watched, learned]).tolist()  # once: it waits for all that a GPU has to do
        return dict(zip((*PLAYED, *WATCHED), watched, strict=True))

    def play(self, drawn: Draws) -> Round:
        """Walk once over every image, in one of its views; the next round may overwrite what comes back."""
        return self._round(drawn.images, drawn.view, drawn.noise)

    def state_dict(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        return {
            "policy": self._policy.state_dict(),
            "learner": self._learner.state_dict(),
            "chance": self._before,
            "source": None if self._source.generator is None else self._source.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._policy.load_state_dict(state["policy"])
        self._learner.load_state_dict(state["learner"])
        if self._source.generator is not None:
            self._source.generator.set_state(state["source"])
        self._generator.set_state(state["chance"])
        self._drawn = self.draw()

    def draw(self) -> Draws:
        """Leave to chance what an epoch leaves to it."""
        source, generator = self._source, self._generator
        self._before = generator.get_state()
        view = torch.randint(source.views, (source.images,), generator=generator)
        order = torch.randperm(source.images, generator=generator)
        noise = torch.rand(self._network.steps, source.images, self._network.grid.cells, generator=generator)
        minibatches = shuffled(source.images, self._settings, generator)
        return Draws(*(sent(drawn, source.phi.device) for drawn in (order, view[order], noise, minibatches)))


def train_stage2(
    network: ERPCNet,
    source: Source,
    settings: Stage2Settings,
    *,
    seed: int,
    log: Log,
    checkpoint: Checkpoint | None = None,
) -> None:
    """Train pi and V in place, playing from the source; with a checkpoint that was kept on the way, from there on."""
    training = PolicyTraining(network, source, settings, seed)
    checkpoint = checkpoint or Checkpoint()
    done = checkpoint.resume(training)
    with bar("Stage II", settings.epochs) as advance:
        advance(done)
        for epoch in range(done, settings.epochs):
            watch = training.epoch()
            check_finite(watch, f"Stage II, epoch {epoch + 1}", "--stage2.lr")
            log.scalars("stage2", watch, epoch + 1)
            advance(note=f"return {watch['mean_return']:.3f}")
            checkpoint.keep(training, epoch + 1)
    network.zero_grad()  # or they would keep the memory of the recording that wrote them


class Draws(NamedTuple):
    """What an epoch leaves to chance, drawn on the CPU, so that it is the same wherever walks take place.

    Images [N] in random order, a view of each [N], noise [T, N, cells] for the walks, and minibatches [M, size].
    """

    images: Tensor
    view: Tensor
    noise: Tensor
    minibatches: Tensor


def sent(value: Tensor, device: torch.device) -> Tensor:
    """The same where walks take place; a GPU fetches it by itself, without anyone waiting for what it does."""
    return (value.pin_memory() if device.type == "cuda" else value).to(device, non_blocking=True)


@dataclass(frozen=True)
class Round:
    """Episodes of every image, and what one watches of them, `PLAYED`."""

    episodes: Episodes
    watched: Tensor


PLAYED = ("mean_return", "mean_reward", "mean_steps", "explained_variance")


@dataclass(frozen=True)
class Played:
    """What walks went through and earned: see `Episodes`; reward [N, T]. States and descriptors are left out where they
    are recalled.
    """

    states: Tensor | None
    descriptors: Tensor | None
    visited: Tensor
    cells: Tensor
    reward: Tensor
    alive: Tensor


@torch.no_grad()
def play_round(
    network: ERPCNet, source: Source, settings: Stage2Settings, images: Tensor, view: Tensor, noise: Tensor
) -> Round:
    """Walk once over these images of a source, each in one of its views, as many at once as it wants."""
    size, policy = source.at_once, network.policy
    assert policy is not None
    played = [
        play(
            network, source.take(own, seen), source.labels[own], source.phi, settings, drawn, keep=source.recall is None
        )
        for own, seen, drawn in zip(images.split(size), view.split(size), noise.split(size, dim=1), strict=True)
    ]
    visited, cells, reward, alive = (
        _joined([getattr(own, name) for own in played]) for name in ("visited", "cells", "reward", "alive")
    )
    states: Rows
    descriptors: Rows
    if source.recall is not None:
        states, descriptors = source.recall(images, view, cells)
        parts = torch.arange(len(images), device=cells.device).split(size)
        judged = [judge(policy, states[own], descriptors[own], visited[own], cells[own]) for own in parts]
    else:
        held = _joined([own.states for own in played if own.states is not None])
        described = _joined([own.descriptors for own in played if own.descriptors is not None])
        states, descriptors, judged = held, described, [judge(policy, held, described, visited, cells)]
    returns = discounted_returns(reward, alive, settings.gamma, settings.ending == "absorbing")
    values, chances = (_joined([pair[number] for pair in judged]) for number in (0, 1))
    advantages = standardise(returns - values, alive, settings.advantages)
    watched = {
        "mean_return": returns[:, 0].mean(),
        "mean_reward": mean_alive(reward, alive),
        "mean_steps": alive.sum(dim=1).float().mean(),
        "explained_variance": explained_variance(values, returns, alive),
    }
    episodes = Episodes(states, descriptors, visited, cells, chances, returns, advantages, alive)
    return Round(episodes, torch.stack([watched[name] for name in PLAYED]))


def play(
    network: ERPCNet,
    localities: Localities,
    labels: Tensor,
    phi: Tensor,
    settings: Stage2Settings,
    noise: Tensor,
    keep: bool = True,
) -> Played:
    """Walk once over a batch of images, drawing from pi with noise [T, N, cells]; `keep` states and descriptors."""
    policy = network.policy
    assert policy is not None
    seen = walk(network, localities, PolicyOrder(policy, noise), keep=keep)
    joint, whole = network.joint_fit(seen.joint, phi), network.global_fit(seen.whole, phi)
    beta = seen.beta if network.uses_entropy else 1.0
    reward = rewards(joint, whole, labels, beta, settings.temperature)
    # The end of an episode is a question of confidence, which is not tempered.
    certainty = rewards(joint, whole, labels, beta)
    alive = alive_steps(certainty, settings.ending, network.settings.sigma)
    visited = visited_before(seen.cells, network.grid.cells)
    if seen.localities is None:
        return Played(None, None, visited, seen.cells, reward, alive)
    states = torch.cat([localities.embedding[:, None], seen.localities[:, :-1]], dim=1).float()
    return Played(states, localities.descriptors, visited, seen.cells, reward, alive)


def judge(
    policy: ActorCritic, states: Tensor, descriptors: Tensor, visited: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    """V [N, T] along walks, and the log-probability [N, T] that pi gave each cell it chose."""
    outlook = policy(states, descriptors)
    chances = policy.log_probabilities(outlook.scores, visited).gather(2, cells[..., None]).squeeze(-1)
    return outlook.values, chances


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
