"""Backbones of torchvision, of timm and of one's own, split before their last block.

f_G = {C^1, ..., C^n}: `trunk` computes e^{n-1}, the map that localities are cut from, and `last` is C^n. A block begins
where the resolution drops, and has weights. A split is compared with the network's own forward when it is made.
"""

from __future__ import annotations

import copy
import difflib
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from erpcnet.config.ranges import check_name
from erpcnet.errors import InputError
from erpcnet.model.preprocessing import TIMM, Preprocessing
from erpcnet.utils.files import plain_text

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
# Torchvision's networks with weights of Google's: what they are shown is normalised once more, in their own forward.
_GOOGLES = ("googlenet", "inception_v3")
_PROBE = 128  # pixels of the image that a split is tried on
_WINDOW = 5  # the side of the window of its map that its last block is tried on: the paper's


class Chain(nn.Sequential):
    """Modules one after the other. torch.compile of torch 2.11 takes this forward whole, and torch's own in pieces."""

    def forward(self, value: Tensor) -> Tensor:
        for link in self:
            value = link(value)
        return value


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


BackboneFactory = Callable[[], nn.Module]
Factory = TypeVar("Factory", bound=BackboneFactory)


class RegisteredBackbone(NamedTuple):
    """What builds a backbone, and how it wants images to be normalised, if otherwise than is usual on ImageNet."""

    build: BackboneFactory
    preprocessing: Preprocessing = Preprocessing()


def register_backbone(name: str, preprocessing: Preprocessing | None = None) -> Callable[[Factory], Factory]:
    """Make a backbone known by a name that `model.backbone.name` takes: a class, or a function without arguments.

    What it builds is a `SplitBackbone`, a module in two parts (`trunk`: images [N, 3, H, W] to e^{n-1} [N, C', H', W'];
    `last`: that map, or a window of it, to e^n [N, C, H'', W'']), or a chain of modules, which is split by itself. Of
    which shape the maps are is found out by trying.

    Args:
        name: No library's, and not registered yet.
        preprocessing: Mean and std that it was trained with, if they are not those of ImageNet.

    Examples:
        >>> @register_backbone("mine")
        ... class Mine(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8, padding=1), nn.ReLU())
        ...         self.last = nn.Conv2d(8, 16, 3, stride=2, padding=1)
    """
    from torchvision import models

    wanted = preprocessing or Preprocessing()
    check_name(name, "a backbone")
    if name in BACKBONES or name in models.list_models(module=models) or name.startswith(TIMM):
        raise InputError(f"there is a backbone '{name}' already.")
    if wanted != Preprocessing(wanted.mean, wanted.std):
        raise InputError(
            f"backbone '{name}' can have a mean and a std of its own, and no more; --data.crop_share sets the share of "
            "the centre crop."
        )

    def register(build: Factory) -> Factory:
        BACKBONES[name] = RegisteredBackbone(build, wanted)
        return build

    return register


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
    if weights == "default" and name in BACKBONES and packaged.is_file():
        with resources.as_file(packaged) as path:
            return create_backbone(name, str(path))
    backbone = _split_named(network := _create(name, None), name)
    if weights == "default" or weights in weight_names(name):
        # Only now that it is known to fit: the download may be large.
        filled = _split_named(_create(name, weights), name)
        if _shapes(filled) != _shapes(backbone):  # as of some for larger images: a run of it could not be loaded
            raise InputError(
                f"the weights '{weights}' of '{name}' are of another network than the name alone stands for, such as "
                "one for larger images; choose other weights."
            )
        return filled
    if weights != "none":
        named = ", ".join(("'none'", *(("'default'",) if name not in BACKBONES else ()), *weight_names(name)))
        if not Path(weights).is_file():
            raise InputError(
                f"'{name}' has no weights '{weights}', and there is no such file; --model.backbone.weights takes "
                f"{named} or a file of weights."
            )
        load_backbone_weights(network, Path(weights))  # the backbone holds the same modules
    return backbone


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in module.state_dict().items()}


def list_backbones() -> list[str]:
    """Names beside those of torchvision and timm."""
    return sorted(BACKBONES)


def weight_names(name: str) -> list[str]:
    """The names under which torchvision has weights of a backbone, the oldest first; of others, none."""
    from torchvision import models

    if name in BACKBONES or name.startswith(TIMM) or name not in models.list_models(module=models):
        return []
    return [str(member.name) for member in models.get_model_weights(name)]


def _create(name: str, weights: str | None) -> nn.Module:
    """A network as its library makes it, with weights that are downloaded, or with none."""
    pretrained = weights is not None
    if name in BACKBONES:
        if pretrained:
            raise InputError(f"backbone '{name}' has no weights to download; give a file or 'none'.")
        network = BACKBONES[name].build()
        if not isinstance(network, nn.Module):
            raise InputError(f"backbone '{name}' was registered with what builds no module.")
        return network
    try:
        if name.startswith(TIMM):
            return _timms(name.removeprefix(TIMM), pretrained)
        from torchvision import models

        if name not in models.list_models(module=models):
            raise InputError(
                f"there is no backbone '{name}'{_near(name, [*models.list_models(module=models), *BACKBONES])}; give a "
                f"torchvision name, 'timm/NAME' or one of {', '.join(list_backbones())}."
            )
        # The same with and without weights: a run is loaded without.
        own = {"transform_input": True, "init_weights": False} if name in _GOOGLES else {}
        return models.get_model(name, weights="DEFAULT" if weights == "default" else weights, **own)
    except (InputError, ModuleNotFoundError):  # of timm, which is an extra
        raise
    except Exception as error:
        if not pretrained:
            raise InputError(f"backbone '{name}' cannot be made: {error}") from None
        raise InputError(
            f"the weights of '{name}' could not be downloaded ({type(error).__name__}: {str(error).splitlines()[0]}); "
            "fetch the file on a machine with a network and give its path as --model.backbone.weights FILE."
        ) from None


def _timms(name: str, pretrained: bool) -> nn.Module:
    import timm

    plain = name.partition(".")[0]  # NAME.WEIGHTS
    if ":" not in name and not timm.is_model(plain):
        raise InputError(f"timm has no backbone '{name}'{_near(plain, timm.list_models())}.")
    return timm.create_model(name, pretrained=pretrained, num_classes=0)


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names)
    return f" (near: {', '.join(close)})" if close else ""


def load_backbone_weights(network: nn.Module, path: Path) -> None:
    """Fill a whole backbone from a safetensors or torch file; its classifier may be missing or other.

    Raises:
        InputError: It is no file of weights, or of another network's.
    """
    shown = plain_text(str(path))
    state, own = _read_weights(path, shown), network.state_dict()
    needed = [key for key in own if not key.startswith((*_HEADS, *_SIDE_EXITS)) and "num_batches_tracked" not in key]
    missing = [key for key in needed if key not in state]
    if missing:
        raise InputError(
            f"{shown} does not fit the backbone: {len(missing)} weights are missing, '{missing[0]}' first."
        )
    for key in needed:
        found, wanted = tuple(state[key].shape), tuple(own[key].shape)
        if found != wanted:
            raise InputError(f"{shown} does not fit the backbone: its '{key}' is {found}, and not {wanted}.")
        if not state[key].isfinite().all():
            raise InputError(f"{shown} is damaged: its '{key}' holds values that are no numbers.")
    fitting = {key: value.float() for key, value in state.items() if key in own and own[key].shape == value.shape}
    network.load_state_dict(fitting, strict=False)


def _read_weights(path: Path, shown: str) -> dict[str, Tensor]:
    """What a file holds by name; of what is wrong with it, what a person can do something about."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror or 'it is no file of weights'}).") from None
    except SafetensorError:
        raise InputError(f"{shown} is no file of weights: it is not safetensors, or not all of it.") from None
    except pickle.UnpicklingError:
        why = "it holds more than tensors" if zipfile.is_zipfile(path) else "torch.save did not write it"
        raise InputError(f"{shown} is no file of weights: {why}.") from None
    except Exception:  # whatever comes of reading bytes that are something else
        raise InputError(f"{shown} is no file of weights: torch.save did not write it, or not all of it.") from None
    if not isinstance(found, dict) or not any(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{shown} is no file of weights: it holds no tensors by name.")
    return {key: value for key, value in found.items() if isinstance(value, Tensor)}


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


def _split_named(network: nn.Module, name: str) -> SplitBackbone:
    """The same of one that may have a preprocessing of its own."""
    backbone = split(network, name)
    wanted = BACKBONES[name].preprocessing if name in BACKBONES else Preprocessing()
    if wanted != Preprocessing():
        backbone.trunk = Chain(Renormalise(wanted), *backbone.trunk)
        backbone._early += backbone._early > 0
    return backbone


def _parts(network: nn.Module) -> tuple[SplitBackbone, Tensor]:
    """The network in two, and e^{n-1} of a probe."""
    if isinstance(network, SplitBackbone) or (hasattr(network, "trunk") and hasattr(network, "last")):
        return _given_parts(network)
    if type(network).__name__ == "VisionTransformer":
        return _transformer(network)
    return _chain(network)


def _probe(side: int = _PROBE) -> Tensor:
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))


def _same(found: Tensor, truth: Tensor) -> bool:
    """Whether a map is the library's; where that gives its mean over places, whether the mean is."""
    if found.dim() == 4 and truth.dim() == 2:
        found = found.mean(dim=(2, 3))
    return found.shape == truth.shape and bool(((found - truth).abs() <= 1e-4 * truth.abs().max().clamp_min(1)).all())


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


def _transformer(network: Any) -> tuple[SplitBackbone, Tensor]:
    """A vision transformer of torchvision or timm before its last block; its patches are the places of a map."""
    try:
        trunk, last, channels, stride, side = _transformer_parts(network)
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


def _transformer_parts(network: Any) -> tuple[TransformerTrunk, TransformerLast, int, int, int]:
    """Trunk, last, channels, the side of a patch, and of the images that the positions are for."""
    if hasattr(network, "conv_proj"):  # torchvision's
        blocks, channels, stride = list(network.encoder.layers), network.hidden_dim, network.patch_size
        positions, patches, norm = network.encoder.pos_embedding, network.conv_proj, network.encoder.ln
        return (
            TransformerTrunk(patches, [network.class_token], positions, blocks[:-1]),
            TransformerLast(blocks[-1], norm),
            channels,
            stride,
            network.image_size,
        )
    blocks, channels = list(network.blocks), network.embed_dim  # timm's
    patches, stride = network.patch_embed.proj, network.patch_embed.proj.kernel_size[0]
    tokens = [token for token in (network.cls_token, network.reg_token) if token is not None]
    trunk = TransformerTrunk(
        patches, tokens, network.pos_embed, blocks[:-1], network.norm_pre, placed=not network.no_embed_class
    )
    return trunk, TransformerLast(blocks[-1], network.norm), channels, stride, network.patch_embed.img_size[0]


class TransformerTrunk(nn.Module):
    """Patches, their positions and all blocks but the last: images [N, 3, H, W] to a map [N, C, H', W'].

    Class token and registers, if there are any, take part, and are left out of the map. Positions are interpolated
    where the image has another size than the pretrained one.

    Args:
        patches: Images to a map of patches.
        tokens: What goes before the patches: the class token [1, 1, C], registers [1, R, C].
        positions: [1, tokens and places, C], or of the places alone.
        blocks: All but the last.
        before: What comes before the blocks.
        placed: Whether tokens have positions too.
    """

    def __init__(
        self,
        patches: nn.Module,
        tokens: list[nn.Parameter],
        positions: nn.Parameter,
        blocks: list[nn.Module],
        before: nn.Module | None = None,
        placed: bool = True,
    ) -> None:
        super().__init__()
        self.patches, self.positions = patches, positions
        self.token = tokens[0] if tokens else None
        self.registers = tokens[1] if len(tokens) > 1 else None
        self.before = before if before is not None else nn.Identity()
        self.blocks = Chain(*blocks)
        self.count = sum(token.shape[1] for token in tokens)
        self.placed = self.count if placed else 0

    def forward(self, images: Tensor) -> Tensor:
        feature_map = self.patches(images)
        side = feature_map.shape[-2:]
        return self._through(feature_map)[:, self.count :].transpose(1, 2).unflatten(2, side).contiguous()

    def tokens(self, images: Tensor) -> Tensor:
        """Those of the map, behind all that it leaves out: [N, tokens and places, C]."""
        return self._through(self.patches(images))

    def _through(self, feature_map: Tensor) -> Tensor:
        places = (feature_map + self._positions(feature_map.shape[-2:])).flatten(2).transpose(1, 2)
        before: list[Tensor] = [token for token in (self.token, self.registers) if token is not None]
        if before:
            first = torch.cat(before, dim=1)
            if self.placed:
                first = first + self.positions[:, : self.placed]
            places = torch.cat([first.expand(feature_map.shape[0], -1, -1), places], dim=1)
        return self.blocks(self.before(places))

    def _positions(self, side: torch.Size) -> Tensor:
        """[1, C, H', W']."""
        known = self.positions[:, self.placed :].transpose(1, 2)
        length = round(known.shape[2] ** 0.5)
        square = known.unflatten(2, (length, length))
        return square if square.shape[-2:] == side else F.interpolate(square, tuple(side), mode="bicubic")


class TransformerLast(nn.Module):
    """The last block and the norm behind it, on the places of a map or of a window of it, without the class token."""

    def __init__(self, block: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.block, self.norm = block, norm

    def forward(self, feature_map: Tensor) -> Tensor:
        tokens = feature_map.flatten(2).transpose(1, 2)
        return self.norm(self.block(tokens)).transpose(1, 2).unflatten(2, feature_map.shape[-2:]).contiguous()


def _links(network: nn.Module) -> list[nn.Module]:
    links: list[nn.Module] = []
    if getattr(network, "transform_input", False):  # which it has in its forward alone
        links.append(Renormalise(Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))))
    for name, child in network.named_children():
        if name.startswith(_HEADS):
            break
        if name not in _SIDE_EXITS:
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
    heads = [] if whole else [child for name, child in network.named_children() if name.startswith(_HEADS)]
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


BACKBONES = {"small": RegisteredBackbone(SmallResNet), "resnet50_v1": RegisteredBackbone(resnet50_v1)}
