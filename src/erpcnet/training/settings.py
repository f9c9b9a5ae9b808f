"""Every setting of the two stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from erpcnet.errors import InputError


@dataclass
class LossWeights:
    """Weights of L_g, L_l, L_j and L_m; in the paper each is 1."""

    whole: float = 1.0
    local: float = 0.0
    joint: float = 1.0
    highlight: float = 1.0


@dataclass
class Stage1Settings:
    """Stage I: everything but the policy, on random cells, without early stop."""

    epochs: int = 20
    """Passes over the training images."""
    least_steps: int = 0
    """Optimizer steps to take at least: a small dataset is passed over more often than `epochs`."""
    batch_size: int = 64
    """Images per step, over all processes."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The paper uses SGD."""
    lr: float = 5e-3
    """Highest learning rate."""
    backbone_lr: float = 0.2
    """The share of the learning rate that the backbone gets, and C_l, which begins as a copy of its last block."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-5
    """Weight decay."""
    schedule: Literal["constant", "step", "onecycle"] = "constant"
    """`step` (times `step_factor` every `step_epochs`) is the paper's."""
    step_epochs: int = 30
    """Epochs between two drops of `step`."""
    step_factor: float = 0.1
    """Drop of `step`."""
    warmup_epochs: float = 1.0
    """Epochs over which `constant` rises from 0; 20 steps at least."""
    averaging: float = 0.999
    """Decay per step of the exponential average of the weights that is kept at the end; 0: none, as in the paper."""
    label_smoothing: float = 0.0
    """Of every cross-entropy."""
    mixup: float = 0.0
    """Blend every image and its label with another's, by a share drawn from Beta(mixup, mixup); 0: not at all."""
    freeze_norms: bool = False
    """The batch norms of the pretrained parts keep the statistics that they were pretrained with."""
    freeze_early: bool = False
    """What comes before the resolution of e^{n-1}, the stem and the first blocks, stays as it was pretrained."""
    separate: bool = False
    """f_G learns from L_g alone, as GlobalNet's does: localities and joint head read from it and do not change it."""
    weights: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "step_epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"stage1.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.backbone_lr < 0:
            raise InputError(f"stage1.backbone_lr is {self.backbone_lr}; it must not be negative.")
        if not 0 <= self.averaging < 1:
            raise InputError(f"stage1.averaging is {self.averaging}; it must be from 0 to below 1.")
        if self.mixup < 0:
            raise InputError(f"stage1.mixup is {self.mixup}; it must not be negative.")
        if self.least_steps < 0:
            raise InputError(f"stage1.least_steps is {self.least_steps}; it must not be negative.")

    def passes(self, batches: int) -> int:
        """How often to pass over a dataset that has so many batches."""
        return max(self.epochs, -(-self.least_steps // batches))


@dataclass
class Stage2Settings:
    """Stage II: the policy alone, by PPO."""

    epochs: int = 30
    """Times that every training image is walked over."""
    updates: int = 4
    """Passes of PPO over each round of walks."""
    batch_size: int = 1024
    """Episodes per gradient step."""
    lr: float = 6e-4
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount."""
    clip: float = 0.2
    """epsilon of the clipped surrogate."""
    value_weight: float = 0.5
    """alpha_1."""
    entropy_weight: float = 0.01
    """alpha_2: the bonus for an undecided policy."""
    grad_clip: float = 0.5
    """Largest norm of a gradient."""
    temperature: float = 4.0
    """Divides the scores in the reward's softmax; 1 is the paper's. A fitted net is sure of every training image
    wherever it looks, so at 1 there is little to learn from."""
    ending: Literal["never", "absorbing", "paper"] = "never"
    """How an episode ends in training. `paper`: once the reward passes sigma, and nothing is earned after that, so
    that being sure early costs reward. `absorbing`: the last reward goes on to T. `never`: always T steps."""
    advantages: Literal["step", "batch", "raw"] = "step"
    """Advantages standardised over the episodes at each step, over all of them, or not at all (paper)."""
    views: int = 2
    """Views of each training image that the policy learns on: one plain, the others augmented."""
    localities: Literal["table", "direct"] = "table"
    """`table` computes every locality of every view once; `direct` at each look, as HardNet has to."""
    play_size: int = 256
    """Images whose localities are computed at once."""

    def __post_init__(self) -> None:
        for name in ("epochs", "updates", "batch_size", "views", "play_size"):
            if getattr(self, name) < 1:
                raise InputError(f"stage2.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.temperature <= 0:
            raise InputError(f"stage2.temperature is {self.temperature}; it must be above 0.")
