"""Settings of the network. Defaults are what measured best on `creatures`, presets what did on their dataset.

What only a literal reading of the paper needs is named so below; the presets `*-paper` gather it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from erpcnet.errors import InputError

Variant = Literal["erpcnet", "rpcnet", "pcnet", "globalnet", "hardnet"]
WITH_POLICY: tuple[Variant, ...] = ("rpcnet", "erpcnet", "hardnet")
KernelKind = Literal["bottleneck", "full"]
KernelMode = Literal["same", "valid"]
CompatibilityKind = Literal["cosine", "dot"]


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

    window: int = 5
    """k, on a map of 14 x 14; on other maps window, stride and padding are scaled, so that the grid stays."""
    stride: int = 3
    """q, on a map of 14 x 14."""
    padding: int = 0
    """p, on a map of 14 x 14."""
    zoom: int = 1
    """How much finer than the glance a window is read: 1 cuts it from the glance's map, as in the paper; 2, 3 or 4 read
    it again, from pixels up, from an image so many times larger, by a backbone of its own."""
    kernel: int = 5
    """Side of the partial convolution's kernel (zoom 1)."""
    kernel_kind: KernelKind = "bottleneck"
    """`full` is the paper's; `bottleneck` costs a tenth of it."""
    kernel_mode: KernelMode = "same"
    """`valid` is the paper's strict reading: a kernel of the window's size leaves 1 x 1."""

    def __post_init__(self) -> None:
        for name in ("window", "stride", "kernel"):
            if getattr(self, name) < 1:
                raise InputError(f"model.local.{name} is {getattr(self, name)}; it must be at least 1.")
        if not 1 <= self.zoom <= 4:
            raise InputError(f"model.local.zoom is {self.zoom}; it must be 1, 2, 3 or 4.")
        if self.zoom > 1 and self.padding:
            raise InputError("model.local.zoom reads windows from the image, which has no padding; set one of the two.")
        if self.padding < 0:
            raise InputError(f"model.local.padding is {self.padding}; it must not be negative.")
        if self.kernel_mode == "same" and self.kernel % 2 == 0:
            raise InputError(f"model.local.kernel is {self.kernel}; a kernel that keeps the size ('same') is odd.")


@dataclass
class JointSettings:
    """f_cj."""

    kind: str = "attention"
    """`concatenation` is the paper's; any name that a joint head is registered with."""
    hidden: int = 2048
    """Width of the hidden layer of `concatenation`."""
    global_dropout: float = 0.25
    """How often training hides e_g from the joint head (`attention`)."""
    global_swap: float = 0.5
    """How often training shows it e_g of the most similar image of the batch instead of the image's own."""
    sharpness: float = 8.0
    """How fast `attention` learns which localities to trust: s in exp(s g)."""

    def __post_init__(self) -> None:
        for name in ("global_dropout", "global_swap"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"model.joint.{name} is {getattr(self, name)}; it must be from 0 to 1.")
        if self.hidden < 1:
            raise InputError(f"model.joint.hidden is {self.hidden}; it must be at least 1.")
        if self.sharpness <= 0:
            raise InputError(f"model.joint.sharpness is {self.sharpness}; it must be above 0.")


@dataclass
class PolicySettings:
    """pi and V."""

    sees_cells: bool = True
    """Also score each cell by the mean of its window and its beta, both known before C_l runs. Off in the paper."""
    shared_encoder: bool = True
    """One state encoder for pi and V, or, as in the paper, one each."""
    width: int = 1024
    """First layer of the state encoder."""
    memory: int = 256
    """Second layer of the state encoder, and the GRU."""

    def __post_init__(self) -> None:
        for name in ("width", "memory"):
            if getattr(self, name) < 1:
                raise InputError(f"model.policy.{name} is {getattr(self, name)}; it must be at least 1.")


@dataclass
class ModelSettings:
    """The whole network."""

    backbone: BackboneSettings = field(default_factory=BackboneSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    joint: JointSettings = field(default_factory=JointSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    steps: int = 6
    """T: the most localities that an image may take."""
    sigma: float | None = None
    """Early stop: an image is done once its reward reaches it; unset: chosen on validation classes."""
    delta: float | None = None
    """Calibrated stacking: what is subtracted from the logits of seen classes; unset: chosen on validation classes."""
    pooling: float = 1.0
    """e_g is the generalised mean (GeM) of this power over the places of the last map: 1 is the mean, as in the paper;
    the larger, the nearer to the maximum. With zoom e_l is pooled alike."""
    hubness: float = 0.0
    """Hubness correction: the share of an unseen class's hubness that is subtracted from its logits, that is of how
    well training images of the three nearest seen classes fit it. Unseen classes that resemble seen ones are answered
    too often. 0: as in the paper."""
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
        if self.sigma is not None and not 0 < self.sigma < math.inf:
            raise InputError(f"model.sigma is {self.sigma}; it must be above 0, and finite.")
        if not 1 <= self.pooling < math.inf:
            raise InputError(f"model.pooling is {self.pooling}; it must be at least 1.")
        if self.hubness < 0 or (self.hubness and self.compatibility != "cosine"):
            raise InputError(
                f"model.hubness is {self.hubness}; it must not be negative, and other than 0 only where "
                "model.compatibility is 'cosine'."
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"model.dropout is {self.dropout}; it must be from 0 to below 1.")
        if self.scale <= 0:
            raise InputError(f"model.scale is {self.scale}; it must be above 0.")
