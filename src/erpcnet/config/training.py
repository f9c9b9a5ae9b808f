"""Settings of the two stages of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from erpcnet.config.ranges import Settings, ranged
from erpcnet.errors import InputError


@dataclass
class LossWeights(Settings):
    """Weights of the losses of Stage I; in the paper each is 1."""

    global_subnet: float = ranged(1.0, 0, 1e6)
    """L_g, from which a_g is learned: the paper's."""
    local_subnet: float = ranged(0.0, 0, 1e6)
    """L_l; 1 in the paper. It makes even an empty corner name the class: 3 points of a_g on CUB's validation classes,
    and nothing gained."""
    joint_subnet: float = ranged(1.0, 0, 1e6)
    """L_j, from which a_j is learned: the paper's."""
    highlight: float = ranged(1.0, 0, 1e6)
    """L_m: the paper's. On CUB and on creatures it neither helps nor harms."""

    @classmethod
    def _prefix(cls) -> str:
        return "stage1.loss_weights."


@dataclass
class Stage1Settings(Settings):
    """Stage I: everything but the policy, on random localities, without early stop."""

    epochs: int = ranged(20, 1, 100_000)
    """Passes over the training images."""
    min_steps: int = ranged(0, 0, 10**7)
    """Optimizer steps to take at least: a small dataset is passed over more often than `epochs`."""
    batch_size: int = ranged(64, 1, 65536)
    """Images per step, over all processes."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The paper uses SGD."""
    lr: float = ranged(5e-3, 0, 100)
    """Highest learning rate."""
    backbone_lr: float = ranged(0.2, 0, 1000)
    """The share of the learning rate that the backbone gets, and C_l, which begins as a copy of its last block."""
    momentum: float = ranged(0.9, 0, 1, below_high=True)
    """Momentum of SGD: the paper's."""
    weight_decay: float = ranged(1e-5, 0, 10)
    """Weight decay; 1e-5 in the paper, and 5e-4 no better on CUB's validation classes."""
    schedule: Literal["constant", "step", "onecycle"] = "constant"
    """`step` (times `step_factor` every `step_epochs`) is the paper's; `constant` rises over the first epoch, or 20
    steps; `onecycle` rises and falls, and takes AdamW's first beta from 0.95 to 0.85 and back."""
    step_epochs: int = ranged(30, 1, 10**6)
    """Epochs between two drops of `step`: the paper's."""
    step_factor: float = ranged(0.1, 0, 1, above_low=True)
    """What a drop of `step` multiplies the rate by: the paper's."""
    ema_decay: float = ranged(0.999, 0, 1, below_high=True)
    """Decay per step of the exponential moving average (EMA) of the weights, which is what is used in the end; 0: the
    last weights, as in the paper."""
    mixup: float = ranged(0.0, 0, 100)
    """Blend every image and its label with another's, by a share drawn from Beta(mixup, mixup); 0: not at all."""
    freeze_norms: bool = False
    """The batch norms of the pretrained parts keep the statistics that they were pretrained with."""
    freeze_early: bool = False
    """What comes before the resolution of e^{n-1}, the stem and the first blocks, stays as it was pretrained."""
    freeze_backbone: bool = False
    """Everything that makes embeddings stays as it was pretrained: they are computed once for both stages, all
    trainings and the evaluation, and only heads and policy are trained. For machines without a GPU."""
    detach_global: bool = False
    """f_G learns from L_g alone, as GlobalNet's does: localities and joint head read from it and do not change it."""
    loss_weights: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.mixup < 1e-3:
            raise InputError(f"stage1.mixup is {self.mixup}; it must be 0, or at least 0.001.")

    @classmethod
    def _prefix(cls) -> str:
        return "stage1."

    def passes(self, batches: int) -> int:
        """How often to pass over a dataset that has so many batches."""
        return max(self.epochs, -(-self.min_steps // batches))


@dataclass
class Stage2Settings(Settings):
    """Stage II: the policy alone, by PPO."""

    epochs: int = ranged(30, 1, 100_000)
    """Rollouts over every training image."""
    update_epochs: int = ranged(4, 1, 1000)
    """Passes of PPO over each batch of rollouts: cleanRL's."""
    minibatch_size: int = ranged(1024, 1, 10**7)
    """Episodes per gradient step."""
    lr: float = ranged(6e-4, 0, 10)
    """Learning rate of Adam."""
    gamma: float = ranged(0.99, 0, 1)
    """Discount: the paper's. 0.5 changed less on creatures than another seed does."""
    clip_coef: float = ranged(0.2, 0, 10, above_low=True)
    """epsilon of the clipped surrogate: the paper's."""
    value_coef: float = ranged(0.5, 0, 1e4)
    """alpha_1, weight of the value loss: the paper's."""
    entropy_coef: float = ranged(0.01, 0, 1e4)
    """alpha_2, weight of the entropy bonus: the paper's. A smaller one changed less on creatures than
    another seed does."""
    max_grad_norm: float = ranged(0.5, 0, 1e6, above_low=True)
    """Gradients are clipped to this norm: cleanRL's."""
    reward_temperature: float = ranged(4.0, 1e-3, 1e4)
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
    crops: int = ranged(2, 1, 64)
    """Crops of each training image that the policy learns on: the centre crop, the others random ones."""
    rollout_batch_size: int = ranged(256, 1, 65536)
    """Images whose localities are computed at once; the fewer, the less memory it takes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_at_sigma and self.reward != "answer":
            raise InputError("stage2.stop_at_sigma ends episodes by the reward 'answer'; set stage2.reward to that.")

    @classmethod
    def _prefix(cls) -> str:
        return "stage2."
