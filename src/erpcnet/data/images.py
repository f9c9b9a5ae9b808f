"""Opening image files as people have them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from erpcnet.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
TURNED = (5, 6, 7, 8)  # EXIF orientations in which rows are columns


def load_image(path: str | Path, box: npt.NDArray[np.int64] | None = None) -> Image.Image:
    """The picture in RGB as a person would see it: turned as its EXIF says, first frame, on white."""
    path = Path(path)
    picture = read_image(path, str(path))
    return picture if box is None else _cut(picture, box, path)


def read_image(source: Path | BinaryIO, name: str, formats: tuple[str, ...] | None = None) -> Image.Image:
    """The same from an open file too; `name` is what complaints call it, `formats` are those to try."""
    try:
        with Image.open(source, formats=formats) as file:
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


def find_images(root: Path) -> Iterator[PurePosixPath]:
    """Every image file below `root`, relative to it, once; hidden folders are passed over.

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
            if not name.startswith(".") and name.lower().endswith(ENDINGS):
                yield inside / name


def expand_paths(names: Sequence[str]) -> list[str]:
    """Picture files from what a person names: files, folders with all pictures below them, and patterns (`*.jpg`).

    Raises:
        InputError: A folder holds no picture, or a pattern matches nothing.
    """
    found: list[str] = []
    for name in names:
        path = Path(name)
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
    with Image.open(path) as file:
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
