"""The reward of a step, which is also what ends the search."""

from __future__ import annotations

import torch
from torch import Tensor


def rewards(
    joint_logits: Tensor, global_logits: Tensor | None, labels: Tensor, beta: Tensor | float, temperature: float = 1.0
) -> Tensor:
    """r_t = beta (p_joint(y) + p_global(y)), or beta p_joint(y) where there are no global logits.

    Args:
        joint_logits: [..., T, C], of a_j after each step.
        global_logits: [..., C], of a_g.
        labels: [..., T], y.
        beta: [..., T], or 1 for RPCNet.
        temperature: Divides both logits.

    Returns:
        [..., T].
    """
    of_joint = (joint_logits / temperature).softmax(dim=-1).gather(-1, labels[..., None]).squeeze(-1)
    if global_logits is None:
        return beta * of_joint
    of_global = (global_logits / temperature).softmax(dim=-1).gather(-1, labels)
    return beta * (of_joint + of_global)


def steps_taken(reward: Tensor, sigma: float) -> Tensor:
    """How many steps each image takes: up to the first reward of at least sigma, or all T. [..., T] to [...].

    A sigma of 0 is reached before the first step: the glance alone.
    """
    steps = reward.shape[-1]
    if sigma <= 0:
        return torch.zeros(reward.shape[:-1], dtype=torch.long, device=reward.device)
    reached = reward >= sigma
    first = reached.to(torch.int8).argmax(dim=-1) + 1
    return torch.where(reached.any(dim=-1), first, torch.full_like(first, steps))
