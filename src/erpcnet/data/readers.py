"""Finding out which reader a folder needs."""

from __future__ import annotations

from pathlib import Path

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.folder import read_folder
from erpcnet.errors import InputError


def read_dataset(root: str | Path) -> ZeroShotDataset:
    """Read the dataset in a folder, whatever its format."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give --data the folder of a dataset.")
    if not any(root.iterdir()):
        raise InputError(f"{root} is empty; `erpcnet data make creatures {root}` draws a dataset into it.")
    if (root / "attributes.csv").is_file():
        return read_folder(root)
    raise InputError(
        f"{root} holds no attributes.csv, so it is no dataset this program reads; see docs/data.md."
    )
