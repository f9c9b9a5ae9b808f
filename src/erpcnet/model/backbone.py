"""Backbones of torchvision and timm, split before their last block.

f_G = {C^1, ..., C^n}: `trunk` computes e^{n-1}, the map that localities are cut from, and `last` is C^n. A block begins
where the resolution drops.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from erpcnet.errors import InputError
from erpcnet.model.preprocessing import TIMM

# What follows the feature map; everything before it is a chain of modules.
_HEADS = (
    "avgpool",
    "global_pool",
    "fc",
    "classifier",
    "head",
    "head_drop",
    "flatten",
    "dropout",
)
# Side exits for training, in the middle of the chain or at its end.
_SIDE_EXITS = ("AuxLogits", "aux1", "aux2")
# Containers whose members are links of the chain, not one link.
_CONTAINERS = ("features", "stages", "blocks", "trunk_output", "layers")


class Chain(nn.Sequential):
    """Modules one after the other. torch.compile of torch 2.11 takes this forward whole, and torch's own in pieces."""

    def forward(self, value: Tensor) -> Tensor:
        for link in self:
            value = link(value)
        return value


class SplitBackbone(nn.Module):
    """A convolutional network as `trunk` and `last`.

    `map_channels` and `channels` are the channels of e^{n-1}, the map between them, and of e^n; `early` is how many
    links, from the first, give finer maps than e^{n-1}.
    """

    def __init__(self, trunk: Chain, last: Chain, *, early: int, map_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.trunk, self.last, self._early = trunk, last, early
        self.map_channels, self.channels, self.stride = map_channels, channels, stride

    @property
    def early(self) -> list[nn.Module]:
        """The stem and the first blocks: what comes before the resolution of e^{n-1}."""
        return [*self.trunk, *self.last][: self._early]

    def forward(self, images: Tensor) -> Tensor:
        """images [N, 3, H, W] to e^n [N, channels, H', W']."""
        return self.last(self.trunk(images))


def create_backbone(name: str, weights: str = "none") -> SplitBackbone:
    """A backbone by name: one of `list_backbones()`, a torchvision name, or `timm/NAME`.

    Args:
        name: Such as `resnet50`, `timm/convnext_tiny` or `small`.
        weights: `none`; `default`, the library's newest; one of torchvision's weight names, such as `IMAGENET1K_V1`
            (both are downloaded on first use); or a path to a file.

    Returns:
        The backbone, split before its last block.

    Raises:
        InputError: There is no such backbone, it gives no feature map, or the weights are not to be had.
    """
    packaged = resources.files("erpcnet.model") / "weights" / f"{name}.safetensors"
    if weights == "default" and name in _OWN and packaged.is_file():
        with resources.as_file(packaged) as path:
            return create_backbone(name, str(path))
    backbone = split(network := _create(name, None), name)
    if weights == "default" or weights in weight_names(name):
        # Only now that it is known to fit: the download may be large.
        return split(_create(name, weights), name)
    if weights != "none":
        named = ", ".join(("'none'", "'default'", *weight_names(name)))
        if not Path(weights).is_file():
            raise InputError(
                f"'{name}' has no weights '{weights}', and there is no such file; --model.backbone.weights takes "
                f"{named} or a file of weights."
            )
        load_backbone_weights(network, Path(weights))  # the backbone holds the same modules
    return backbone


def list_backbones() -> list[str]:
    """Names beside those of torchvision and timm."""
    return sorted(_OWN)


def weight_names(name: str) -> list[str]:
    """The names under which torchvision has weights of a backbone, the oldest first; of others, none."""
    from torchvision import models

    if name in _OWN or name.startswith(TIMM) or name not in models.list_models(module=models):
        return []
    return [str(member.name) for member in models.get_model_weights(name)]


def _create(name: str, weights: str | None) -> nn.Module:
    """A network as its library makes it, with weights that are downloaded, or with none."""
    pretrained = weights is not None
    if name in _OWN:
        if pretrained:
            raise InputError(f"backbone '{name}' has no weights to download; give a file or 'none'.")
        return _OWN[name]()
    try:
        if name.startswith(TIMM):
            import timm

            return timm.create_model(name.removeprefix(TIMM), pretrained=pretrained, num_classes=0)
        from torchvision import models

        if name not in models.list_models(module=models):
            close = difflib.get_close_matches(name, [*models.list_models(module=models), *_OWN])
            hint = f" (near: {', '.join(close)})" if close else ""
            raise InputError(
                f"there is no backbone '{name}'{hint}; give a torchvision name, 'timm/NAME' or one of "
                f"{', '.join(list_backbones())}."
            )
        return models.get_model(name, weights="DEFAULT" if weights == "default" else weights)
    except (InputError, ModuleNotFoundError):  # of timm, which is an extra
        raise
    except Exception as error:
        if not pretrained:
            raise InputError(f"backbone '{name}' cannot be made: {error}") from None
        raise InputError(
            f"the weights of '{name}' could not be downloaded ({type(error).__name__}: {str(error).splitlines()[0]}); "
            "fetch the file on a machine with a network and give its path as --model.backbone.weights FILE."
        ) from None


def load_backbone_weights(network: nn.Module, path: Path) -> None:
    """Fill a whole backbone from a safetensors or torch file; its classifier may be missing or other."""
    try:
        state = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:
        raise InputError(f"{path} is no file of weights ({error}).") from None
    own = network.state_dict()
    fitting = {key: value.float() for key, value in state.items() if key in own and own[key].shape == value.shape}
    missing = [
        key
        for key in own
        if key not in fitting and not key.startswith((*_HEADS, *_SIDE_EXITS)) and "num_batches_tracked" not in key
    ]
    if missing:
        raise InputError(f"{path} does not fit the backbone: {len(missing)} weights are missing, '{missing[0]}' first.")
    network.load_state_dict(fitting, strict=False)


def split(network: nn.Module, name: str = "") -> SplitBackbone:
    """Split a network before its last block, which begins where the resolution drops; checked on a probe."""
    problem = InputError(
        f"backbone '{name or type(network).__name__}' gives no feature map that can be split before its last block; "
        "choose another one, such as resnet101, swin_t, vit_b_16, timm/convnext_tiny or timm/efficientnet_b0."
    )
    links = _links(network)
    probe = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    maps: list[Tensor] = []
    network.eval()
    if type(network).__name__ == "VisionTransformer":
        return _split_transformer(network, problem)
    with torch.no_grad():
        value = probe
        try:
            for link in links:
                value = link(value)
                maps.append(value)
            truth = _output_of(network, links[-1], probe)
        except Exception:
            raise problem from None
    network.train()
    if value.dim() != 4 or value.shape != truth.shape or not torch.allclose(value, truth, atol=1e-4):
        raise problem
    if any(one.dim() != 4 for one in maps):
        raise problem
    ends = _block_ends(maps)
    if len(ends) < 2 or not 1 < _side(value) < 64:
        raise problem
    cut = ends[1] + 1
    feature_map = maps[cut - 1]
    trunk, last, map_channels = links[:cut], links[cut:], feature_map.shape[1]
    if _channels_last(feature_map):  # as Swin transformers have them between their blocks
        trunk, last = [*trunk, Permute(0, 3, 1, 2)], [Permute(0, 2, 3, 1), *last]
        map_channels = feature_map.shape[3]
    channels = value.shape[1]
    if _channels_last(value):
        last, channels = [*last, Permute(0, 3, 1, 2)], value.shape[3]
    return SplitBackbone(
        Chain(*trunk),
        Chain(*last),
        early=ends[2] + 1 if len(ends) > 2 else 0,
        map_channels=map_channels,
        channels=channels,
        stride=128 // _side(feature_map),
    )


class Permute(nn.Module):
    """Dimensions in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, value: Tensor) -> Tensor:
        return value.permute(self.order).contiguous()


def _channels_last(feature_map: Tensor) -> bool:
    """Whether a map of a square picture is [N, H, W, C]."""
    return feature_map.shape[1] == feature_map.shape[2] != feature_map.shape[3]


def _side(feature_map: Tensor) -> int:
    return int(feature_map.shape[2])  # of [N, C, H, W] and of [N, H, W, C]


def _block_ends(maps: list[Tensor]) -> list[int]:
    """The last link of every block, from the last block on: those that share a resolution are one."""
    ends = [len(maps) - 1]
    for number in range(len(maps) - 2, -1, -1):
        if _side(maps[number]) > _side(maps[ends[-1]]):
            ends.append(number)
    return ends


def _split_transformer(network: Any, problem: InputError) -> SplitBackbone:
    """A vision transformer of torchvision or timm before its last block; its patches are the places of a map."""
    try:
        trunk, last, channels, stride = _transformer_parts(network)
        with torch.no_grad():
            side = 14 * stride
            found = last(trunk(torch.zeros(1, 3, side, side)))
        if found.shape != (1, channels, 14, 14):
            raise problem
    except (AttributeError, RuntimeError, TypeError, AssertionError):
        raise problem from None
    network.train()
    return SplitBackbone(Chain(trunk), Chain(last), early=0, map_channels=channels, channels=channels, stride=stride)


def _transformer_parts(network: Any) -> tuple[TransformerTrunk, TransformerLast, int, int]:
    if hasattr(network, "conv_proj"):  # torchvision's
        blocks, channels, stride = list(network.encoder.layers), network.hidden_dim, network.patch_size
        positions, patches, norm = network.encoder.pos_embedding, network.conv_proj, network.encoder.ln
        return (
            TransformerTrunk(patches, network.class_token, positions, blocks[:-1]),
            TransformerLast(blocks[-1], norm),
            channels,
            stride,
        )
    blocks, channels = list(network.blocks), network.embed_dim  # timm's
    patches, stride = network.patch_embed.proj, network.patch_embed.proj.kernel_size[0]
    trunk = TransformerTrunk(patches, network.cls_token, network.pos_embed, blocks[:-1])
    return trunk, TransformerLast(blocks[-1], network.norm), channels, stride


class TransformerTrunk(nn.Module):
    """Patches, their positions and all blocks but the last: images [N, 3, H, W] to a map [N, C, H', W'].

    The class token takes part, and is left out of the map. Positions are interpolated where the image has another size
    than the pretrained one.
    """

    def __init__(
        self, patches: nn.Module, token: nn.Parameter, positions: nn.Parameter, blocks: list[nn.Module]
    ) -> None:
        super().__init__()
        self.patches, self.token, self.positions = patches, token, positions
        self.blocks = Chain(*blocks)

    def forward(self, images: Tensor) -> Tensor:
        feature_map = self.patches(images)
        side = feature_map.shape[-2:]
        token = (self.token + self.positions[:, :1]).expand(feature_map.shape[0], -1, -1)
        tokens = torch.cat([token, (feature_map + self._positions(side)).flatten(2).transpose(1, 2)], dim=1)
        return self.blocks(tokens)[:, 1:].transpose(1, 2).unflatten(2, side).contiguous()

    def _positions(self, side: torch.Size) -> Tensor:
        """[1, C, H', W']."""
        known = self.positions[:, 1:].transpose(1, 2)
        length = round(known.shape[2] ** 0.5)
        square = known.unflatten(2, (length, length))
        return square if square.shape[-2:] == side else F.interpolate(square, tuple(side), mode="bicubic")


class TransformerLast(nn.Module):
    """The last block and the norm behind it, on the places of a map or of a window of it."""

    def __init__(self, block: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.block, self.norm = block, norm

    def forward(self, feature_map: Tensor) -> Tensor:
        tokens = feature_map.flatten(2).transpose(1, 2)
        return self.norm(self.block(tokens)).transpose(1, 2).unflatten(2, feature_map.shape[-2:]).contiguous()


def _links(network: nn.Module) -> list[nn.Module]:
    links: list[nn.Module] = []
    for name, child in network.named_children():
        if name.startswith(_HEADS):
            break
        if name not in _SIDE_EXITS:
            links.extend(child.children() if name in _CONTAINERS else [child])
    if type(network).__name__ == "DenseNet":  # which has this in its forward alone
        links.append(nn.ReLU())
    return links


def _output_of(network: Any, module: nn.Module, probe: Tensor) -> Tensor:
    """What `module` really puts out inside the network's own forward."""
    found: list[Tensor] = []
    known = [other for other in network.modules() if other is module]
    if not known:  # a link of our own
        return network.features(probe).relu() if hasattr(network, "features") else probe
    # A copy, as what follows may change it in place.
    hook = module.register_forward_hook(lambda _module, _args, output: found.append(output.clone()))
    try:
        network(probe)
    finally:
        hook.remove()
    return found[-1]


def copy_of_last(backbone: SplitBackbone) -> nn.Module:
    """C_l: the structure and the initial weights of C^n, its own from then on."""
    return copy.deepcopy(backbone.last)


class SmallResNet(nn.Module):
    """A ResNet for small pictures on a CPU: 14 x 14 before its last block at 112 pixels, as the paper's has at 224.

    Its weights come with the package; `erpcnet.experiments.pretrain_small` made them.
    """

    def __init__(self, widths: tuple[int, int, int, int] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.channels = widths[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        self.layer1 = _Block(widths[0], widths[1], 2)
        self.layer2 = _Block(widths[1], widths[2], 2)
        self.layer3 = _Block(widths[2], widths[3], 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer3(self.layer2(self.layer1(self.stem(images))))


class _Block(nn.Module):
    """Two 3 x 3 convolutions added to a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, value: Tensor) -> Tensor:
        return torch.relu(self.residual(value) + self.shortcut(value))


def resnet50_v1() -> nn.Module:
    """ResNet-50 as He et al. published it: stride 2 on a block's first convolution.

    torchvision's own has it on the second (v1.5). The keys are the same, so v1 weights load into either without
    an error, and compute something else.
    """
    from torchvision.models.resnet import Bottleneck, resnet50

    network = resnet50(weights=None)
    for module in network.modules():
        if isinstance(module, Bottleneck):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
    return network


_OWN: dict[str, Callable[[], nn.Module]] = {"small": SmallResNet, "resnet50_v1": resnet50_v1}
