"""ERPCNet: the global, the local and the joint subnet, and the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.config.model import WITH_POLICY, LocalSettings, ModelSettings, Variant
from erpcnet.errors import InputError
from erpcnet.model.backbone import create_backbone
from erpcnet.model.grid import Grid
from erpcnet.model.heads import Compatibility, Predictor, create_joint_head
from erpcnet.model.local_subnets import HardSubnet, LocalSubnet, WindowSubnet, ZoomSubnet, patch_grid
from erpcnet.model.policy import ActorCritic
from erpcnet.model.pooling import pool_places
from erpcnet.utils.runtime import autocast_convolutions

REFERENCE_MAP = 14  # the side of the map that window, stride and padding are given for: a ResNet's at 224
# The seen classes whose images say how much of a hub a class is: with one, chance has a hand in it; with ten, most of
# them have nothing to do with it.
NEIGHBOURS = 3


class Classes(NamedTuple):
    """Classes to choose from: `phi` [C, A], rows of length 1, and what is subtracted from the logits of each, the
    class `bias` [C].
    """

    phi: Tensor
    bias: Tensor | float = 0.0


class Glance(NamedTuple):
    """What the global subnet makes of images.

    `source` is what localities are cut from, `described` what the cells are described by before any is: both are
    e^{n-1} [N, C', H', W'], but with zoom localities are cut from the images, and HardNet has the images for both.
    `e_g` [N, D] is the embedding, `a_g` [N, A] are the attributes predicted from it.
    """

    source: Tensor
    described: Tensor
    e_g: Tensor
    a_g: Tensor


class Stage1Output(NamedTuple):
    """Attributes predicted in Stage I: a_g [N, A], a_l and a_j [N, T, A]; the latter two are None for GlobalNet."""

    a_g: Tensor
    a_l: Tensor | None
    a_j: Tensor | None


class ERPCNet(nn.Module):
    """The network for images of one size and any table of class attributes.

    Classes are never part of it: whoever scores brings phi, the unit-length attribute rows [C, A]. `prototypes` [S, A]
    are its mean a_g over the training images of each seen class; there are none until `set_prototypes`.

    Args:
        settings: The architecture.
        attributes: A.
        image_size: Side of the images.
        variant: Which of the paper's networks.

    Examples:
        >>> network = ERPCNet(ModelSettings(BackboneSettings("small", "default")), attributes=38, image_size=112)
        >>> network.glance(torch.rand(2, 3, 112, 112)).a_g.shape
        torch.Size([2, 38])
    """

    prototypes: Tensor

    def __init__(self, settings: ModelSettings, attributes: int, image_size: int, variant: Variant = "erpcnet") -> None:
        super().__init__()
        self.settings, self.image_size, self.variant = settings, image_size, variant
        self._attributes = attributes
        self.backbone = create_backbone(settings.backbone.name, settings.backbone.weights)
        channels = self.backbone.channels
        patches = variant == "hardnet"
        if patches and settings.local.zoom > 1:
            raise InputError("HardNet reads patches of the glance's own image; set model.local.zoom to 1.")
        self.grid = patch_grid(image_size) if patches else make_grid(self.backbone.trunk, image_size, settings.local)
        if settings.steps > self.grid.cells:
            raise InputError(
                f"model.steps (T) is {settings.steps}, but the grid has only {self.grid.cells} cells "
                f"({self.grid.shape[0]} x {self.grid.shape[1]}), each visited once; choose T up to {self.grid.cells}."
            )
        self.global_predictor = Predictor(channels, attributes, settings.dropout)
        self.global_compatibility = self._compatibility()
        self.register_buffer("prototypes", torch.zeros(0, attributes))
        self.local: LocalSubnet | None = None
        if variant != "globalnet":
            self.local = self._create_local(patches)
            self.joint = create_joint_head(channels, attributes, settings)
            self.local_compatibility = self._compatibility()
            self.joint_compatibility = self._compatibility()
            self.highlight_compatibility = self._compatibility()
        self.policy: ActorCritic | None = None
        if variant in WITH_POLICY and self.local is not None:
            descriptor = _aligned(self.local.described_channels + 1)
            self.policy = ActorCritic(channels, descriptor, self.grid.cells, settings.policy)

    @property
    def tabulable(self) -> bool:
        """Whether an image has so few localities that all of them can be computed."""
        return self.local is None or self.local.tabulable

    @property
    def steps(self) -> int:
        """T, or 0 for GlobalNet."""
        return 0 if self.local is None else self.settings.steps

    @property
    def uses_entropy(self) -> bool:
        """Whether beta weighs the reward; it is 1 otherwise."""
        return self.variant == "erpcnet"

    def _create_local(self, patches: bool) -> LocalSubnet:
        if patches:
            return HardSubnet(self.grid, self._attributes, self.settings)
        if self.settings.local.zoom > 1:
            return ZoomSubnet(self.backbone, self.grid, self.image_size, self._attributes, self.settings)
        return WindowSubnet(self.backbone, self.grid, self._attributes, self.settings)

    @property
    def zoom(self) -> int:
        """How many times larger than the glance the images are that the network is fed."""
        return self.settings.local.zoom

    def glance(self, images: Tensor) -> Glance:
        """Run the global subnet on images [N, 3, H, W]; with zoom on a version of them that is so much smaller."""
        with autocast_convolutions(images):
            feature_map = self.backbone.trunk(self._shrunk(images))
            e_g = pool_places(self.backbone.last(feature_map), self.settings.pooling)
        e_g = e_g.float()
        source = described = feature_map
        if self.local is not None:
            source, described = (part(images, feature_map) for part in (self.local.source, self.local.described))
        return Glance(source, described, e_g, self.global_predictor(e_g))

    def _shrunk(self, images: Tensor) -> Tensor:
        return images if self.zoom == 1 else F.avg_pool2d(images, self.zoom)

    def saliency(self, images: Tensor) -> Tensor:
        """How much f_G finds at each place of its last map [N, H, W]: the sum of what is above zero."""
        with autocast_convolutions(images):
            last = self.backbone(self._shrunk(images))
        return last.float().relu().sum(dim=1)

    def embed_localities(self, source: Tensor, cells: Tensor) -> Tensor:
        """Localities e_l [N, T, D] of the cells [N, T] of a glance's `source`."""
        assert self.local is not None, "GlobalNet has no localities"
        with autocast_convolutions(source):
            e_l = self.local(self.local.cut.crop(source, cells))
        return e_l.float()

    def describe_cells(self, described: Tensor) -> tuple[Tensor, Tensor]:
        """Every cell's descriptor [N, cells, F] and beta [N, cells]; neither needs C_l. GlobalNet has no cells.

        The mean of its window and its beta, standardised here, once, and not whenever the policy reads them.
        """
        if self.local is None:  # nobody selects cells
            return described.new_zeros(described.shape[0], 0, 0), described.new_zeros(described.shape[0], 0)
        beta = self.local.entropy(described, self.grid)
        descriptors = torch.cat([self.grid.means(described).float(), beta[..., None]], dim=2)
        size = descriptors.shape[2]
        return F.pad(F.layer_norm(descriptors, [size]), (0, _aligned(size) - size)), beta

    def forward(self, images: Tensor, cells: Tensor | None = None, detach_global: bool = False) -> Stage1Output:
        """Stage I: all attributes for given cells [N, T], the joint ones after every prefix.

        `detach_global`: no gradient of a_l and a_j reaches the global subnet.
        """
        source, _, e_g, a_g = self.glance(images)
        if self.local is None or cells is None:
            return Stage1Output(a_g, None, None)
        if detach_global:
            source, e_g = source.detach(), e_g.detach()
        return self._read_localities(a_g, e_g, self.embed_localities(source, cells))

    def predict_attributes(self, e_g: Tensor, e_l: Tensor | None = None) -> Stage1Output:
        """The same from embeddings: the glance's [N, D], and those of localities [N, T, D]."""
        a_g = self.global_predictor(e_g)
        return Stage1Output(a_g, None, None) if e_l is None else self._read_localities(a_g, e_g, e_l)

    def _read_localities(self, a_g: Tensor, e_g: Tensor, e_l: Tensor) -> Stage1Output:
        assert self.local is not None
        return Stage1Output(a_g, self.local.predictor(e_l), self.joint.prefixes(e_g, e_l))

    def set_prototypes(self, prototypes: Tensor) -> None:
        """Keep the mean a_g of the training images of each seen class [S, A]."""
        self.prototypes = prototypes

    def classes(self, phi: Tensor, seen: Tensor, hubness: float | None = None) -> Classes:
        """Classes to choose from, with their biases.

        Args:
            phi: [C, A], rows of length 1.
            seen: [C] bool, which of them are seen classes: those have no bias.
            hubness: Share of each unseen class's hubness that is its bias; by default what the settings say.
        """
        share = self.settings.hubness if hubness is None else hubness
        if not share:
            return Classes(phi)
        if not len(self.prototypes):
            if hubness is None:  # not trained yet
                return Classes(phi)
            raise InputError("this network was trained without model.hubness, and has no prototypes to measure it by.")
        return Classes(phi, share * self.hubness(phi).masked_fill(seen, 0.0))

    def hubness(self, phi: Tensor) -> Tensor:
        """How much of a hub each class is [C]: how well the images of seen classes fit it, on average over the few
        that fit it best.
        """
        logits = self.global_compatibility(self.prototypes, phi)
        return logits.topk(min(NEIGHBOURS, logits.shape[0]), dim=0).values.mean(dim=0)

    def centre_attributes(self, phi: Tensor) -> None:
        """Measure cosines from the mean of these classes, the seen ones [S, A]."""
        for module in self.modules():
            if isinstance(module, Compatibility):
                module.centre.copy_(phi.mean(dim=0))

    def compile_convolutions(self, backend: str | Callable[..., object] = "inductor") -> None:
        """Have the backbone and the local subnet compiled when they first run, and again for every new shape."""
        parts = [self.backbone.trunk, self.backbone.last, *([] if self.local is None else [self.local])]
        for part in parts:
            part.compile(backend=backend, dynamic=False)

    @property
    def pretrained(self) -> list[nn.Module]:
        """The parts whose weights come from elsewhere: f_G, and what begins as a copy of it."""
        return [self.backbone, *([] if self.local is None else [self.local.extractor])]

    @property
    def embedders(self) -> list[nn.Module]:
        """The parts that make embeddings of images: what `pretrained` holds, and the partial convolution."""
        extra = [self.local.partial] if isinstance(self.local, WindowSubnet) else []
        return [*self.pretrained, *extra]

    def stage1_parameters(self) -> list[nn.Parameter]:
        """Everything but pi and V."""
        return [p for name, p in self.named_parameters() if not name.startswith("policy.")]

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # There are as many prototypes as there were seen classes.
        stored = state.get(f"{prefix}prototypes", self.prototypes)
        self.prototypes = self.prototypes.new_empty(stored.shape)
        super()._load_from_state_dict(state, prefix, *rest)

    def _compatibility(self) -> Compatibility:
        settings = self.settings
        return Compatibility(self._attributes, settings.compatibility, settings.scale, settings.learned_scale)


def _aligned(size: int) -> int:
    """The next multiple of 8, as fast products of matrices need."""
    return -(-size // 8) * 8


def make_grid(trunk: nn.Module, image_size: int, settings: LocalSettings) -> Grid:
    """The grid on the map that the trunk gives for images of this size."""
    training = trunk.training
    trunk.eval()
    with torch.no_grad():
        height, width = trunk(torch.zeros(1, 3, image_size, image_size)).shape[-2:]
    trunk.train(training)
    return Grid(height, width, *scale_windows(min(height, width), settings))


def scale_windows(side: int, settings: LocalSettings) -> tuple[int, int, int]:
    """Window, stride and padding on a map of `side`, so that it has the cells of the reference map.

    Among the strides with which that many windows cover the map exactly, the one whose window is nearest in
    proportion: 14 gives 5 and 3, 28 gives 10 and 6.
    """
    window, stride, padding = settings.window, settings.stride, settings.padding
    if side == REFERENCE_MAP:
        return window, stride, padding
    gaps = (REFERENCE_MAP + 2 * padding - window) // stride
    scale = side / REFERENCE_MAP
    padding = round(padding * scale)
    padded = side + 2 * padding
    if gaps == 0:
        return min(round(window * scale), padded), 1, padding
    fitting = [(padded - gaps * step, step) for step in range(1, padded // gaps + 1) if padded - gaps * step >= 1]
    if not fitting:
        raise InputError(
            f"a feature map of {side} x {side} has no room for {gaps + 1} windows a side; use larger images "
            "(--data.image_size) or a smaller --model.local.stride."
        )
    best, step = min(fitting, key=lambda pair: (abs(pair[0] - window * scale), -pair[0]))
    return best, step, padding
