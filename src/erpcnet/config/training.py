"""Settings of the two stages of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from erpcnet.errors import InputError


@dataclass
class LossWeights:
    """Weights of the losses of Stage I; in the paper each is 1."""

    global_subnet: float = 1.0
    """L_g."""
    local_subnet: float = 0.0
    """L_l."""
    joint_subnet: float = 1.0
    """L_j."""
    highlight: float = 1.0
    """L_m."""


@dataclass
class Stage1Settings:
    """Stage I: everything but the policy, on random localities, without early stop."""

    epochs: int = 20
    """Passes over the training images."""
    min_steps: int = 0
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
    """`step` (times `step_factor` every `step_epochs`) is the paper's; `constant` rises over the first epoch, or 20
    steps."""
    step_epochs: int = 30
    """Epochs between two drops of `step`."""
    step_factor: float = 0.1
    """Drop of `step`."""
    ema_decay: float = 0.999
    """Decay per step of the exponential moving average (EMA) of the weights, which is what is used in the end; 0: the
    last weights, as in the paper."""
    mixup: float = 0.0
    """Blend every image and its label with another's, by a share drawn from Beta(mixup, mixup); 0: not at all."""
    freeze_norms: bool = False
    """The batch norms of the pretrained parts keep the statistics that they were pretrained with."""
    freeze_early: bool = False
    """What comes before the resolution of e^{n-1}, the stem and the first blocks, stays as it was pretrained."""
    detach_global: bool = False
    """f_G learns from L_g alone, as GlobalNet's does: localities and joint head read from it and do not change it."""
    loss_weights: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "step_epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"stage1.{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("lr", "backbone_lr", "mixup", "min_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"stage1.{name} is {getattr(self, name)}; it must not be negative.")
        if not 0 <= self.ema_decay < 1:
            raise InputError(f"stage1.ema_decay is {self.ema_decay}; it must be from 0 to below 1.")

    def passes(self, batches: int) -> int:
        """How often to pass over a dataset that has so many batches."""
        return max(self.epochs, -(-self.min_steps // batches))


@dataclass
class Stage2Settings:
    """Stage II: the policy alone, by PPO."""

    epochs: int = 30
    """Rollouts over every training image."""
    update_epochs: int = 4
    """Passes of PPO over each batch of rollouts."""
    minibatch_size: int = 1024
    """Episodes per gradient step."""
    lr: float = 6e-4
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount."""
    clip_coef: float = 0.2
    """epsilon of the clipped surrogate."""
    value_coef: float = 0.5
    """alpha_1: weight of the value loss."""
    entropy_coef: float = 0.01
    """alpha_2: weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm."""
    reward_temperature: float = 4.0
    """Divides the logits in the reward's softmax; 1 is the paper's. A fitted net is sure of every training image
    wherever it looks, so at 1 there is little to learn from."""
    reward: Literal["answer", "localities"] = "answer"
    """`answer`: the true class's probability by a_j and a_g, as in the paper. `localities`: by an a_j from which e_g is
    hidden, alone. The glance knows training images by heart, so what a locality shows counts for little beside it."""
    stop_at_sigma: bool = False
    """End an episode once its reward reaches sigma, after which nothing is earned, as in the paper: being sure early
    costs reward then. Otherwise every episode has T steps."""
    standardise_advantages: bool = True
    """Standardise advantages over the episodes, step by step; off in the paper."""
    crops: int = 2
    """Crops of each training image that the policy learns on: the centre crop, the others random ones."""
    rollout_batch_size: int = 256
    """Images whose localities are computed at once."""

    def __post_init__(self) -> None:
        for name in ("epochs", "update_epochs", "minibatch_size", "crops", "rollout_batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"stage2.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.stop_at_sigma and self.reward != "answer":
            raise InputError("stage2.stop_at_sigma ends episodes by the reward 'answer'; set stage2.reward to that.")
        if self.reward_temperature <= 0:
            raise InputError(f"stage2.reward_temperature is {self.reward_temperature}; it must be above 0.")
