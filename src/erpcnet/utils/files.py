"""Files that are written whole or not at all, and output that never replaces what somebody needs."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from erpcnet.errors import InputError

LONGEST_NAME, LONGEST_PATH = 255, 4000  # bytes
LARGEST_JSON = 2**28  # bytes


def plain_text(text: str) -> str:
    r"""A text on one line of a terminal, whatever is in it: what no terminal shows is written as `\x1b`.

    Examples:
        >>> plain_text("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    spaced = text.replace("\n", " ")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in spaced)


def open_plain(path: Path, largest: int) -> BinaryIO:
    """Open a file for reading that is a plain one, and not larger than so many bytes: no FIFO, device or folder.

    Raises:
        OSError: It is not there, is none, is too large, or may not be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    if status.st_size > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest >> 20} MiB", str(path))
    return path.open("rb")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that whoever is killed on the way leaves the old one or the new one, never a part.

    Args:
        path: The file; its folder must exist.
        content: All of its bytes.
    """
    with whole_file(path) as partial, partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, of the same ending, which takes its place once all went well.

    Examples:
        >>> with whole_file(Path("model.onnx")) as partial:
        ...     save(partial)
    """
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, values: Any, indent: int | None = None) -> None:
    """Write values as strict JSON, atomically; an infinity, which JSON does not have, is a ValueError."""
    write_atomically(path, (json.dumps(values, indent=indent, allow_nan=False) + "\n").encode())


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """What `write_json` wrote of a dictionary.

    Raises:
        InputError: It is not there, or damaged; the `remedy` says what to do then.
    """
    try:
        with open_plain(path, LARGEST_JSON) as file:
            values = json.loads(file.read().decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except FileNotFoundError:
        raise InputError(f"{path} is not there; {remedy}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); {remedy}.") from None
    except (ValueError, RecursionError):  # of JSON, of UTF-8, of endless numbers and lists
        raise InputError(f"{path} is damaged; {remedy}.") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} is damaged; {remedy}.")
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e400
        raise ValueError(f"{text[:40]} is beyond all numbers")
    return value


def as_path(value: object, what: str) -> Path:
    """A path from what a person gave.

    Args:
        value: A text or a path.
        what: What it is, for complaints: such as `the folder of a run`.

    Raises:
        InputError: It is neither, is empty, or no file can have that name.
    """
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what} is {type(value).__name__}; give a path.")
    text = os.fspath(value)
    if not isinstance(text, str) or not text:
        raise InputError(f"{what} is empty; give a path." if not text else f"{what} is given as bytes; give a text.")
    if "\0" in text or len(os.fsencode(text)) > LONGEST_PATH:
        raise InputError(f"{what} has a name that no file can have.")
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in Path(text).parts):
        raise InputError(f"{what} has a name of more than {LONGEST_NAME} bytes, which no file can have.")
    return Path(text)


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
    path = as_path(path, "the output")
    if any(_same_file(path, Path(other)) for other in inputs):
        raise InputError(f"{path} is one of the files to read; give the output another name.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file.")
    if (path.exists() or path.is_symlink()) and not path.is_file():
        raise InputError(f"{path} is no plain file; give the output another name.")
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already; give another name, or --overwrite to replace it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Tried, and not only asked for: what the system allows, and what it does, are two things.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from None
    return path


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
