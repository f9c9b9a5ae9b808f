"""Walking over an image: one locality after the other, in some order, until it is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from erpcnet.model.network import Classes, ERPCNet, looks_of
from erpcnet.model.policy import ActorCritic
from erpcnet.model.reward import rewards, steps_taken


class Localities(Protocol):
    """A batch of images to walk over: e_g [N, D], a_g [N, A], descriptors [N, cells, F], beta [N, cells]."""

    embedding: Tensor
    attributes: Tensor
    descriptors: Tensor
    beta: Tensor

    def look(self, rows: Tensor, cells: Tensor) -> Tensor:
        """e_l [M, D] of one cell each of the images `rows` [M]."""


class DirectLocalities:
    """Localities computed when they are looked at."""

    def __init__(self, network: ERPCNet, images: Tensor) -> None:
        glance = network.glance(images)
        self.embedding, self.attributes = glance.embedding, glance.attributes
        self.descriptors, self.beta = network.describe(glance.surface)
        self._network, self._surface = network, glance.surface

    def look(self, rows: Tensor, cells: Tensor) -> Tensor:
        whole = rows.shape[0] == self._surface.shape[0]
        return self._network.look(self._surface if whole else self._surface[rows], cells[:, None])[:, 0]


class ParallelLocalities(DirectLocalities):
    """Every locality [N, cells, D] computed at once, in one large batch; each look is a look-up. GlobalNet has none.

    More arithmetic than a walk needs, in fewer and larger steps: faster where launches cost more than arithmetic.
    """

    def __init__(self, network: ERPCNet, images: Tensor) -> None:
        super().__init__(network, images)
        every = torch.arange(network.grid.cells, device=images.device).expand(images.shape[0], -1)
        self.localities = network.look(self._surface, every) if network.steps else self.embedding[:, None][:, :0]

    def look(self, rows: Tensor, cells: Tensor) -> Tensor:
        return self.localities[rows, cells]


class Order(Protocol):
    """Chooses the next cell of each image."""

    def begin(self, localities: Localities) -> None:
        """A new batch of images."""

    def choose(self, rows: Tensor, latest: Tensor, visited: Tensor) -> Tensor:
        """The next cell [M] of the images `rows` [M], given e_g or the last e_l [M, D] and `visited` [M, cells]."""


class FixedOrder:
    """The same cells for every image."""

    def __init__(self, cells: Tensor) -> None:
        self._rank = cells.argsort()

    def begin(self, localities: Localities) -> None:
        self._rank = self._rank.to(localities.beta.device)

    def choose(self, rows: Tensor, latest: Tensor, visited: Tensor) -> Tensor:
        late = self._rank.max() + 1
        return torch.where(visited, late, self._rank).argmin(dim=1)


class RandomOrder:
    """Any unvisited cell. The draws depend on the seed and on an image's place in the walk, not on who else runs."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._rank = torch.empty(0)

    def begin(self, localities: Localities) -> None:
        beta = localities.beta
        self._rank = torch.rand(beta.shape, generator=self._generator).to(beta.device)

    def choose(self, rows: Tensor, latest: Tensor, visited: Tensor) -> Tensor:
        return self._rank[rows].masked_fill(visited, 2.0).argmin(dim=1)


class EntropyOrder:
    """Highest beta first: no learning."""

    def begin(self, localities: Localities) -> None:
        self._beta = localities.beta

    def choose(self, rows: Tensor, latest: Tensor, visited: Tensor) -> Tensor:
        return self._beta[rows].masked_fill(visited, float("-inf")).argmax(dim=1)


class PolicyOrder:
    """What pi prefers; with noise, a draw from pi.

    noise [T, N, cells], uniform from 0 to 1, is made beforehand: so the draws depend on neither the device nor how
    images are batched.
    """

    def __init__(self, policy: ActorCritic, noise: Tensor | None = None) -> None:
        self._policy, self._noise = policy, noise

    def begin(self, localities: Localities) -> None:
        self._step = 0
        self._described = self._policy.describe_cells(localities.descriptors)
        self._memory = self._policy.begin(localities.embedding.shape[0], localities.embedding.device)

    def choose(self, rows: Tensor, latest: Tensor, visited: Tensor) -> Tensor:
        described = None if self._described is None else self._described[rows]
        scores, self._memory[rows] = self._policy.prefer(latest.float(), described, self._memory[rows])
        chances = self._policy.log_probabilities(scores, visited)
        if self._noise is not None:  # Gumbel's trick
            noise = self._noise[self._step].to(chances.device)[rows].clamp_min(1e-9)
            chances = chances - (-noise.log()).log()
        self._step += 1
        return chances.argmax(dim=1)


def usual_order(network: ERPCNet, seed: int) -> Order:
    """The order a variant looks in: its policy, or chance."""
    return RandomOrder(seed) if network.policy is None else PolicyOrder(network.policy)


@dataclass(frozen=True)
class StopRule:
    """End an image's walk once beta (p_joint + p_global) of the best class reaches sigma.

    The softmax runs over the candidates; neither delta nor their handicaps have a part in it: how sure one is of a
    class does not depend on calibration. The best class is that of the answer before delta.
    """

    sigma: float
    classes: Classes

    def confidence(
        self, network: ERPCNet, whole: Tensor, joint: Tensor, beta: Tensor, first: int = 1
    ) -> tuple[Tensor, Tensor]:
        """a_g [N, A], a_j [N, T, A], beta [N, T] to the answer's scores [N, T, C], and the reward [N, T] with the
        predicted label in the true one's place; `first` is how many looks the first of them comes after.
        """
        phi, handicap = self.classes
        of_joint, of_global = network.joint_fit(joint, phi), network.global_fit(whole, phi)
        answer = network.combine(of_global[:, None], of_joint, looks_of(joint, first), handicap)
        return answer, rewards(of_joint, of_global, answer.argmax(dim=2), beta if network.uses_entropy else 1.0)

    def reward_of(self, network: ERPCNet, seen: Walk) -> Tensor:
        """The reward [N, T] after every step of a walk, which is compared with sigma."""
        return self.confidence(network, seen.whole, seen.joint, seen.beta)[1]

    def steps_of(self, network: ERPCNet, seen: Walk) -> Tensor:
        """How many of the T steps of a walk each image takes [N]."""
        return steps_taken(self.reward_of(network, seen), self.sigma)


@dataclass(frozen=True)
class Walk:
    """What a walk saw. Steps that an image did not take hold cell -1, and zeros elsewhere.

    cells [N, T]; steps [N]; whole a_g [N, A]; joint a_j after each step [N, T, A]; beta of each chosen cell
    [N, T]; localities e_l [N, T, D] where they were asked for.
    """

    cells: Tensor
    steps: Tensor
    whole: Tensor
    joint: Tensor
    beta: Tensor
    localities: Tensor | None

    @staticmethod
    def join(walks: Sequence[Walk]) -> Walk:
        """Walks over several batches as one."""
        return walks[0]._each(lambda name: torch.cat([getattr(one, name) for one in walks]))

    def first(self, count: int) -> Walk:
        """The walks over the first `count` images."""
        return self._each(lambda name: getattr(self, name)[:count])

    def _each(self, change: Callable[[str], Tensor]) -> Walk:
        """A walk of other tensors, made by name; of localities only where they were kept."""
        names = ("cells", "steps", "whole", "joint", "beta")
        localities = None if self.localities is None else change("localities")
        return Walk(**{name: change(name) for name in names}, localities=localities)


def walk(
    network: ERPCNet,
    localities: Localities,
    order: Order,
    *,
    stop: StopRule | None = None,
    keep: bool = False,
) -> Walk:
    """Take up to T steps over every image; one that is sure enough stops and costs nothing from then on."""
    embedding, whole = localities.embedding, localities.attributes
    # shape[0], here and wherever a walk comes by: torch.export takes what len() says for a constant.
    count, steps, device = embedding.shape[0], network.steps, embedding.device
    record = Walk(
        cells=torch.full((count, steps), -1, device=device),
        steps=torch.zeros(count, dtype=torch.long, device=device),
        whole=whole,
        joint=whole.new_zeros(count, steps, whole.shape[1]),
        beta=torch.zeros(count, steps, device=device),
        localities=embedding.new_zeros(count, steps, embedding.shape[1]) if keep else None,
    )
    if steps == 0:
        return record
    order.begin(localities)
    rows = torch.arange(count, device=device)
    state, latest = network.joint.start(embedding), embedding
    visited = torch.zeros(count, network.grid.cells, dtype=torch.bool, device=device)
    for step in range(steps):
        cells = order.choose(rows, latest, visited)
        latest = localities.look(rows, cells)
        state = network.joint.add(state, latest, step)
        joint, beta = network.joint.read(state), localities.beta[rows, cells]
        # A number would be copied from the host, which a recording does not allow.
        record.cells[rows, step], record.steps[rows] = cells, torch.full_like(rows, step + 1)
        record.joint[rows, step], record.beta[rows, step] = joint.to(record.joint.dtype), beta
        if record.localities is not None:
            record.localities[rows, step] = latest
        visited = visited.scatter(1, cells[:, None], True)
        if stop is not None and step + 1 < steps:
            reward = stop.confidence(network, whole[rows], joint[:, None], beta[:, None], first=step + 1)[1][:, 0]
            going = reward < stop.sigma
            if not going.all():
                rows, latest, visited = rows[going], latest[going], visited[going]
                state = type(state)(*(part[going] for part in state))
            if len(rows) == 0:
                break
    return record


def cut_short(network: ERPCNet, seen: Walk, stop: StopRule) -> Walk:
    """A walk of T steps as `walk` would have left it, had it stopped by this rule."""
    taken = stop.steps_of(network, seen)
    beyond = torch.arange(seen.cells.shape[1], device=taken.device) >= taken[:, None]
    return Walk(
        cells=seen.cells.masked_fill(beyond, -1),
        steps=taken,
        whole=seen.whole,
        joint=seen.joint.masked_fill(beyond[..., None], 0),
        beta=seen.beta.masked_fill(beyond, 0),
        localities=None if seen.localities is None else seen.localities.masked_fill(beyond[..., None], 0),
    )
