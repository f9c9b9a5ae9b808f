"""Opening image files as people have them."""

from __future__ import annotations

import glob
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from erpcnet.errors import InputError
from erpcnet.utils.files import as_path

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".heif")
# The formats of these endings, the only ones that are ever opened, whatever a file is called: Pillow hands others to
# programs that were not made for what strangers send.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "HEIF")
HEIC_ENDINGS = (".heic", ".heif")
TURNED = (5, 6, 7, 8)  # EXIF orientations in which rows are columns


def load_image(path: str | Path, box: npt.NDArray[np.int64] | None = None) -> Image.Image:
    """The picture in RGB as a person would see it: turned as its EXIF says, first frame, on white."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path} is not there.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{_shown(path)} cannot be read ({error}).") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no plain file'}; give a picture file.")
    if path.suffix.lower() in HEIC_ENDINGS and "HEIF" not in _known_formats():
        raise InputError(f"{path}: reading {path.suffix} files needs pip install 'erpcnet[heic]'.")
    picture = read_image(path, str(path))
    return picture if box is None else _cut(picture, box, path)


def _shown(path: Path) -> str:
    """A path in a message, however long or odd it is."""
    text = str(path).encode("unicode_escape").decode()
    return text if len(text) <= 120 else f"{text[:117]}..."


def read_image(source: Path | BinaryIO, name: str) -> Image.Image:
    """The same from an open file too; `name` is what complaints call it."""
    try:
        with _without_warnings(), Image.open(source, formats=_known_formats()) as file:
            # Pillow only warns up to twice its limit, and warnings are no matter of one thread.
            if Image.MAX_IMAGE_PIXELS and file.width * file.height > Image.MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError
            return to_rgb(ImageOps.exif_transpose(file))
    except FileNotFoundError:
        raise InputError(f"{name} is not there.") from None
    except Image.DecompressionBombError:
        limit = (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise InputError(f"{name} has more than {limit} million pixels; make it smaller.") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on broken files
        why = "of no known kind" if isinstance(error, UnidentifiedImageError) else error
        raise InputError(f"{name} does not decode as an image ({why}); replace the file or take it out.") from None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Pillow warns of much that is odd in a file, some of it while it is opened; what matters is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def image_pixels(source: BinaryIO, name: str) -> int:
    """How many pixels a picture says that it has, without decoding it; `name` is what complaints call it."""
    try:
        with Image.open(source, formats=_known_formats()) as file:
            return int(file.width * file.height)
    except Exception:
        raise InputError(f"{name} does not decode as an image; send a JPEG, PNG, WebP, GIF, BMP or TIFF.") from None


@cache
def _known_formats() -> tuple[str, ...]:
    """Those that this Pillow knows, and HEIC where the extra that reads it is installed."""
    Image.init()
    with suppress(ModuleNotFoundError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def is_image(file: PurePosixPath) -> bool:
    """Whether a file's ending is one of those that are read."""
    return file.name.lower().endswith(ENDINGS)


def find_images(root: Path) -> Iterator[PurePosixPath]:
    """Every image file below `root`, relative to it, once; hidden folders are passed over."""
    return filter(is_image, find_files(root))


def find_files(root: Path) -> Iterator[PurePosixPath]:
    """Every file below `root`, relative to it, once; hidden files and folders are passed over.

    Links to folders elsewhere are followed. One to a folder inside of `root` is not: its images have a path there.
    """
    top = root.resolve()
    visited: set[Path] = {top}

    def is_new(folder: str, name: str) -> bool:
        path = Path(folder, name)
        if name.startswith("."):
            return False
        if path.is_symlink():
            real = path.resolve()
            again = real in visited or top.is_relative_to(real) or _reached_from(top, real)
            visited.add(real)
            return not again
        return True

    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if is_new(folder, name))
        inside = PurePosixPath(Path(folder).relative_to(root).as_posix())
        for name in sorted(files):
            if not name.startswith("."):
                yield inside / name


def expand_paths(names: Sequence[str]) -> list[str]:
    """Picture files from what a person names: files, folders with all pictures below them, and patterns (`*.jpg`).

    Raises:
        InputError: A folder holds no picture, or a pattern matches nothing.
    """
    found: list[str] = []
    for name in names:
        path = as_path(name, "a picture")
        if path.is_dir():
            inside = [str(path / image) for image in find_images(path)]
            if not inside:
                raise InputError(f"{name} holds no picture; endings that are read are {', '.join(ENDINGS)}.")
            found += inside
        elif not path.exists() and glob.has_magic(name):
            # Not Path.glob, which takes no absolute pattern.
            matching = sorted(one for one in glob.glob(name, recursive=True) if Path(one).is_file())  # noqa: PTH207
            if not matching:
                raise InputError(f"no file matches {name}.")
            found += matching
        else:
            found.append(name)
    return found


def _reached_from(top: Path, real: Path) -> bool:
    """Whether a folder is met on the way down from `top` without any link."""
    return real.is_relative_to(top) and not any(part.startswith(".") for part in real.relative_to(top).parts)


def image_shape(path: Path) -> tuple[int, int]:
    """Height and width of a picture as `load_image` gives it, turned as its EXIF says, without decoding it."""
    with Image.open(path, formats=_known_formats()) as file:
        turned = file.getexif().get(ExifTags.Base.Orientation, 1) in TURNED
        return (file.width, file.height) if turned else (file.height, file.width)


def to_rgb(picture: Image.Image) -> Image.Image:
    """Any Pillow mode to RGB: 16 bits are scaled, transparency lies on white."""
    if picture.mode.startswith(("I", "F")):
        values = np.asarray(picture, dtype=np.float32)
        top = 65535.0 if values.max(initial=0) > 255 else 255.0
        return Image.fromarray((values / top * 255).clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def squeeze(picture: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """The whole picture as a square [3, size, size], from which crops are taken (see `transforms`)."""
    small = picture.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(small).transpose(2, 0, 1)


def _cut(picture: Image.Image, box: npt.NDArray[np.int64], path: Path) -> Image.Image:
    left, upper, right, lower = (int(edge) for edge in box)
    left, upper = max(left, 0), max(upper, 0)
    right, lower = min(right, picture.width), min(lower, picture.height)
    if right <= left or lower <= upper:
        raise InputError(
            f"{path}: the box {box.tolist()} lies outside of the {picture.width} x {picture.height} image."
        )
    return picture.crop((left, upper, right, lower))
