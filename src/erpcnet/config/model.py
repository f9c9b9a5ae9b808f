"""Settings of the network. Defaults are what measured best on `creatures`, presets what did on their dataset.

What only a literal reading of the paper needs is named so below; the presets `*-paper` gather it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from erpcnet.config.ranges import Settings, ranged
from erpcnet.errors import InputError

Variant = Literal["erpcnet", "rpcnet", "pcnet", "globalnet", "hardnet"]
WITH_POLICY: tuple[Variant, ...] = ("rpcnet", "erpcnet", "hardnet")
KernelKind = Literal["bottleneck", "full"]
KernelMode = Literal["same", "valid"]
CompatibilityKind = Literal["cosine", "dot"]


@dataclass
class BackboneSettings(Settings):
    """f_G."""

    name: str = "resnet50"
    """A torchvision name, `timm/NAME`, `resnet50_v1` or `small`."""
    weights: str = "IMAGENET1K_V1"
    """A torchvision weight name or `default` (the library's newest), both downloaded; `none`; or a file of weights.
    Mean, std, interpolation and crop share at test are those that the weights were trained with."""

    @classmethod
    def _prefix(cls) -> str:
        return "model.backbone."


@dataclass
class LocalSettings(Settings):
    """Windows of e^{n-1} and the partial convolution on them."""

    window: int = ranged(5, 1, 64)
    """k, the paper's, on a map of 14 x 14; on other maps window, stride and padding are scaled, so that the grid
    stays."""
    stride: int = ranged(3, 1, 64)
    """q, the paper's, on a map of 14 x 14: 4 x 4 windows, each of which overlaps the next by 2."""
    padding: int = ranged(0, 0, 8)
    """p, on a map of 14 x 14. The paper has it and gives no number; with 0 its windows fill the map exactly."""
    zoom: int = ranged(1, 1, 4)
    """How much finer than the glance a window is read: 1 cuts it from the glance's map, as in the paper; 2, 3 or 4 read
    it again, from pixels up, from an image so many times larger, by a backbone of its own."""
    kernel: int = ranged(5, 1, 31)
    """Side of the partial convolution's kernel (zoom 1): the paper's, that of a window."""
    kernel_kind: KernelKind = "bottleneck"
    """`full` is the paper's; `bottleneck` costs a tenth of it."""
    kernel_mode: KernelMode = "same"
    """`valid` is the paper's strict reading: a kernel of the window's size leaves 1 x 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zoom > 1 and self.padding:
            raise InputError("model.local.zoom reads windows from the image, which has no padding; set one of the two.")
        if self.padding >= self.window:
            raise InputError(
                f"model.local.padding is {self.padding}, so windows of {self.window} lie outside of the map; it must "
                "be smaller than model.local.window."
            )
        if self.kernel_mode == "same" and self.kernel % 2 == 0:
            raise InputError(f"model.local.kernel is {self.kernel}; a kernel that keeps the size ('same') is odd.")

    @classmethod
    def _prefix(cls) -> str:
        return "model.local."


@dataclass
class JointSettings(Settings):
    """f_cj."""

    kind: str = "attention"
    """`concatenation` is the paper's; any name that a joint head is registered with."""
    hidden: int = ranged(2048, 1, 65536)
    """Width of the hidden layer of `concatenation`: the paper's."""
    global_dropout: float = ranged(0.25, 0, 1)
    """How often training hides e_g from the joint head (`attention`), which then has to read the localities: see
    `global_swap`."""
    global_swap: float = ranged(0.5, 0, 1)
    """How often training shows it e_g of the most similar image of the batch instead of the image's own: what both
    share stays, what tells them apart does not. On CUB's validation classes T1 was 75.6 with both, and 74.9 with e_g
    hidden half of the time instead."""
    sharpness: float = ranged(8.0, 0, 1000, above_low=True)
    """How fast `attention` learns which localities to trust: s in exp(s g). At 1 too slowly on creatures."""

    @classmethod
    def _prefix(cls) -> str:
        return "model.joint."


@dataclass
class PolicySettings(Settings):
    """pi and V."""

    sees_cells: bool = True
    """Also score each cell by the mean of its window and its beta, both known before C_l runs. Off in the paper."""
    shared_encoder: bool = True
    """One state encoder for pi and V, or, as in the paper, one each."""
    width: int = ranged(1024, 1, 65536)
    """First layer of the state encoder; 1024 in the paper."""
    memory: int = ranged(256, 1, 65536)
    """Second layer of the state encoder, and the GRU; 256 in the paper."""

    @classmethod
    def _prefix(cls) -> str:
        return "model.policy."


@dataclass
class ModelSettings(Settings):
    """The whole network."""

    backbone: BackboneSettings = field(default_factory=BackboneSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    joint: JointSettings = field(default_factory=JointSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    steps: int = ranged(6, 1, 1024)
    """T: the most localities that an image may take."""
    sigma: float | None = ranged(None, 0, 1000)
    """Early stop: an image is done once its reward reaches it, with 0 after the glance alone; unset: chosen on
    validation classes."""
    delta: float | None = ranged(None, -1e6, 1e6)
    """Calibrated stacking: what is subtracted from the logits of seen classes; unset: chosen on validation classes."""
    pooling: float = ranged(1.0, 1, 100)
    """e_g is the generalised mean (GeM) of this power over the places of the last map: 1 is the mean, as in the paper;
    the larger, the nearer to the maximum. With zoom e_l is pooled alike."""
    hubness: float = ranged(0.0, 0, 100)
    """Hubness correction: the share of an unseen class's hubness that is subtracted from its logits, that is of how
    well training images of the three nearest seen classes fit it. Unseen classes that resemble seen ones are answered
    too often. 0: as in the paper."""
    dropout: float = ranged(0.0, 0, 1, below_high=True)
    """Dropout of every predictor: 0.5 or 0 in the paper; 0.5 cost 2 points on CUB's validation classes."""
    compatibility: CompatibilityKind = "cosine"
    """`dot` is the paper's."""
    centred: bool = True
    """Measure the cosine from the seen classes' mean attributes, not from the origin, as `dot` does."""
    scale: float = ranged(20.0, 0, 10000, above_low=True)
    """What `cosine` is multiplied by."""
    learned_scale: bool = True
    """Whether training changes `scale`. A scale that grows lets the training images be fitted ever more closely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hubness and self.compatibility != "cosine":
            raise InputError(
                f"model.hubness is {self.hubness}; it must be 0 where model.compatibility is '{self.compatibility}'."
            )

    @classmethod
    def _prefix(cls) -> str:
        return "model."
