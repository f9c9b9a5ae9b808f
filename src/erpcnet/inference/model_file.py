"""model.safetensors: all that prediction needs, in one file.

Tensors are the network's state and `class_attributes` [C, A]; one metadata entry, `erpcnet`, is JSON: the format's
version, every setting, the operating point, the preprocessing and the names of classes and attributes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save

from erpcnet.config import Config
from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.inference.class_table import ClassTable
from erpcnet.model import ERPCNet, OperatingPoint
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.utils.files import write_atomically

MODEL = "model.safetensors"
FORMAT = 2  # raise it when older files can no longer be read
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
    # One entry: the library writes several in any order. And written here, as it would let nobody else read the file.
    write_atomically(path, save(state, metadata={METADATA: json.dumps(about, allow_nan=False)}))


def is_model(path: Path) -> bool:
    """Whether a file holds a trained network of this program, of whatever version."""
    try:
        with safe_open(path, framework="numpy") as file:
            return METADATA in (file.metadata() or {})
    except Exception:  # no file, or anything else than safetensors
        return False


def read_model(run: str | Path) -> StoredModel:
    """Read the model of a run.

    Args:
        run: Its folder, or the file itself.

    Raises:
        InputError: It is not there, of another version, or damaged.
    """
    path = Path(run)
    path = path if path.is_file() else path / MODEL
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder that `erpcnet train --out` made.")
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})[METADATA])
            _check_format(path, about)
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config = Config.from_values(about["config"])
        attributes = state.pop(CLASS_ATTRIBUTES).numpy()
        # The weights come from this file, so the backbone needs none of its own.
        bare = replace(config.model, backbone=replace(config.model.backbone, weights="none"))
        network = ERPCNet(bare, attributes.shape[1], config.data.image_size, config.variant)
        network.load_state_dict(state)
        point = OperatingPoint.from_json(about["operating_point"])
        preprocessing = _preprocessing(about["preprocessing"])
        seen = np.isin(np.arange(len(about["classes"])), about["seen"])
        table = ClassTable(tuple(about["classes"]), attributes, seen, tuple(about["attribute_names"]))
    except (_OtherFormatError, ModuleNotFoundError):  # the latter of timm, which is an extra
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is no model of this version ({type(error).__name__}: {detail}).") from None
    network = network.to(memory_format=torch.channels_last)
    return StoredModel(config, network.eval(), point, preprocessing, table)


class _OtherFormatError(InputError):
    """The file is of another version of this program."""


def _check_format(path: Path, about: dict[str, Any]) -> None:
    found = about.get("format", 1)
    if found != FORMAT:
        remedy = "train it again, or use the version that wrote it" if found < FORMAT else "install a newer version"
        raise _OtherFormatError(
            f"{path} is of format {found}, and this version of erpcnet reads format {FORMAT}; {remedy}."
        )


def _preprocessing(values: dict[str, Any]) -> Preprocessing:
    """From JSON, which has lists for tuples."""
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Preprocessing(**known)
