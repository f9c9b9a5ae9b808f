"""Scoring: from a rollout to logits and probabilities of the classes.

The one place where a_g, a_j, the class bias and delta are combined, and taken apart again; evaluation, prediction,
export and analyses use it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from erpcnet.errors import InputError
from erpcnet.model.network import Classes, ERPCNet
from erpcnet.model.reward import rewards, steps_taken
from erpcnet.model.rollout import Rollout

LEAST_TEMPERATURE = 1e-3
Protocol = Literal["validation", "fixed", "test"]
Temperatures = tuple[float, float]  # after the glance, and after localities


@dataclass(frozen=True)
class OperatingPoint:
    """What is chosen after training, on validation classes.

    Attributes:
        sigma: A rollout ends once the reward reaches it; infinite: never before T steps; 0: before the first, which
            leaves the glance alone.
        delta: What calibrated stacking subtracts from the logits of seen classes.
        protocol: How it was chosen: on `validation` classes, `fixed` by hand, or on the `test` classes.
        temperature: Divides the logits of unseen classes before their softmax is a probability: after the glance, and
            after localities, which leave less doubt. 1 where none was fitted.
        temperature_all: The same for seen and unseen classes together, after delta.
        reject: A picture whose largest logit, after delta, is below this is of none of the classes; None: not chosen.
    """

    sigma: float
    delta: float
    protocol: Protocol
    temperature: Temperatures = (1.0, 1.0)
    temperature_all: Temperatures = (1.0, 1.0)
    reject: float | None = None

    def __post_init__(self) -> None:
        temperatures = (*self.temperature, *self.temperature_all)
        numbers = (self.sigma, self.delta, *temperatures, *(() if self.reject is None else (self.reject,)))
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
            raise InputError("an operating point's sigma, delta and temperatures are numbers.")
        if not self.sigma >= 0 or not math.isfinite(self.delta) or not math.isfinite(self.reject or 0.0):
            raise InputError(f"sigma is {self.sigma} and delta {self.delta}; they must be 0 or more, and finite.")
        if len(temperatures) != 4 or not all(LEAST_TEMPERATURE <= one <= 1 / LEAST_TEMPERATURE for one in temperatures):
            raise InputError("an operating point has two temperatures of unseen and two of all classes, above 0.")
        if self.protocol not in get_args(Protocol):
            raise InputError(f"an operating point's protocol is one of {', '.join(get_args(Protocol))}.")

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite sigma is None, since JSON has no infinity."""
        return {**asdict(self), "sigma": None if self.sigma == float("inf") else self.sigma}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> OperatingPoint:
        """What `to_json` gave.

        Raises:
            InputError: It is something else.
        """
        try:
            known = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
            known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
            return cls(**{**known, "sigma": math.inf if known["sigma"] is None else known["sigma"]})
        except (AttributeError, KeyError, TypeError, OverflowError):
            raise InputError("this is no operating point.") from None

    def probabilities(self, logits: Tensor, seen: Tensor, steps: Tensor) -> Tensor:
        """Calibrated probabilities of the classes.

        Args:
            logits: [..., C], as `Answers` holds them.
            seen: [C] bool, which of the classes are seen ones.
            steps: [...], after how many steps these are the logits; 0 is the glance.

        Returns:
            [..., C], which sum to 1.
        """
        of_all, of_unseen = (logits.new_tensor(both) for both in (self.temperature_all, self.temperature))
        temperature = torch.where(seen.any(), of_all, of_unseen)[(steps > 0).long()]
        return (stack_logits(logits, seen, self.delta) / temperature[..., None]).softmax(dim=-1)

    def rejects(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Whether so little fits that an image is of none of the classes: never, where `reject` was not chosen.

        Args:
            logits: [..., C], as `Answers` holds them.
            seen: [C] bool, which of the classes are seen ones.

        Returns:
            [...] bool.
        """
        return largest_logit(logits, seen, self.delta) < (-math.inf if self.reject is None else self.reject)


class ClassLogits(NamedTuple):
    """Logits of C classes: of a_g [..., C] and of a_j [..., T, C] by themselves, and of the answer [..., T, C]."""

    of_global: Tensor
    of_joint: Tensor
    answer: Tensor


def class_logits(network: ERPCNet, a_g: Tensor, a_j: Tensor, classes: Classes) -> ClassLogits:
    """What is answered after each step is a_j + a_g, each less the class bias.

    Args:
        network: Whose compatibilities are used.
        a_g: [..., A].
        a_j: [..., T, A].
        classes: The C classes to choose from.
    """
    of_global = network.global_compatibility(a_g, classes.phi)
    of_joint = network.joint_compatibility(a_j, classes.phi)
    return ClassLogits(of_global, of_joint, _combine(of_global[..., None, :], of_joint, classes))


def _combine(of_global: Tensor, of_joint: Tensor, classes: Classes) -> Tensor:
    return (of_joint - classes.bias) + (of_global - classes.bias)


def _glance_logits(network: ERPCNet, of_global: Tensor, classes: Classes) -> Tensor:
    """Of the glance alone [..., C]: as if the localities had said the same, where there are any."""
    return _combine(of_global, of_global, classes) if network.steps else of_global - classes.bias


def class_offsets(network: ERPCNet, classes: Classes, seen: Tensor, delta: float) -> Tensor:
    """What the logits of the C classes [C] would be without any attribute: less the class biases and delta.

    Args:
        network: Whose logits they are; after the glance and after every step the offsets are the same.
        classes: The C classes.
        seen: [C] bool, which of them are seen ones.
        delta: Of calibrated stacking.
    """
    return stack_logits(_glance_logits(network, classes.phi.new_zeros(len(classes.phi)), classes), seen, delta)


def attribute_evidence(
    network: ERPCNet, a_g: Tensor, a_j: Tensor | None, phi: Tensor, parts: Tensor | None = None
) -> Tensor:
    """What each attribute adds to the logit of one class, place by place; with its offset they add up to the logit.

    Args:
        network: Whose compatibilities are used.
        a_g: [..., A].
        a_j: [..., A]; None: of the glance alone.
        phi: The row [..., A] of each image's class.
        parts: [..., P, A], whose sum is a_j: what the glance and each locality add to it (see `JointHead.parts`). By
            default all of it is of one place.

    Returns:
        [..., P, A]: the glance first, with all of a_g.
    """
    of_global = network.global_compatibility.contributions(a_g, phi)[..., None, :]
    if a_j is None:
        return 2 * of_global if network.steps else of_global
    a_j, phi = a_j[..., None, :], phi[..., None, :]
    of_joint = network.joint_compatibility.contributions(a_j, phi, parts)
    return torch.cat([of_global + of_joint[..., :1, :], of_joint[..., 1:, :]], dim=-2)


def stack_logits(logits: Tensor, seen: Tensor, delta: float) -> Tensor:
    """Calibrated stacking: logits [..., C] less delta for the seen classes [C] bool.

    Among classes of one kind alone, seen or unseen, there is nothing to calibrate.
    """
    mixed = seen.any() & ~seen.all()
    return logits - delta * (seen & mixed)


def largest_logit(logits: Tensor, seen: Tensor, delta: float) -> Tensor:
    """What rejection goes by [...]: the largest of the logits [..., C] after calibrated stacking."""
    return stack_logits(logits, seen, delta).amax(dim=-1)


@dataclass(frozen=True)
class StopRule:
    """Early stop: an image is done once beta (p_joint + p_global) of the best class reaches sigma.

    The softmax runs over the candidates; neither delta nor the class bias has a part in it: how sure one is of a
    class does not depend on calibration. The best class is that of the answer before delta.
    """

    network: ERPCNet
    classes: Classes
    sigma: float

    @property
    def max_steps(self) -> int | None:
        """0 where the glance alone answers; None: as many as there are."""
        return 0 if self.sigma <= 0 else None

    def __call__(self, a_g: Tensor, a_j: Tensor, beta: Tensor) -> Tensor:
        """Whether images [M] are done, given a_g [M, A], a_j [M, A] and beta [M] after a step."""
        logits = class_logits(self.network, a_g, a_j[:, None], self.classes)
        return ~(_stop_reward(self.network, logits, beta[:, None])[:, 0] < self.sigma)

    def rewards(self, rollout: Rollout) -> Tensor:
        """The reward [..., T] after every step of a rollout, which is compared with sigma."""
        logits = class_logits(self.network, rollout.a_g, rollout.a_j, self.classes)
        return _stop_reward(self.network, logits, rollout.beta)


def _stop_reward(network: ERPCNet, logits: ClassLogits, beta: Tensor) -> Tensor:
    """The reward [..., T], with the predicted label in the true one's place."""
    labels = logits.answer.argmax(dim=-1)
    return rewards(logits.of_joint, logits.of_global, labels, beta if network.uses_entropy else 1.0)


@dataclass(frozen=True)
class Answers:
    """What is answered about N images, the logits of their crops averaged.

    Attributes:
        logits: [N, 1 + T, C], after the glance and after each step, before calibrated stacking; a crop that is done
            keeps what it had.
        steps: [crops, N], how many steps each took.
    """

    logits: Tensor
    steps: Tensor

    @property
    def final(self) -> Tensor:
        """The logits [N, C] in the end."""
        return self.logits[:, -1]

    @property
    def glance(self) -> Tensor:
        """The logits [N, C] after the glance."""
        return self.logits[:, 0]

    @property
    def mean_steps(self) -> Tensor:
        """Steps [N], averaged over crops."""
        return self.steps.double().mean(dim=0)


@dataclass(frozen=True)
class ScoredRollout:
    """Logits of the classes along a rollout, from which the answers at every sigma can be read.

    Attributes:
        logits: [crops, N, 1 + T, C], after the glance and after every step. The glance is scored as if the localities
            had said the same, since delta and temperature are for sums of both.
        reward: [crops, N, T], what is compared with sigma.
        stops: Whether there is a policy, without which nothing stops.
    """

    logits: Tensor
    reward: Tensor
    stops: bool

    def steps(self, sigma: float) -> Tensor:
        """How many steps [crops, N] are taken with early stop at sigma, of a rollout of T steps."""
        if self.stops:
            return steps_taken(self.reward, sigma)
        return torch.full(self.reward.shape[:-1], self.reward.shape[-1], device=self.reward.device)

    def answers(self, steps: Tensor) -> Answers:
        """The answers, if so many `steps` [crops, N] are taken."""
        reached = torch.arange(self.logits.shape[2], device=steps.device).minimum(steps[..., None])
        held = self.logits.gather(2, reached[..., None].expand(-1, -1, -1, self.logits.shape[3]))
        return Answers(held.mean(dim=0), steps)

    def stopped(self, sigma: float) -> Answers:
        """The answers with early stop at sigma."""
        return self.answers(self.steps(sigma))


@torch.no_grad()
def score(network: ERPCNet, rollout: Rollout, classes: Classes) -> ScoredRollout:
    """Score the classes along a rollout.

    Args:
        network: The network that made it.
        rollout: Of [crops, N] images.
        classes: The C classes to choose from.
    """
    if network.steps == 0:
        of_global = network.global_compatibility(rollout.a_g, classes.phi)
        return ScoredRollout(_glance_logits(network, of_global, classes)[:, :, None], rollout.beta, stops=False)
    logits = class_logits(network, rollout.a_g, rollout.a_j, classes)
    glance = _glance_logits(network, logits.of_global, classes)[:, :, None]
    reward = _stop_reward(network, logits, rollout.beta)
    return ScoredRollout(torch.cat([glance, logits.answer], dim=2), reward, stops=network.policy is not None)
