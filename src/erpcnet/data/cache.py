"""All images of a dataset decoded once into one array.

A picture is squeezed whole into a square of `size` pixels; its own width and height are kept beside, so that a
crop taken later is undistorted (see `transforms`). Nothing is cut off that a crop might have wanted.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.images import load_image, squeeze
from erpcnet.errors import InputError
from erpcnet.utils.progress import track

FORMAT = 1  # raise it when the stored layout changes
FOLDER = ".erpcnet-cache"


@dataclass(frozen=True)
class ImageCache:
    """`pixels` [N, 3, S, S] uint8, memory-mapped, and `shapes` [N, 2]: each picture's own height and width."""

    pixels: npt.NDArray[np.uint8]
    shapes: npt.NDArray[np.float32]

    @property
    def size(self) -> int:
        return int(self.pixels.shape[-1])


def open_cache(dataset: ZeroShotDataset, size: int, workers: int | None = None) -> ImageCache:
    """The dataset's images at `size`, from the cache beside it, which is built if need be."""
    folder = cache_folder(dataset)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made ({error.strerror}); set ERPCNET_CACHE to a folder where decoded images may lie."
        ) from None
    key = fingerprint(dataset, size)
    done = folder / f"{key}.json"
    # Two processes that start at once: one builds, the other waits and then reads.
    with FileLock(folder / f"{key}.lock"):
        if not done.is_file():
            _build(dataset, size, folder, key, workers)
            _forget_others(folder, key, dataset.name, size)
        shapes = np.asarray(json.loads(done.read_text())["shapes"], dtype=np.float32)
        return ImageCache(np.load(folder / f"{key}.npy", mmap_mode="r"), shapes)


def cache_folder(dataset: ZeroShotDataset) -> Path:
    """Beside the dataset, or where ERPCNET_CACHE says, for datasets on read-only disks."""
    elsewhere = os.environ.get("ERPCNET_CACHE")
    if not elsewhere:
        return dataset.root / FOLDER
    root = dataset.root.resolve()
    return Path(elsewhere) / f"{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def fingerprint(dataset: ZeroShotDataset, size: int) -> str:
    """Changes when a source file, the list of images or a setting does."""
    digest = hashlib.sha256(f"{FORMAT} {size}".encode())
    for number, name in enumerate(dataset.image_paths):
        status = (dataset.root / name).stat()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        if dataset.boxes is not None:
            digest.update(dataset.boxes[number].tobytes())
    return digest.hexdigest()[:20]


def _build(dataset: ZeroShotDataset, size: int, folder: Path, key: str, workers: int | None) -> None:
    """Decode into a file of another name and rename it last: a killed build leaves nothing that is read."""
    for stale in folder.glob(f".building-{key}-*"):
        stale.unlink()  # of a build that was killed: whoever builds this key holds its lock
    handle, name = tempfile.mkstemp(prefix=f".building-{key}-", suffix=".npy", dir=folder)
    os.close(handle)
    work = Path(name)
    try:
        shapes = _decode(dataset, size, work, workers)
        work.replace(folder / f"{key}.npy")
    finally:
        work.unlink(missing_ok=True)
    note = {"dataset": dataset.name, "size": size, "shapes": shapes.tolist()}
    partial = folder / f".{key}.json"
    partial.write_text(json.dumps(note))
    partial.replace(folder / f"{key}.json")


def _decode(dataset: ZeroShotDataset, size: int, file: Path, workers: int | None) -> npt.NDArray[np.float32]:
    """Every image into `file`; returns their shapes.

    Threads suffice: Pillow decodes and resizes, and NumPy copies, without holding the interpreter's lock. Each writes
    what it decoded: if one wrote for all, the others would wait for it.
    """
    count = len(dataset.image_paths)
    pixels = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(count, 3, size, size))
    shapes = np.empty((count, 2), dtype=np.float32)

    def store(row: int) -> None:
        picture = load_image(dataset.root / dataset.image_paths[row], _box(dataset, row))
        shapes[row] = picture.height, picture.width
        pixels[row] = squeeze(picture, size)

    with ThreadPoolExecutor(max_workers=workers or os.cpu_count()) as pool:
        for _ in track(pool.map(store, range(count)), total=count, what="Decoding images"):
            pass
    pixels.flush()
    return shapes


def _box(dataset: ZeroShotDataset, row: int) -> npt.NDArray[np.int64] | None:
    return None if dataset.boxes is None else dataset.boxes[row]


def _forget_others(folder: Path, key: str, name: str, size: int) -> None:
    """Remove what an earlier state of the same images left at this size."""
    for note in folder.glob("[!.]*.json"):
        if note.stem == key:
            continue
        told = json.loads(note.read_text())
        if (told["dataset"], told["size"]) == (name, size):
            note.unlink()
            note.with_suffix(".npy").unlink(missing_ok=True)
