"""model.safetensors: all that prediction needs, in one file.

Tensors are the network's state and `class_attributes` [C, A]; one metadata entry, `erpcnet`, is JSON: the format's
version, every setting, the operating point, the preprocessing and the names of classes and attributes. A checksum
covers all of it, so that a flipped bit is noticed.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from erpcnet.config import Config
from erpcnet.config.build import build
from erpcnet.config.ranges import shorten
from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.inference.class_table import ClassTable
from erpcnet.model import ERPCNet, OperatingPoint
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.utils.files import as_path, write_atomically

MODEL = "model.safetensors"
FORMAT = 3  # raise it when older files can no longer be read
METADATA, CLASS_ATTRIBUTES = "erpcnet", "class_attributes"


class StoredModel(NamedTuple):
    """What a file of weights holds."""

    config: Config
    network: ERPCNet
    point: OperatingPoint
    preprocessing: Preprocessing
    classes: ClassTable


def save_model(
    path: Path,
    network: ERPCNet,
    dataset: ZeroShotDataset,
    config: Config,
    point: OperatingPoint,
    preprocessing: Preprocessing,
) -> None:
    """Everything that prediction needs, in one file; the same network gives the same bytes."""
    state = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    wrong = [key for key, value in state.items() if not value.isfinite().all()]
    if wrong:
        raise InputError(
            f"the training has diverged: '{wrong[0]}' holds values that are no numbers; lower --stage1.lr."
        )
    state[CLASS_ATTRIBUTES] = torch.from_numpy(dataset.attributes)
    about = {
        "format": FORMAT,
        "config": config.to_values(),
        "operating_point": point.to_json(),
        "preprocessing": asdict(preprocessing),
        "classes": list(dataset.classes),
        "seen": [int(number) for number in dataset.seen],
        "attribute_names": list(dataset.attribute_names),
    }
    # Written here, as the library would let nobody else read the file.
    write_atomically(path, _encoded(about, state))


def _encoded(about: dict[str, Any], state: dict[str, Tensor]) -> bytes:
    """One entry of metadata: the library writes several in any order."""
    metadata = {**about, "checksum": _checksum(about, state)}
    return save(state, metadata={METADATA: json.dumps(metadata, allow_nan=False)})


def rewrite_classes(path: Path, classes: ClassTable) -> bytes:
    """The bytes of a stored model with other classes: added, changed or removed ones."""
    about, state = _read_tensors(path)
    state[CLASS_ATTRIBUTES] = torch.from_numpy(classes.attributes)
    about["classes"] = list(classes.names)
    about["seen"] = np.flatnonzero(classes.seen).tolist()
    return _encoded(about, state)


def is_model(path: Path) -> bool:
    """Whether a file holds a trained network of this program, of whatever version."""
    try:
        with safe_open(path, framework="numpy") as file:
            return METADATA in (file.metadata() or {})
    except Exception:  # no file, or anything else than safetensors
        return False


def model_path(run: str | Path) -> Path:
    """The file of a run's model, given as a folder or as the file itself."""
    path = as_path(run, "the run")
    path = path if path.is_file() else path / MODEL
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder that `erpcnet train --out` made.")
    return path


def read_model(run: str | Path) -> StoredModel:
    """Read the model of a run.

    Args:
        run: Its folder, or the file itself.

    Raises:
        InputError: It is not there, of another version, or damaged.
    """
    path = model_path(run)
    try:
        about, state = _read_tensors(path)
        return _stored_model(about, state)
    except (_OtherFormatError, ModuleNotFoundError):  # the latter of timm, which is an extra
        raise
    except Exception as error:
        plain = isinstance(error, InputError | SafetensorError)
        detail = (
            " ".join(str(error).split())[:200].rstrip(".") if plain else "what it says of itself is in another form"
        )
        raise InputError(f"{path} is damaged, or no model of this version ({detail}).") from None


def _read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a file whose checksum holds."""
    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {})[METADATA])
        if not isinstance(about, dict):
            raise InputError("its metadata is no dictionary")
        _check_format(path, about)
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if about.pop("checksum", None) != _checksum(about, state):
        raise InputError("its checksum is wrong: some bits have changed since it was written")
    return about, state


def _checksum(about: dict[str, Any], state: dict[str, Tensor]) -> int:
    """Of the metadata, and of every tensor's name, type, shape and bytes."""
    total = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(state.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def _stored_model(about: dict[str, Any], state: dict[str, Tensor]) -> StoredModel:
    """The model, every part of it checked: a checksum says that nothing changed, and not who wrote it."""
    wrong = [key for key, value in state.items() if not value.isfinite().all()]
    if wrong:
        raise InputError(f"'{wrong[0]}' holds values that are no numbers")
    config = Config.from_values(about["config"])
    attributes, names = state.pop(CLASS_ATTRIBUTES).numpy(), tuple(about["classes"])
    numbers = about["seen"]
    if not all(type(number) is int and 0 <= number < len(names) for number in numbers):
        raise InputError("its seen classes are none of its classes")
    table = ClassTable(names, attributes, np.isin(np.arange(len(names)), numbers), tuple(about["attribute_names"]))
    # The weights come from this file, so the backbone needs none of its own.
    bare = replace(config.model, backbone=replace(config.model.backbone, weights="none"))
    network = ERPCNet(bare, attributes.shape[1], config.data.image_size, config.variant)
    _check_state(state, network)
    network.load_state_dict(state)
    point = OperatingPoint.from_json(about["operating_point"])
    preprocessing = build(Preprocessing, about["preprocessing"])
    network = network.to(memory_format=torch.channels_last)
    return StoredModel(config, network.eval(), point, preprocessing, table)


def _check_state(state: dict[str, Tensor], network: ERPCNet) -> None:
    """Refuse weights that are not those of the network, by name, shape or type."""
    own = network.state_dict()
    for name in (*own, *state):
        if name not in state or name not in own:
            raise InputError(f"it {'has no' if name not in state else 'has'} weights '{name}', unlike its network")
        found, wanted = state[name], own[name]
        if name == "prototypes" and found.dim() == 2:  # as many as there were seen classes
            wanted = wanted.new_empty(len(found), wanted.shape[1])
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            kinds = (f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in (found, wanted))
            raise InputError(f"its weights '{name}' are {' and not '.join(kinds)}")


class _OtherFormatError(InputError):
    """The file is of another version of this program."""


def _check_format(path: Path, about: dict[str, Any]) -> None:
    found = about.get("format", 1)
    if type(found) is not int:
        raise InputError("the version of its format is no whole number")
    if found != FORMAT:
        remedy = "train it again, or use the version that wrote it" if found < FORMAT else "install a newer version"
        raise _OtherFormatError(
            f"{path} is of format {shorten(found)}, and this version of erpcnet reads format {FORMAT}; {remedy}."
        )
