"""The reward of a step, which is also what ends the search."""

from __future__ import annotations

import torch
from torch import Tensor


def rewards(joint: Tensor, whole: Tensor, labels: Tensor, beta: Tensor | float, temperature: float = 1.0) -> Tensor:
    """r_t = beta (p_joint(y) + p_global(y)).

    joint [N, T, C] and whole [N, C]: scores of the joint and the global prediction; labels [N] or [N, T]; beta
    [N, T], or 1 for RPCNet. Returns [N, T].
    """
    labels = labels if labels.dim() == 2 else labels[:, None].expand(joint.shape[:2])
    of_joint = (joint / temperature).softmax(dim=-1).gather(2, labels[..., None]).squeeze(-1)
    of_global = (whole / temperature).softmax(dim=-1)[:, None].expand_as(joint).gather(2, labels[..., None]).squeeze(-1)
    return beta * (of_joint + of_global)


def steps_taken(reward: Tensor, sigma: float) -> Tensor:
    """How many steps each image takes: up to the first reward of at least sigma, or all T. [N, T] to [N]."""
    steps = reward.shape[1]
    reached = reward >= sigma
    first = reached.to(torch.int8).argmax(dim=1) + 1
    return torch.where(reached.any(dim=1), first, torch.full_like(first, steps))
