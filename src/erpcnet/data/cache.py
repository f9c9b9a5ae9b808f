"""All images of a dataset decoded once into one array.

A picture is squeezed whole into a square of `size` pixels; its own width and height are kept beside, so that a
crop taken later is undistorted (see `transforms`). Nothing is cut off that a crop might have wanted.
"""

from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.images import load_image, squeeze
from erpcnet.errors import InputError
from erpcnet.utils.files import read_json, write_json
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
    count = len(dataset.image_paths)
    cache = _read(folder, key, count, size)
    if cache is not None:
        return cache
    try:
        # Two processes that start at once: one builds, the other waits and then reads.
        with FileLock(folder / f"{key}.lock"):
            cache = _read(folder, key, count, size)
            if cache is None:
                _build(dataset, size, folder, key, workers)
                _forget_others(folder, key, dataset.name, size)
                cache = _read(folder, key, count, size)
    except PermissionError as error:
        raise InputError(
            f"{folder} cannot be written to ({error.strerror}); set ERPCNET_CACHE to a folder where decoded images may "
            "lie."
        ) from None
    if cache is None:
        raise InputError(f"{folder} does not keep what is written to it; set ERPCNET_CACHE to another folder.")
    return cache


def _read(folder: Path, key: str, count: int, size: int) -> ImageCache | None:
    """What was built, if all of it is there; what is damaged, or another user's alone, is built again."""
    stored = folder / f"{key}.npy"
    try:
        note = read_json(folder / f"{key}.json", "it is built again")
        shapes = np.asarray(note["shapes"], dtype=np.float32)
        if not stored.is_file():
            return None
        pixels = np.load(stored, mmap_mode="r")
    except Exception:  # NumPy raises nearly anything on a damaged header
        return None
    fits = pixels.shape == (count, 3, size, size) and pixels.dtype == np.uint8 and shapes.shape == (count, 2)
    # NumPy reads what it needs of a file that is too long, from wherever the header ends.
    fits = fits and stored.stat().st_size == pixels.offset + pixels.nbytes
    return ImageCache(pixels, shapes) if fits and np.isfinite(shapes).all() and (shapes >= 1).all() else None


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
    work = folder / f".building-{key}-{os.getpid()}.npy"
    try:
        shapes = _decode(dataset, size, work, workers)
        work.replace(folder / f"{key}.npy")
    finally:
        work.unlink(missing_ok=True)
    note = {"dataset": dataset.name, "size": size, "shapes": shapes.tolist()}
    write_json(folder / f"{key}.json", note)


def _decode(dataset: ZeroShotDataset, size: int, file: Path, workers: int | None) -> npt.NDArray[np.float32]:
    """Every image into `file`; returns their shapes.

    Threads suffice: Pillow decodes and resizes, and NumPy copies, without holding the interpreter's lock. Each writes
    what it decoded: if one wrote for all, the others would wait for it.
    """
    count = len(dataset.image_paths)
    pixels = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(count, 3, size, size))
    _reserve(file)
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


def _reserve(file: Path) -> None:
    """Take all the room of a file before it is filled: a full disk is told now, and kills nobody later."""
    if not hasattr(os, "posix_fallocate"):  # pragma: no cover - not on macOS
        return
    with file.open("r+b") as handle:
        try:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(error.errno, error.strerror, str(file.parent)) from None


def _box(dataset: ZeroShotDataset, row: int) -> npt.NDArray[np.int64] | None:
    return None if dataset.boxes is None else dataset.boxes[row]


def _forget_others(folder: Path, key: str, name: str, size: int) -> None:
    """Remove what an earlier state of the same images left at this size."""
    for note in folder.glob("[!.]*.json"):
        if note.stem == key:
            continue
        try:
            stored = read_json(note, "it is forgotten")
        except InputError:  # damaged, or another user's
            continue
        if (stored.get("dataset"), stored.get("size")) == (name, size):
            with suppress(OSError):
                note.unlink()
                note.with_suffix(".npy").unlink(missing_ok=True)
