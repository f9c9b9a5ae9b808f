"""Rollouts: localities selected one after the other, until it is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from erpcnet.model.heads import JointState
from erpcnet.model.localities import Localities
from erpcnet.model.network import ERPCNet
from erpcnet.model.selection import SelectionOrder

FIELDS = ("cells", "steps", "a_g", "a_j", "beta")
# Whether images [M] are done: of a_g [M, A], a_j [M, A] and beta [M] after a step.
Stop = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rollout:
    """What was selected and predicted. Steps that an image did not take hold cell -1, and zeros elsewhere.

    Shapes begin with [N] images, or with [crops, N] where each image is shown in several crops.

    Attributes:
        cells: [..., T], in the order of their selection.
        steps: [...], how many were taken.
        a_g: [..., A].
        a_j: [..., T, A], after each step.
        beta: [..., T], of each selected cell.
        e_l: [..., T, D], the localities, where they were asked for.
    """

    cells: Tensor
    steps: Tensor
    a_g: Tensor
    a_j: Tensor
    beta: Tensor
    e_l: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> Rollout:
        """The same change to all tensors, such as taking some rows."""
        return Rollout(
            **{name: change(getattr(self, name)) for name in FIELDS},
            e_l=None if self.e_l is None else change(self.e_l),
        )

    @staticmethod
    def cat(rollouts: Sequence[Rollout]) -> Rollout:
        """Rollouts over several batches as one."""
        return _combined(rollouts, torch.cat)

    @staticmethod
    def stack(rollouts: Sequence[Rollout]) -> Rollout:
        """Rollouts over several crops of the same images, with a first axis for the crops."""
        return _combined(rollouts, torch.stack)


def _combined(rollouts: Sequence[Rollout], combine: Callable[[list[Tensor]], Tensor]) -> Rollout:
    e_l = [one.e_l for one in rollouts if one.e_l is not None]
    return Rollout(
        **{name: combine([getattr(one, name) for one in rollouts]) for name in FIELDS},
        e_l=combine(e_l) if e_l else None,
    )


def rollout(
    network: ERPCNet,
    localities: Localities,
    order: SelectionOrder,
    *,
    stop: Stop | None = None,
    max_steps: int | None = None,
    keep_localities: bool = False,
    hide_global: bool = False,
) -> Rollout:
    """Select up to T localities of every image; one that is done costs nothing from then on.

    Args:
        network: Whose joint head reads the localities.
        localities: The images, N of them.
        order: Selects the cells.
        stop: Says which images are done after a step (see `erpcnet.model.scoring.StopRule`); without one all take T.
        max_steps: Steps to take at most, in place of T; 0: none, so that the glance alone answers.
        keep_localities: Whether the result holds e_l.
        hide_global: Whether a_j is predicted without e_g, as the joint head learned to; orders see e_g all the same.

    Returns:
        The rollout of N images; GlobalNet's has T = 0.
    """
    result = empty_rollout(network, localities, keep_localities)
    most = network.steps if max_steps is None else min(network.steps, max_steps)
    if most == 0:
        return result
    state = begin_rollout(network, localities, order, hide_global)
    for step in range(most):
        state, a_j, beta = take_step(network, localities, order, result, state, step)
        if stop is not None and step + 1 < most:
            going = ~stop(localities.a_g[state.rows], a_j, beta)
            if not going.all():
                state = state.take(going)
            if len(state.rows) == 0:
                break
    return result


class RolloutState(NamedTuple):
    """Between two steps, of the M images that are not done.

    Attributes:
        rows: [M], which images of the batch they are.
        previous: [M, D], the embedding of the latest locality, or e_g before the first.
        visited: [M, cells] bool.
        joint: What the joint head has accumulated.
    """

    rows: Tensor
    previous: Tensor
    visited: Tensor
    joint: JointState

    def take(self, kept: Tensor) -> RolloutState:
        """Of some of the images, by a mask or by their places."""
        rows, previous, visited, *joint = (part[kept] for part in self.tensors())
        return RolloutState(rows, previous, visited, type(self.joint)(*joint))

    def tensors(self) -> list[Tensor]:
        """All of it, the joint head's fields last."""
        return [self.rows, self.previous, self.visited, *self.joint]


def empty_rollout(network: ERPCNet, localities: Localities, keep_localities: bool = False) -> Rollout:
    """A rollout of no steps yet, for `take_step` to write into."""
    e_g, a_g = localities.e_g, localities.a_g
    # shape[0], here and wherever a rollout comes by: torch.export takes what len() says for a constant.
    count, steps, device = e_g.shape[0], network.steps, e_g.device
    return Rollout(
        cells=torch.full((count, steps), -1, device=device),
        steps=torch.zeros(count, dtype=torch.long, device=device),
        a_g=a_g,
        a_j=a_g.new_zeros(count, steps, a_g.shape[1]),
        beta=torch.zeros(count, steps, device=device),
        e_l=e_g.new_zeros(count, steps, e_g.shape[1]) if keep_localities else None,
    )


def begin_rollout(
    network: ERPCNet, localities: Localities, order: SelectionOrder, hide_global: bool = False
) -> RolloutState:
    """The state of all images before the first step."""
    order.begin(localities)
    e_g = localities.e_g
    rows = torch.arange(e_g.shape[0], device=e_g.device)
    visited = torch.zeros(e_g.shape[0], network.grid.cells, dtype=torch.bool, device=e_g.device)
    return RolloutState(rows, e_g, visited, network.joint.start(torch.zeros_like(e_g) if hide_global else e_g))


def take_step(
    network: ERPCNet, localities: Localities, order: SelectionOrder, result: Rollout, state: RolloutState, step: int
) -> tuple[RolloutState, Tensor, Tensor]:
    """Select, look at and join one more locality of the images that are not done, and write it into `result`.

    Returns:
        The state after it, and of its images a_j [M, A] and the selected cells' beta [M].
    """
    rows = state.rows
    cells = order.select(rows, state.previous, state.visited)
    previous = localities.embed(rows, cells)
    joint = network.joint.add(state.joint, previous, step)
    a_j, beta = network.joint.read(joint), localities.beta[rows, cells]
    # A number would be copied from the host, which the capture of a CUDA graph does not allow.
    result.cells[rows, step], result.steps[rows] = cells, torch.full_like(rows, step + 1)
    result.a_j[rows, step], result.beta[rows, step] = a_j.to(result.a_j.dtype), beta
    if result.e_l is not None:
        result.e_l[rows, step] = previous
    return RolloutState(rows, previous, state.visited.scatter(1, cells[:, None], True), joint), a_j, beta


def truncate(whole: Rollout, steps: Tensor) -> Rollout:
    """A rollout of T steps as it would have been, had each image taken so many `steps` [...] only."""
    beyond = torch.arange(whole.cells.shape[-1], device=steps.device) >= steps[..., None]
    return Rollout(
        cells=whole.cells.masked_fill(beyond, -1),
        steps=steps,
        a_g=whole.a_g,
        a_j=whole.a_j.masked_fill(beyond[..., None], 0),
        beta=whole.beta.masked_fill(beyond, 0),
        e_l=None if whole.e_l is None else whole.e_l.masked_fill(beyond[..., None], 0),
    )
