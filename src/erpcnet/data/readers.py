"""Finding out which reader a folder needs."""

from __future__ import annotations

from pathlib import Path

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.folder import read_folder
from erpcnet.data.xlsa17 import read_xlsa17
from erpcnet.errors import InputError


def read_dataset(root: str | Path) -> ZeroShotDataset:
    """Read the dataset in a folder, whatever its format."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give --data the folder of a dataset.")
    if not any(root.iterdir()):
        raise InputError(f"{root} is empty; `erpcnet data make creatures {root}` draws a dataset into it.")
    if (root / "att_splits.mat").is_file():
        return read_xlsa17(root)
    if (root / "attributes.csv").is_file():
        return read_folder(root)
    raise InputError(
        f"{root} holds no attributes.csv (own data: `erpcnet data init {root}` starts one) and no att_splits.mat "
        "(CUB, SUN, AwA2, aPY), so it is no dataset that this program reads; see docs/data.md."
    )
