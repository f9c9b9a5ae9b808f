"""Finding out which reader a folder needs."""

from __future__ import annotations

import os
from pathlib import Path

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.folder import read_folder
from erpcnet.data.xlsa17 import read_xlsa17
from erpcnet.errors import InputError
from erpcnet.utils.files import as_path


def read_dataset(root: str | Path) -> ZeroShotDataset:
    """Read the dataset in a folder, whatever its format.

    Args:
        root: A folder with attributes.csv (one's own data) or att_splits.mat (CUB, SUN, AwA2, aPY).

    Returns:
        The dataset, checked; images are opened when they are needed.

    Raises:
        InputError: There is no such folder, it holds something else, or its files do not fit each other.

    Examples:
        >>> read_dataset("data/creatures").fingerprint()
    """
    root = as_path(root, "the dataset")
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give --dataset the folder of a dataset.")
    if not os.access(root, os.R_OK | os.X_OK):
        raise InputError(f"{root} may not be read (Permission denied).")
    if not any(root.iterdir()):
        raise InputError(f"{root} is empty; `erpcnet data make creatures {root}` draws a dataset into it.")
    if (root / "att_splits.mat").is_file():
        return _without_leaks(read_xlsa17(root))
    if (root / "attributes.csv").is_file():
        return _without_leaks(read_folder(root))
    raise InputError(
        f"{root} holds no attributes.csv (own data: `erpcnet data init {root}` starts one) and no att_splits.mat "
        "(CUB, SUN, AwA2, aPY), so it is no dataset that this program reads; see docs/own-data.md."
    )


def _without_leaks(dataset: ZeroShotDataset) -> ZeroShotDataset:
    """The dataset, if no training image is a test image under another name, by a link."""
    trained: dict[tuple[int, ...], str] = {}
    for row in dataset.train:
        trained[_identity(dataset, row)] = dataset.image_paths[row]
    for row in (*dataset.test_seen, *dataset.test_unseen):
        other = trained.get(_identity(dataset, row))
        if other is not None:
            raise InputError(
                f"{dataset.root}: '{dataset.image_paths[row]}' is a test image and, as '{other}', a training image; "
                "keep one of the two."
            )
    return dataset


def _identity(dataset: ZeroShotDataset, row: int) -> tuple[int, ...]:
    """The file of an instance, whatever its name, and the box in it."""
    status = (dataset.root / dataset.image_paths[row]).stat()
    box = () if dataset.boxes is None else tuple(int(edge) for edge in dataset.boxes[row])
    return status.st_dev, status.st_ino, *box
