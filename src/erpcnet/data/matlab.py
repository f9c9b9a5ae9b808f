"""Whether a MATLAB 5 file is what it says: SciPy reads a damaged one past its end, and takes the process with it."""

from __future__ import annotations

import math
import mmap
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

MATRIX, COMPRESSED = 14, 15
BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # of a value of each type of numbers
TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELLS, CHARACTERS, NUMBERS = 1, 4, range(6, 16)  # classes of arrays
COMPLEX = 8  # of the flags
HEAD = 4096  # bytes that hold the name and the shape of an array
LARGEST = 2**31  # bytes of an array that is looked into
DEEPEST = 3  # cells within cells


class _Element(NamedTuple):
    kind: int
    data: memoryview


def check_matlab(path: Path, names: Collection[str]) -> None:
    """Refuse a file whose variables of these names are not whole arrays of numbers, texts or cells.

    Args:
        path: A file that begins with MATLAB 5's header.
        names: The variables that are to be read; of others the name and the shape alone are looked at.

    Raises:
        ValueError: It is none, and why.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(start[126:128])
        if order is None:
            raise ValueError("it does not begin as one")
        # Views of a mapped file must be gone before it is closed; Python's own reference does that.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for element in _elements(content[128:], order, padded=False):
        if element.kind == MATRIX:
            _check_variable(element.data, order, names)
        elif element.kind == COMPRESSED:
            _check_compressed(element.data, order, names)
        else:
            raise ValueError(f"it holds an element of type {element.kind} where a variable must be")


def _check_compressed(data: memoryview, order: str, names: Collection[str]) -> None:
    try:
        head = memoryview(zlib.decompressobj().decompress(data, HEAD))
        if len(head) < 8 or struct.unpack(f"{order}I", head[:4])[0] != MATRIX:
            raise ValueError("a compressed variable is no array")
        name = _head(head[8:], order)[2]
        if name in names:
            whole = zlib.decompressobj()
            found = memoryview(whole.decompress(data, LARGEST))
            if not whole.eof:
                raise ValueError(f"'{name}' is cut off, or larger than {LARGEST >> 20} MiB")
            (element,) = _elements(found, order)
            _check_variable(element.data, order, names)
    except zlib.error as error:
        raise ValueError(f"a variable does not decompress: {error}") from None


def _check_variable(data: memoryview, order: str, names: Collection[str]) -> None:
    if _head(data[:HEAD], order)[2] in names:
        _check_array(data, order, 0)


def _head(data: memoryview, order: str) -> tuple[int, tuple[int, ...], str]:
    """The flags, the shape and the name that an array begins with."""
    parts = _elements(data, order)
    flags, shape, name = (next(parts, None) for _ in range(3))
    if flags is None or shape is None or name is None:
        raise ValueError("a variable has no name, or no shape")
    if flags.kind != 6 or len(flags.data) != 8 or shape.kind != 5 or len(shape.data) % 4 or len(shape.data) < 8:
        raise ValueError("a variable has no shape")
    sides = struct.unpack(f"{order}{len(shape.data) // 4}i", shape.data)
    if len(sides) > 8 or min(sides) < 0 or math.prod(sides) > LARGEST:
        raise ValueError(f"a variable of the shape {sides[:8]}")
    if name.kind not in TEXTS or len(name.data) > 63:
        raise ValueError("a variable has no name")
    return struct.unpack(f"{order}I", flags.data[:4])[0], sides, bytes(name.data).decode("latin-1")


def _check_array(data: memoryview, order: str, depth: int) -> None:
    flags, sides, name = _head(data, order)
    kind, count = flags & 0xFF, math.prod(sides)
    if (flags >> 8) & COMPLEX or depth > DEEPEST:
        raise ValueError(f"'{name}' holds complex numbers, or cells within cells within cells")
    parts = list(_elements(data, order))[3:]
    if kind == CELLS:
        if len(parts) != count or any(part.kind != MATRIX for part in parts):
            raise ValueError(f"'{name}' has {len(parts)} cells, and not {count}")
        for part in parts:
            if part.data:
                _check_array(part.data, order, depth + 1)
        return
    (values,) = parts if len(parts) == 1 else (_Element(0, data[:0]),)
    if kind == CHARACTERS and values.kind in TEXTS:
        found = _characters(values, order)
    elif kind in NUMBERS and values.kind in BYTES and not len(values.data) % BYTES[values.kind]:
        found = len(values.data) // BYTES[values.kind]
    else:
        raise ValueError(f"'{name}' is no array of numbers, texts or cells")
    if found != count:
        raise ValueError(f"'{name}' has {found} values, and not {count}")


def _characters(values: _Element, order: str) -> int:
    encoding = TEXTS[values.kind]
    ending = ("-le" if order == "<" else "-be") if encoding in ("utf-16", "utf-32") else ""
    text = bytes(values.data).decode(encoding + ending)
    return len(values.data) // 2 if encoding == "utf-16" else len(text)


def _elements(data: memoryview, order: str, padded: bool = True) -> Iterator[_Element]:
    """One after the other; within an array each begins at a multiple of 8 bytes."""
    place = 0
    while place + 8 <= len(data):
        kind, size = struct.unpack(f"{order}II", data[place : place + 8])
        small = kind >> 16
        if small:  # up to four bytes stand in the place of the size
            if small > 4:
                raise ValueError("an element of a wrong size")
            yield _Element(kind & 0xFFFF, data[place + 4 : place + 4 + small])
            place += 8
            continue
        if size > len(data) - place - 8:
            raise ValueError(f"an element of {size} bytes where {len(data) - place - 8} are left")
        yield _Element(kind, data[place + 8 : place + 8 + size])
        place += 8 + size + (-size % 8 if padded else 0)
    if any(data[place:]):
        raise ValueError("an element is cut off")
