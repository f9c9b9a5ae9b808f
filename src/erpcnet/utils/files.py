"""Files that are written whole or not at all, and output that never replaces what somebody needs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from erpcnet.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that whoever is killed on the way leaves the old one or the new one, never a part.

    Args:
        path: The file; its folder must exist.
        content: All of its bytes.
    """
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, values: Any, indent: int | None = None) -> None:
    """Write values as strict JSON, atomically; an infinity, which JSON does not have, is a ValueError."""
    write_atomically(path, (json.dumps(values, indent=indent, allow_nan=False) + "\n").encode())


def output_file(path: str | Path, overwrite: bool = False, inputs: Iterable[str | Path] = ()) -> Path:
    """A file to be written, refused before the work rather than after it.

    Args:
        path: Where it shall lie; missing folders are made.
        overwrite: Whether another file there may be replaced.
        inputs: Files that are read by the same command; none of them is ever replaced.

    Returns:
        The path.

    Raises:
        InputError: It is an input, it is there already, or it cannot be written.
    """
    path = Path(path)
    if any(_same_file(path, Path(other)) for other in inputs):
        raise InputError(f"{path} is one of the files to read; give the output another name.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already; give another name, or --overwrite to replace it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be made ({error.strerror}).") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written (Permission denied).")
    return path


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
