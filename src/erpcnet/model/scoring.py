"""From what a walk found to logits of the classes: the one place where a_g, a_j and the class bias are combined."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from erpcnet.model.network import Classes, ERPCNet, looks_of
from erpcnet.model.walk import StopRule, Walk

Protocol = Literal["validation", "fixed", "peer"]
Temperatures = tuple[float, float]  # after the glance, and after looks


@dataclass(frozen=True)
class OperatingPoint:
    """What is chosen after training, on validation classes.

    Attributes:
        sigma: A walk ends once the reward reaches it; infinite: never before T steps.
        delta: What calibrated stacking takes off the logits of seen classes.
        protocol: How it was chosen: on `validation` classes, `fixed` by hand, or, as a `peer`, on the test classes.
        temperature: Divides the logits of unseen classes before their softmax is a probability: after the glance, and
            after looks, which leave less doubt. 1 where none was fitted.
        temperature_all: The same for seen and unseen classes together, after delta.
    """

    sigma: float
    delta: float
    protocol: Protocol
    temperature: Temperatures = (1.0, 1.0)
    temperature_all: Temperatures = (1.0, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite sigma is None, since JSON has no infinity."""
        return {**asdict(self), "sigma": None if self.sigma == float("inf") else self.sigma}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> OperatingPoint:
        """What `to_json` gave."""
        known = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**{**known, "sigma": float("inf") if known["sigma"] is None else known["sigma"]})

    def probabilities(self, logits: Tensor, seen: Tensor, looks: Tensor) -> Tensor:
        """Calibrated probabilities of the classes.

        Args:
            logits: [..., C], as `logits_by_step` gives them.
            seen: [C] bool, which of the classes training saw.
            looks: [...], after how many looks these are the logits; 0 is the glance.

        Returns:
            [..., C], which sum to 1.
        """
        of_all, of_unseen = (logits.new_tensor(both) for both in (self.temperature_all, self.temperature))
        temperature = torch.where(seen.any(), of_all, of_unseen)[(looks > 0).long()]
        return (stacked(logits, seen, self.delta) / temperature[..., None]).softmax(dim=-1)


def logits_by_step(network: ERPCNet, walk: Walk, classes: Classes) -> Tensor:
    """Logits of the classes after the glance and after every step.

    The glance is scored as if the localities had said the same, since delta and temperature are for sums of both.

    Args:
        network: The network that walked.
        walk: What it found on N images; after steps that an image did not take there is nothing to go by.
        classes: The C classes to choose from.

    Returns:
        [N, 1 + T, C], before calibrated stacking; GlobalNet has T = 0.
    """
    phi, handicap = classes
    of_global = network.global_fit(walk.whole, phi)
    if network.steps == 0:
        return (of_global - handicap)[:, None]
    of_joint = network.joint_fit(walk.joint, phi)
    glance = network.combine(of_global, of_global, network.steps, handicap)
    steps = network.combine(of_global[:, None], of_joint, looks_of(walk.joint), handicap)
    return torch.cat([glance[:, None], steps], dim=1)


def steps_until(network: ERPCNet, walk: Walk, classes: Classes, sigma: float) -> Tensor:
    """How many of its steps [N] a walk of T steps takes, if it stops at sigma; without a policy nobody stops."""
    if network.policy is None:
        return walk.steps
    return StopRule(sigma, classes).steps_of(network, walk)


def stacked(logits: Tensor, seen: Tensor, delta: float) -> Tensor:
    """Calibrated stacking: logits [..., C] less delta for the classes that training saw [C] bool.

    Among classes of one kind alone, seen or unseen, there is nothing to calibrate.
    """
    mixed = seen.any() & ~seen.all()
    return logits - delta * (seen & mixed)


@torch.inference_mode()
def stopped_scores(network: ERPCNet, walk: Walk, classes: Classes, sigma: float) -> tuple[Tensor, Tensor]:
    """What a walk of T steps would have answered had it stopped at sigma: logits [N, C] and steps [N]."""
    taken = steps_until(network, walk, classes, sigma)
    rows = torch.arange(taken.shape[0], device=taken.device)
    return logits_by_step(network, walk, classes)[rows, taken], taken


@torch.inference_mode()
def glance_scores(network: ERPCNet, walk: Walk, classes: Classes) -> Tensor:
    """What was to be answered after the glance: logits [N, C]."""
    return logits_by_step(network, walk, classes)[:, 0]
