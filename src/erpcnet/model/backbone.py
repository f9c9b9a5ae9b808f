"""Backbones by name: of torchvision, of timm and of one's own, with their weights."""

from __future__ import annotations

import difflib
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from erpcnet.config.ranges import check_name
from erpcnet.errors import InputError
from erpcnet.model.backbone_split import HEADS, SIDE_EXITS, Renormalise, SplitBackbone, split
from erpcnet.model.chain import Chain
from erpcnet.model.preprocessing import TIMM, Preprocessing
from erpcnet.model.small_backbones import SmallResNet, resnet50_v1
from erpcnet.utils.files import plain_text

# Torchvision's networks with weights of Google's: what they are shown is normalised once more, in their own forward.
_GOOGLES = ("googlenet", "inception_v3")
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
    if weights == "none":
        return backbone
    if weights == "default" or weights in weight_names(name):
        # Only now that it is known to fit: the download may be large.
        filled = _split_named(_create(name, weights), name)
        if _shapes(filled) != _shapes(backbone):  # as of some for larger images: a run of it could not be loaded
            raise InputError(
                f"the weights '{weights}' of '{name}' are of another network than the name alone stands for, such as "
                "one for larger images; choose other weights."
            )
        return filled
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
    needed = [key for key in own if not key.startswith((*HEADS, *SIDE_EXITS)) and "num_batches_tracked" not in key]
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


def _split_named(network: nn.Module, name: str) -> SplitBackbone:
    """The same of one that may have a preprocessing of its own."""
    backbone = split(network, name)
    wanted = BACKBONES[name].preprocessing if name in BACKBONES else Preprocessing()
    if wanted != Preprocessing():
        backbone.trunk = Chain(Renormalise(wanted), *backbone.trunk)
        backbone._early += backbone._early > 0
    return backbone


BACKBONES = {"small": RegisteredBackbone(SmallResNet), "resnet50_v1": RegisteredBackbone(resnet50_v1)}
