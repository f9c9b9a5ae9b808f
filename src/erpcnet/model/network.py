"""ERPCNet: the global, the local and the joint subnet, and the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.errors import InputError
from erpcnet.model.backbone import SplitBackbone, copy_of_last, create_backbone
from erpcnet.model.grid import Grid, entropy_ratios
from erpcnet.model.heads import Compatibility, Predictor, create_joint
from erpcnet.model.partial import PartialConvolution
from erpcnet.model.policy import ActorCritic
from erpcnet.model.pooling import pool_places
from erpcnet.model.settings import WITH_POLICY, LocalSettings, ModelSettings, PatchSettings, Variant

# The seen classes whose images say how attractive a class is: with one, chance has a hand in it; with ten, most of
# them have nothing to do with it.
NEIGHBOURS = 3


class Classes(NamedTuple):
    """Classes to choose from: `phi` [C, A], rows of length 1, and what each gives up of its scores, `handicap` [C]."""

    phi: Tensor
    handicap: Tensor | float = 0.0


class Glance(NamedTuple):
    """What the global subnet sees: `embedding` e_g [N, D], `attributes` a_g, and what localities are cut from.

    The latter, `surface`, is e^{n-1} [N, C', H', W'], or for HardNet the images themselves.
    """

    surface: Tensor
    embedding: Tensor
    attributes: Tensor


class Prediction(NamedTuple):
    """Attributes predicted in Stage I: a_g [N, A], a_l and a_j [N, T, A]; the latter two are None for GlobalNet."""

    whole: Tensor
    local: Tensor | None
    joint: Tensor | None


class LocalSubnet(nn.Module):
    """Partial convolution, C_l and f_cl: localities are windows of e^{n-1}.

    `tabulable`: an image has so few of them, one per cell, that all can be computed.
    """

    tabulable = True

    def __init__(self, backbone: SplitBackbone, grid: Grid, attributes: int, settings: ModelSettings) -> None:
        super().__init__()
        local, map_channels = settings.local, backbone.map_channels
        self.grid, self.surface_channels, self.settings = grid, map_channels, local
        self.pooled = local.window if local.crop == "pooled" else None
        side = self.pooled or grid.window
        if local.kernel_mode == "valid" and local.kernel > side:
            raise InputError(
                f"a 'valid' kernel of {local.kernel} does not fit windows of {side}; "
                "use larger images or a smaller --model.local.kernel."
            )
        self.partial = PartialConvolution(map_channels, local.kernel, local.kernel_kind, local.kernel_mode)
        self.extractor = copy_of_last(backbone)
        self.predictor = Predictor(backbone.channels, attributes, settings.dropout)

    def surface(self, images: Tensor, feature_map: Tensor) -> Tensor:
        """What windows are cut from."""
        return feature_map

    def entropy(self, surface: Tensor) -> Tensor:
        """beta of every cell, [N, cells]."""
        return entropy_ratios(surface, self.grid)

    def forward(self, crops: Tensor) -> Tensor:
        """Windows [N, T, C', k, k] to localities e_l [N, T, D]."""
        flat = crops.flatten(0, 1)
        if self.pooled is not None:
            flat = F.adaptive_avg_pool2d(flat, self.pooled)
        return pool_places(self.extractor(self.partial(flat)), self.settings.pooling).unflatten(0, crops.shape[:2])


class PatchSubnet(nn.Module):
    """HardNet's local subnet: a second backbone, on patches of the image. The interface is `LocalSubnet`'s."""

    tabulable = False

    def __init__(self, grid: Grid, attributes: int, settings: ModelSettings) -> None:
        super().__init__()
        self.grid, self.surface_channels, self.settings = grid, 3, settings.local
        self.extractor = create_backbone(settings.backbone.name, settings.backbone.weights)
        self.predictor = Predictor(self.extractor.channels, attributes, settings.dropout)

    def surface(self, images: Tensor, feature_map: Tensor) -> Tensor:
        """What patches are cut from."""
        return images

    def entropy(self, surface: Tensor) -> Tensor:
        """1 for every cell: the paper's HardNet has no beta."""
        return torch.ones(surface.shape[0], self.grid.cells, device=surface.device)

    def forward(self, patches: Tensor) -> Tensor:
        """Patches [N, T, 3, k, k] to localities e_l [N, T, D]."""
        flat = patches.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        return pool_places(self.extractor(flat), self.settings.pooling).unflatten(0, patches.shape[:2])


class ERPCNet(nn.Module):
    """The network for images of one size and any table of class attributes.

    Classes are never part of it: whoever scores brings phi, the unit-length attribute rows [C, A]. `prototypes` [S, A]
    are what it says of the images of each seen class, on average; there are none until it is told to `remember` them.
    """

    prototypes: Tensor

    def __init__(self, settings: ModelSettings, attributes: int, image_size: int, variant: Variant = "erpcnet") -> None:
        super().__init__()
        self.settings, self.image_size, self.variant = settings, image_size, variant
        self._attributes = attributes
        # Of the convolutions on a GPU; None is fp32. Losses always are, heads and policy are or multiply in TF32, and
        # CPUs never use less: there bf16 is about ten times slower.
        self.precision: torch.dtype | None = None
        # Whether training on a GPU records its steps as CUDA graphs.
        self.graphs = True
        self.backbone = create_backbone(settings.backbone.name, settings.backbone.weights, settings.local.blocks)
        channels = self.backbone.channels
        patches = variant == "hardnet"
        self.grid = (
            patch_grid(image_size, settings.patch)
            if patches
            else make_grid(self.backbone.trunk, image_size, settings.local)
        )
        if settings.steps > self.grid.cells:
            raise InputError(
                f"model.steps (T) is {settings.steps}, but the grid has only {self.grid.cells} cells "
                f"({self.grid.shape[0]} x {self.grid.shape[1]}), each visited once; choose T up to {self.grid.cells}."
            )
        self.global_predictor = Predictor(channels, attributes, settings.dropout)
        self.global_fit = self._compatibility()
        self.register_buffer("prototypes", torch.zeros(0, attributes))
        self.local: LocalSubnet | PatchSubnet | None = None
        if variant != "globalnet":
            self.local = (
                PatchSubnet(self.grid, attributes, settings)
                if patches
                else LocalSubnet(self.backbone, self.grid, attributes, settings)
            )
            joint = settings.joint
            self.joint = create_joint(
                joint.kind,
                channels,
                attributes,
                settings.steps,
                joint.hidden,
                settings.dropout,
                joint.global_dropout,
                joint.global_swap,
                joint.sharpness,
            )
            self.local_fit, self.joint_fit, self.highlight_fit = (self._compatibility() for _ in range(3))
        self.policy: ActorCritic | None = None
        if variant in WITH_POLICY and self.local is not None:
            descriptor = _aligned(self.local.surface_channels + 1)
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

    def glance(self, images: Tensor) -> Glance:
        """Run the global subnet."""
        with self._autocast(images):
            feature_map = self.backbone.trunk(images)
            embedding = pool_places(self.backbone.last(feature_map), self.settings.pooling)
        embedding = embedding.float()
        surface = feature_map if self.local is None else self.local.surface(images, feature_map)
        return Glance(surface, embedding, self.global_predictor(embedding))

    def activity(self, images: Tensor) -> Tensor:
        """How much f_G finds at each place of its last map [N, H, W]: the sum of what is above zero."""
        with self._autocast(images):
            last = self.backbone(images)
        return last.float().relu().sum(dim=1)

    def look(self, surface: Tensor, cells: Tensor) -> Tensor:
        """Localities e_l [N, T, D] of the cells [N, T] of a glance's surface."""
        assert self.local is not None, "GlobalNet has no localities"
        with self._autocast(surface):
            localities = self.local(self.grid.crop(surface, cells))
        return localities.float()

    def describe(self, surface: Tensor) -> tuple[Tensor, Tensor]:
        """Every cell's descriptor [N, cells, F] and beta [N, cells]; neither needs C_l. GlobalNet has no cells.

        The mean of its window and its beta, standardised here, once, and not whenever the policy reads them.
        """
        if self.local is None:  # nobody looks at cells
            return surface.new_zeros(surface.shape[0], 0, 0), surface.new_zeros(surface.shape[0], 0)
        beta = self.local.entropy(surface)
        seen = torch.cat([self.grid.means(surface).float(), beta[..., None]], dim=2)
        size = seen.shape[2]
        return F.pad(F.layer_norm(seen, [size]), (0, _aligned(size) - size)), beta

    def forward(self, images: Tensor, cells: Tensor | None = None, separate: bool = False) -> Prediction:
        """Stage I: all attributes for given cells [N, T], the joint ones after every prefix.

        `separate`: no gradient of a_l and a_j reaches the global subnet.
        """
        glance = self.glance(images)
        if self.local is None or cells is None:
            return Prediction(glance.attributes, None, None)
        surface, embedding = glance.surface, glance.embedding
        if separate:
            surface, embedding = surface.detach(), embedding.detach()
        localities = self.look(surface, cells)
        joint = self.joint.prefixes(embedding, localities)
        return Prediction(glance.attributes, self.local.predictor(localities), joint)

    def remember(self, prototypes: Tensor) -> None:
        """What it says of the images of each seen class [S, A], on average."""
        self.prototypes = prototypes

    def classes(self, phi: Tensor, seen: Tensor) -> Classes:
        """Classes to choose from: phi [C, A], and which of them training saw [C]; those have no handicap."""
        share = self.settings.attraction
        if not share or not len(self.prototypes):
            return Classes(phi)
        return Classes(phi, share * self.attraction(phi).masked_fill(seen, 0.0))

    def with_attraction(self, share: float) -> ERPCNet:
        """The same network, weights and all, that takes another share of a class's attraction off its scores."""
        if share and not len(self.prototypes):
            raise InputError("this network was trained without model.attraction, and knows nothing of what attracts.")
        other = copy.copy(self)
        other.settings = replace(self.settings, attraction=share)
        return other

    def attraction(self, phi: Tensor) -> Tensor:
        """How well the images of seen classes fit each class [C], on average over the few that fit it best."""
        fits = self.global_fit(self.prototypes, phi)
        return fits.topk(min(NEIGHBOURS, fits.shape[0]), dim=0).values.mean(dim=0)

    def scores(self, whole: Tensor, joint: Tensor | None, classes: Classes) -> Tensor:
        """Compatibility of the answer with each class: a_g [N, A], a_j [N, T, A] to [N, T, C] (or [N, C])."""
        of_global = self.global_fit(whole, classes.phi)
        if joint is None:
            return of_global - classes.handicap
        of_joint = self.joint_fit(joint, classes.phi)
        return self.combine(of_global[:, None], of_joint, looks_of(joint), classes.handicap)

    def combine(
        self, of_global: Tensor, of_joint: Tensor, looks: Tensor | int, handicap: Tensor | float = 0.0
    ) -> Tensor:
        """Scores of the answer after so many looks: a_j + a_g (paper), less of a_j after few looks, or a_j alone.

        In each of the two a class gives up its handicap.
        """
        of_global, of_joint, answer = of_global - handicap, of_joint - handicap, self.settings.answer
        if answer == "joint":
            return of_joint
        return (of_joint * (looks / self.steps) if answer == "growing" else of_joint) + of_global

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

    def stage1_parameters(self) -> list[nn.Parameter]:
        """Everything but pi and V."""
        return [p for name, p in self.named_parameters() if not name.startswith("policy.")]

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # Networks that are older than prototypes have none; others have those of as many classes as there were.
        kept = state.setdefault(prefix + "prototypes", self.prototypes)
        self.prototypes = self.prototypes.new_empty(kept.shape)
        super()._load_from_state_dict(state, prefix, *rest)

    def _autocast(self, like: Tensor) -> torch.autocast:
        wanted = self.precision is not None and like.device.type != "cpu"
        return torch.autocast(like.device.type, dtype=self.precision, enabled=wanted)

    def _compatibility(self) -> Compatibility:
        settings = self.settings
        return Compatibility(self._attributes, settings.compatibility, settings.scale, settings.learned_scale)


def looks_of(joint: Tensor, first: int = 1) -> Tensor:
    """How many looks each of a_j [N, T, A] comes after, [T, 1], if the first of them comes after `first`."""
    return torch.arange(first, first + joint.shape[1], device=joint.device)[:, None]


def _aligned(size: int) -> int:
    """The next multiple of 8, as fast products of matrices need."""
    return -(-size // 8) * 8


def patch_grid(image_size: int, settings: PatchSettings) -> Grid:
    """HardNet's places for patches of an image."""
    scale = image_size / 224
    return Grid(image_size, image_size, round(settings.size * scale), max(1, round(settings.stride * scale)))


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
    window, stride, padding, reference = (
        settings.window,
        settings.stride,
        settings.padding,
        settings.reference_map,
    )
    if reference in (0, side):
        return window, stride, padding
    gaps = (reference + 2 * padding - window) // stride
    scale = side / reference
    padding = round(padding * scale)
    whole = side + 2 * padding
    if gaps == 0:
        return min(round(window * scale), whole), 1, padding
    fitting = [(whole - gaps * step, step) for step in range(1, whole // gaps + 1) if whole - gaps * step >= 1]
    if not fitting:
        raise InputError(
            f"a feature map of {side} x {side} has no room for {gaps + 1} windows a side; use larger images "
            "(--data.image_size) or a smaller --model.local.stride."
        )
    best, step = min(fitting, key=lambda pair: (abs(pair[0] - window * scale), -pair[0]))
    return best, step, padding
