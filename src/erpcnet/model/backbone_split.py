"""A backbone in two, before its last block, and the comparison of the two with the library's own forward.

f_G = {C^1, ..., C^n}: `trunk` computes e^{n-1}, the map that localities are cut from, and `last` is C^n. A block begins
where the resolution drops, and has weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from erpcnet.errors import InputError
from erpcnet.model.chain import Chain
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.transformers import transformer_parts
from erpcnet.utils.files import plain_text

# What follows the feature map; everything before it is a chain of modules.
HEADS = (
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
SIDE_EXITS = ("AuxLogits", "aux1", "aux2")
# Containers whose members are links of the chain, not one link.
_CONTAINERS = ("features", "stages", "blocks", "trunk_output", "layers")
_PROBE = 128  # pixels of the image that a split is tried on
_WINDOW = 5  # the side of the window of its map that its last block is tried on: the paper's


class SplitBackbone(nn.Module):
    """A network as `trunk` and `last`.

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


class _NoMapError(Exception):
    """Why a network cannot be split, in half a sentence."""


def split(network: nn.Module, name: str = "") -> SplitBackbone:
    """Split a network before its last block, and compare what the parts compute with its own forward.

    Raises:
        InputError: It gives no feature map, or the parts would compute something else.
    """
    network.eval()
    try:
        with torch.no_grad():
            backbone, feature_map = _parts(network)
            _try_window(backbone, feature_map)
    except _NoMapError as reason:
        raise InputError(
            f"backbone '{name or type(network).__name__}' gives no feature map that can be split before its last "
            f"block: {reason}; choose another one, such as resnet101, swin_t, vit_b_16, timm/convnext_tiny or "
            "timm/efficientnet_b0."
        ) from None
    network.train()
    return backbone.train()


def _parts(network: nn.Module) -> tuple[SplitBackbone, Tensor]:
    """The network in two, and e^{n-1} of a probe."""
    if isinstance(network, SplitBackbone) or (hasattr(network, "trunk") and hasattr(network, "last")):
        return _given_parts(network)
    if type(network).__name__ == "VisionTransformer":
        return _transformer(network)
    return _chain(network)


def _try_window(backbone: SplitBackbone, feature_map: Tensor) -> None:
    """Localities are windows of the map: the last block has to take them."""
    side = min(_WINDOW, *feature_map.shape[2:])
    try:
        found = backbone.last(feature_map[:, :, :side, :side])
    except Exception:
        raise _NoMapError(f"its last block does not take a window of {side} x {side} of the map") from None
    if found.dim() != 4 or found.shape[1] != backbone.channels:
        raise _NoMapError("its last block makes something else of a window than of the whole map")


def _chain(network: nn.Module) -> tuple[SplitBackbone, Tensor]:
    """A network that is one module after the other, cut where its resolution drops last."""
    links = _links(network)
    probe = _probe()
    if not links:
        raise _NoMapError("it is no chain of modules")
    given, truth = _own_forward(network, links, probe)
    inside = {id(module) for module in network.modules()}
    called = [number for number, link in enumerate(links) if id(link) in inside]
    if [number for number, _ in given] != called:
        raise _NoMapError("it does not run its modules one after the other")
    known, maps, value = dict(given), list[Tensor](), probe
    for number, link in enumerate(links):
        if number in known and not _same(value, known[number]):
            raise _NoMapError("it computes something between its modules")
        value = link(value.clone())  # which it may change in place
        if not isinstance(value, Tensor) or value.dim() != 4:
            raise _NoMapError("its modules give no maps")
        maps.append(value)
    if not _same(value, truth):
        raise _NoMapError("it computes something between its modules")
    ends = _block_ends(links, maps)
    if len(ends) < 2 or not 1 < _side(value) < 64:
        raise _NoMapError("its resolution does not drop as it should")
    cut = ends[1] + 1
    feature_map = maps[cut - 1]
    trunk, last, channels = links[:cut], links[cut:], value.shape[1]
    early = sum(_side(one) > _side(feature_map) for one in maps[:cut])
    if _channels_last(feature_map):  # as Swin transformers have them between their blocks
        trunk, last = [*trunk, Permute(0, 3, 1, 2)], [Permute(0, 2, 3, 1), *last]
        feature_map = feature_map.permute(0, 3, 1, 2)
    if _channels_last(value):
        last, channels = [*last, Permute(0, 3, 1, 2)], value.shape[3]
    backbone = SplitBackbone(
        Chain(*trunk),
        Chain(*last),
        early=early,
        map_channels=feature_map.shape[1],
        channels=channels,
        stride=_PROBE // _side(feature_map),
    )
    return backbone.eval(), feature_map


def _given_parts(network: Any) -> tuple[SplitBackbone, Tensor]:
    """A module that comes in two parts; of what shape their maps are is found out."""
    if not isinstance(network.trunk, nn.Module) or not isinstance(network.last, nn.Module):
        raise _NoMapError("its trunk and its last are not both modules")
    trunk, last = (Chain(*part) if type(part) is nn.Sequential else part for part in (network.trunk, network.last))
    trunk, last = (part if isinstance(part, Chain) else Chain(part) for part in (trunk, last))
    maps, value = list[Tensor](), _probe()
    try:
        for link in trunk.eval():
            value = link(value)
            maps.append(value)
        found = last.eval()(value)
    except Exception as error:
        raise _NoMapError(f"its parts do not take what they are given ({_short(error)})") from None
    if not all(isinstance(one, Tensor) and one.dim() == 4 and len(one) == 1 for one in (value, found)):
        raise _NoMapError("its parts give no maps [N, C, H, W]")
    if type(network).forward is not nn.Module.forward and not _same(found, network(_probe())):
        raise _NoMapError("its own forward computes something else than its last of its trunk")
    if isinstance(network, SplitBackbone):
        return network, value
    early = sum(one.dim() == 4 and _side(one) > _side(value) for one in maps)
    stride, channels = _PROBE // _side(value), found.shape[1]
    backbone = SplitBackbone(trunk, last, early=early, map_channels=value.shape[1], channels=channels, stride=stride)
    return backbone.eval(), value


def _transformer(network: Any) -> tuple[SplitBackbone, Tensor]:
    """A vision transformer of torchvision or timm before its last block; its patches are the places of a map."""
    try:
        trunk, last, channels, stride, side = transformer_parts(network)
        probe = _probe(side)
        if hasattr(network, "forward_features"):
            truth = network.forward_features(probe)
        else:
            _, truth = _own_forward(network, [], probe)
            truth = truth[:, None]  # of the class token alone
        tokens = trunk.tokens(probe)
        found = last.norm(last.block(tokens))[:, : truth.shape[1]]
    except Exception:
        raise _NoMapError("it makes something of its own of patches and tokens") from None
    if not _same(found, truth):
        raise _NoMapError("it makes something of its own of patches and tokens")
    feature_map = trunk(_probe(14 * stride))
    backbone = SplitBackbone(
        Chain(trunk), Chain(last), early=0, map_channels=channels, channels=channels, stride=stride
    )
    return backbone.eval(), feature_map


def _probe(side: int = _PROBE) -> Tensor:
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))


def _same(found: Tensor, truth: Tensor) -> bool:
    """Whether a map is the library's; where that gives its mean over places, whether the mean is."""
    if found.dim() == 4 and truth.dim() == 2:
        found = found.mean(dim=(2, 3))
    return found.shape == truth.shape and bool(((found - truth).abs() <= 1e-4 * truth.abs().max().clamp_min(1)).all())


def _short(error: Exception) -> str:
    return plain_text(str(error).strip().partition("\n")[0])[:100].rstrip(". ")


class Permute(nn.Module):
    """Dimensions in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, value: Tensor) -> Tensor:
        return value.permute(self.order).contiguous()


class Renormalise(nn.Module):
    """Images that are normalised as is usual on ImageNet, normalised by another mean and std."""

    factor: Tensor
    shift: Tensor

    def __init__(self, wanted: Preprocessing) -> None:
        super().__init__()
        usual = Preprocessing()
        mean, std, usual_mean, usual_std = (
            torch.tensor(one)[:, None, None] for one in (wanted.mean, wanted.std, usual.mean, usual.std)
        )
        self.register_buffer("factor", usual_std / std, persistent=False)
        self.register_buffer("shift", (usual_mean - mean) / std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factor + self.shift


def _channels_last(feature_map: Tensor) -> bool:
    """Whether a map of a square picture is [N, H, W, C]."""
    return feature_map.shape[1] == feature_map.shape[2] != feature_map.shape[3]


def _side(feature_map: Tensor) -> int:
    return int(feature_map.shape[2])  # of [N, C, H, W] and of [N, H, W, C]


def _block_ends(links: list[nn.Module], maps: list[Tensor]) -> list[int]:
    """The last link of every block, from the last block on: those that share a resolution are one.

    A pooling at the end is no block of its own, as C_l would have nothing to learn: the last convolution is its C^n.
    """
    ends = [len(maps) - 1]
    for number in range(len(maps) - 2, -1, -1):
        weighted = any(weight.dim() > 1 for link in links[number + 1 :] for weight in link.parameters())
        if weighted and _side(maps[number]) > _side(maps[ends[-1]]):
            ends.append(number)
    return ends


def _links(network: nn.Module) -> list[nn.Module]:
    links: list[nn.Module] = []
    if getattr(network, "transform_input", False):  # which it has in its forward alone
        links.append(Renormalise(Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))))
    for name, child in network.named_children():
        if name.startswith(HEADS):
            break
        if name not in SIDE_EXITS:
            links.extend(child.children() if name in _CONTAINERS else [child])
    if type(network).__name__ == "DenseNet" and not hasattr(network, "forward_features"):  # in its forward alone, too
        links.append(nn.ReLU())
    return links


def _own_forward(network: Any, links: list[nn.Module], probe: Tensor) -> tuple[list[tuple[int, Tensor]], Tensor]:
    """What the network's own forward gives to each of these modules, by number and in order, and its feature map.

    That is what its library calls so, or what it shows its head, or, without one, what it returns.
    """
    given: list[tuple[int, Tensor]] = []
    shown: list[Tensor] = []

    def watch(module: nn.Module, keep: Callable[[Tensor], object]) -> RemovableHandle:
        def hook(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if len(arguments) != 1 or named or not isinstance(arguments[0], Tensor):
                raise _NoMapError("it gives its modules more than the map before them")
            keep(arguments[0].clone())  # what follows may change it in place

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    def numbered(number: int) -> Callable[[Tensor], object]:
        return lambda value: given.append((number, value))

    whole = hasattr(network, "forward_features")
    heads = [] if whole else [child for name, child in network.named_children() if name.startswith(HEADS)]
    hooks = [watch(link, numbered(number)) for number, link in enumerate(links)]
    hooks += [watch(head, shown.append) for head in heads]
    try:
        found = network.forward_features(probe) if whole else network(probe)
    except _NoMapError:
        raise
    except Exception:
        raise _NoMapError(f"it takes images of one size alone, and none of {probe.shape[2]} pixels") from None
    finally:
        for hook in hooks:
            hook.remove()
    truth = shown[0] if shown else found
    if not isinstance(truth, Tensor):
        raise _NoMapError("it gives more than one map")
    return given, truth


def copy_of_last(backbone: SplitBackbone) -> nn.Module:
    """C_l: the structure and the initial weights of C^n, its own from then on."""
    return copy.deepcopy(backbone.last)
