"""Every setting of the network. Defaults are what measured best on `creatures`, presets what did on their dataset; the
`*-paper` presets hold the paper's reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from erpcnet.errors import InputError
from erpcnet.model.heads import CompatibilityKind, JointKind
from erpcnet.model.partial import KernelKind, KernelMode

Variant = Literal["erpcnet", "rpcnet", "pcnet", "globalnet", "hardnet"]
WITH_POLICY: tuple[Variant, ...] = ("rpcnet", "erpcnet", "hardnet")


@dataclass
class BackboneSettings:
    """f_G."""

    name: str = "resnet50"
    """A torchvision name, `timm/NAME`, `resnet50_v1` or `small`."""
    weights: str = "IMAGENET1K_V1"
    """A torchvision weight name or `default` (the library's newest), both downloaded; `none`; or a file of weights.
    Mean, std, interpolation and crop share at test are those that the weights were trained with."""


@dataclass
class LocalSettings:
    """Windows of e^{n-1} and the partial convolution on them."""

    blocks: int = 1
    """How many of the backbone's last blocks C_l copies, and windows are cut before. 1 is the paper's; 2 cuts them from
    a finer map, whose places see less of what is around them."""
    window: int = 5
    """k, on a map of `reference_map` a side."""
    stride: int = 3
    """q, on a map of `reference_map` a side."""
    padding: int = 0
    """p, on a map of `reference_map` a side."""
    reference_map: int = 14
    """Larger or smaller maps scale window, stride and padding, so that the grid stays; 0 takes them as they are."""
    crop: Literal["native", "pooled"] = "native"
    """`pooled` shrinks a scaled window to `window` x `window` before the kernel."""
    kernel: int = 5
    """Side of the partial convolution's kernel."""
    kernel_kind: KernelKind = "bottleneck"
    """`full` is the paper's; `bottleneck`, `grouped` and `depthwise` cost less."""
    kernel_mode: KernelMode = "same"
    """`valid` is the strict reading: a kernel of the window's size leaves 1 x 1."""
    pooling: float = 1.0
    """`model.pooling`, over the places of a window (and of HardNet's patches)."""

    def __post_init__(self) -> None:
        for name in ("blocks", "window", "stride", "kernel"):
            if getattr(self, name) < 1:
                raise InputError(f"model.local.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.padding < 0 or self.reference_map < 0:
            raise InputError("model.local.padding and reference_map must not be negative.")
        if not 1 <= self.pooling < math.inf:
            raise InputError(f"model.local.pooling is {self.pooling}; it must be at least 1.")
        if self.kernel_mode == "same" and self.kernel % 2 == 0:
            raise InputError(f"model.local.kernel is {self.kernel}; a kernel that keeps the size ('same') is odd.")


@dataclass
class PatchSettings:
    """HardNet's patches of the image itself."""

    size: int = 80
    """Side of a patch of an image of 224; others in proportion. The paper's, in proportion to its windows."""
    stride: int = 8
    """Pixels from one place for a patch to the next, of an image of 224."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 224 or self.stride < 1:
            raise InputError("model.patch.size must be from 1 to 224, and model.patch.stride at least 1.")


@dataclass
class JointSettings:
    """f_cj."""

    kind: JointKind = "attention"
    """`concatenation` is the paper's."""
    hidden: int = 2048
    """Width of the hidden layer of `concatenation` and `mean`."""
    global_dropout: float = 0.25
    """How often training hides e_g from the joint head (`attention` and `mean`)."""
    global_swap: float = 0.5
    """How often training shows it e_g of the most similar image of the batch instead of the image's own."""
    sharpness: float = 8.0
    """How fast `attention` learns which localities to trust: s in exp(s g)."""

    def __post_init__(self) -> None:
        for name in ("global_dropout", "global_swap"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"model.joint.{name} is {getattr(self, name)}; it must be from 0 to 1.")
        if self.sharpness <= 0:
            raise InputError(f"model.joint.sharpness is {self.sharpness}; it must be above 0.")


@dataclass
class PolicySettings:
    """pi and V."""

    sees_cells: bool = True
    """Also score each cell by the mean of its window and its beta, both known before C_l runs. Off in the paper."""
    shared_encoder: bool = True
    """One state encoder for pi and V, or, as in the paper, one each."""
    scores: Literal["sigmoid", "softmax"] = "sigmoid"
    """How pi's scores become probabilities over the unvisited cells."""
    width: int = 1024
    """First layer of the state encoder."""
    memory: int = 256
    """Second layer of the state encoder, and the GRU."""


@dataclass
class ModelSettings:
    """The whole network."""

    backbone: BackboneSettings = field(default_factory=BackboneSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    patch: PatchSettings = field(default_factory=PatchSettings)
    joint: JointSettings = field(default_factory=JointSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    steps: int = 6
    """T: the most localities that an image may take."""
    sigma: float | None = None
    """Stop once the reward reaches it; unset: chosen on validation classes."""
    delta: float | None = None
    """What calibrated stacking takes off the seen classes' scores; unset: chosen on validation classes."""
    pooling: float = 1.0
    """e_g is the generalised mean of this power over the places of the last map: 1 is the mean, as in the paper; the
    larger, the nearer to the largest."""
    answer: Literal["union", "growing", "joint"] = "union"
    """What is compared with the classes: a_j + a_g, as in the paper; `growing`, t/T a_j + a_g after t looks, as few
    looks tell less than many; or a_j alone."""
    attraction: float = 0.0
    """The share of an unseen class's attraction that is taken off its scores: of how well training images of the three
    seen classes that fit it best do so. Unseen classes that resemble seen ones are answered too often. 0: as in the
    paper."""
    dropout: float = 0.0
    """Dropout of every predictor."""
    compatibility: CompatibilityKind = "cosine"
    """`dot` is the paper's."""
    centred: bool = True
    """Measure the cosine from the seen classes' mean attributes, not from the origin, as `dot` does."""
    scale: float = 20.0
    """What `cosine` is multiplied by."""
    learned_scale: bool = True
    """Whether training changes `scale`. A scale that grows lets the training images be fitted ever more closely."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"model.steps is {self.steps}; it must be at least 1.")
        if self.sigma is not None and not self.sigma > 0:
            raise InputError(f"model.sigma is {self.sigma}; it must be above 0.")
        if not 1 <= self.pooling < math.inf:
            raise InputError(f"model.pooling is {self.pooling}; it must be at least 1.")
        if self.attraction < 0 or (self.attraction and self.compatibility != "cosine"):
            raise InputError(
                f"model.attraction is {self.attraction}; it must not be negative, and other than 0 only where "
                "model.compatibility is 'cosine'."
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"model.dropout is {self.dropout}; it must be from 0 to below 1.")
        if self.scale <= 0:
            raise InputError(f"model.scale is {self.scale}; it must be above 0.")
