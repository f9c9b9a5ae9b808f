"""Pictures in whatever form a person has them: files, Pillow images, arrays, tensors; one or many."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from erpcnet.data.images import load_image, to_rgb
from erpcnet.errors import InputError
from erpcnet.utils.files import as_path

# A file, a Pillow image, an array [H, W], [H, W, 3] or [H, W, 4], or a tensor [3, H, W].
Picture = str | Path | Image.Image | npt.NDArray[Any] | Tensor
KINDS = "a path, a Pillow image, an array [height, width, 3] or a tensor [3, height, width]"


def as_list(pictures: Picture | Iterable[Picture]) -> tuple[list[Picture], bool]:
    """Pictures as a list, and whether it was one alone. An array or a tensor of four dimensions is a batch."""
    if isinstance(pictures, np.ndarray | Tensor):
        one = pictures.ndim < 4
        return ([pictures] if one else list(pictures)), one
    if isinstance(pictures, str | os.PathLike | Image.Image):
        return [pictures], True
    if isinstance(pictures, bytes) or not isinstance(pictures, Iterable):
        raise InputError(f"a picture is {KINDS}, or a list of these, not {type(pictures).__name__}.")
    return list(pictures), False


def open_picture(picture: Picture) -> Image.Image:
    """Any picture as RGB."""
    if isinstance(picture, Image.Image):
        if Image.MAX_IMAGE_PIXELS and picture.width * picture.height > Image.MAX_IMAGE_PIXELS:
            raise InputError(
                f"a picture has more than {Image.MAX_IMAGE_PIXELS // 10**6} million pixels; make it smaller."
            )
        if not picture.width or not picture.height:
            raise InputError("a picture has no pixels.")
        try:
            picture.load()
            return to_rgb(picture)
        except (OSError, ValueError, SyntaxError) as error:
            raise InputError(f"a Pillow image does not decode ({error}).") from None
    if isinstance(picture, np.ndarray | Tensor):
        return _from_numbers(picture)
    if isinstance(picture, str | os.PathLike):
        return load_image(as_path(picture, "a picture"))
    raise InputError(f"a picture is {KINDS}, not {type(picture).__name__}.")


def _of_tensor(picture: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor, channels last."""
    if picture.layout != torch.strided or picture.is_quantized or picture.is_meta or picture.is_complex():
        raise InputError("a picture is a dense tensor of bytes or of real numbers from 0 to 1.")
    values = picture.detach().cpu()
    values = values.permute(1, 2, 0) if values.ndim == 3 else values
    return (values.float() if values.is_floating_point() else values).numpy()


def _from_numbers(picture: npt.NDArray[Any] | Tensor) -> Image.Image:
    """Bytes, or real numbers from 0 to 1; of a tensor the channels come first."""
    if isinstance(picture, Tensor):
        array = _of_tensor(picture)
        form = "a tensor [3, height, width]"
    else:
        array, form = picture, "an array [height, width, 3]"
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if not grey and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        raise InputError(f"a picture is {form} with 1, 3 or 4 channels; this one is {tuple(picture.shape)}.")
    if 0 in array.shape:
        raise InputError("a picture has no pixels.")
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise InputError("a picture of real numbers has values from 0 to 1; give bytes from 0 to 255 otherwise.")
        array = (array * 255).round().astype(np.uint8)
    elif array.dtype != np.uint8:
        raise InputError(f"a picture holds bytes or real numbers from 0 to 1, not {array.dtype}.")
    array = np.ascontiguousarray(array[:, :, 0] if grey and array.ndim == 3 else array)
    return to_rgb(Image.fromarray(array))
