"""run.json: what a run came from, so that it can be made again: versions, revision, command, data, time."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import erpcnet
from erpcnet.data import ZeroShotDataset
from erpcnet.data.cache import fingerprint

TIME = "%Y-%m-%dT%H:%M:%S%z"
PACKAGES = ("torch", "torchvision", "numpy", "pillow", "accelerate", "timm")


def provenance(dataset: ZeroShotDataset, device: torch.device, processes: int) -> dict[str, Any]:
    """What is known when a training starts.

    Returns:
        Plain values: the command, versions of this and other packages, the revision of a git checkout that it runs
        from, the machine, and the dataset with its digest and that of its picture files.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "erpcnet": erpcnet.__version__,
        "revision": _revision(),
        "command": shlex.join(sys.argv),
        "started": time.strftime(TIME),
        "python": platform.python_version(),
        "packages": {package: found for package in PACKAGES if (found := _version(package))},
        "platform": platform.platform(),
        "device": name,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "dataset": _of_dataset(dataset),
    }


def rebuilt_provenance(dataset: ZeroShotDataset) -> dict[str, Any]:
    """What can still be known when run.json was damaged: the dataset, and nothing of how and when it was trained on.

    Returns:
        Plain values, with the time at which they were put together as `rebuilt`, by which they are known for that.
    """
    return {"rebuilt": time.strftime(TIME), "dataset": _of_dataset(dataset)}


def digest_of_pictures(dataset: ZeroShotDataset) -> str:
    """Changes when one of the dataset's picture files does, at whatever size they are used."""
    return fingerprint(dataset, size=0)


def _of_dataset(dataset: ZeroShotDataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "folder": str(dataset.root.resolve()),
        "digest": dataset.fingerprint(),
        "pictures": digest_of_pictures(dataset),
        "images": len(dataset.image_paths),
        "seen_classes": len(dataset.seen),
        "unseen_classes": len(dataset.unseen),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The commit of the checkout that this package runs from, with a + if files have changed; None elsewhere."""
    here = Path(erpcnet.__file__).parent
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+", "--match", "none"]
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", "__init__.py"]
        subprocess.run(tracked, capture_output=True, check=True, timeout=5)
        return subprocess.run(command, capture_output=True, check=True, timeout=5, text=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
