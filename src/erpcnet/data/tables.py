"""CSV tables as people have them: from spreadsheets of any country, with everything that is wrong with them told."""

from __future__ import annotations

import csv
import difflib
import math
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from erpcnet.errors import InputError

DELIMITERS = (",", ";", "\t")
LARGEST = 256 * 2**20  # bytes of a table
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass
class Problems:
    """Collects what is wrong, so that a person is told of all of it at once."""

    found: list[str] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        """One more: where it is, and a sentence on it."""
        self.found.append(f"{where}: {what}")


@dataclass(frozen=True)
class Table:
    """The rows of a CSV file.

    Attributes:
        path: The file.
        header: Its first row.
        rows: The others, each with its line number; empty ones are left out.
        delimiter: What separates values.
    """

    path: Path
    header: list[str]
    rows: list[tuple[int, list[str]]]
    delimiter: str

    def where(self, line: int) -> str:
        """What a complaint about a line begins with."""
        return f"{self.path}, line {line}"


def read_table(path: Path) -> Table:
    """Read a CSV file: commas, semicolons or tabs, UTF-8 with or without its mark; spaces around values are taken off.

    Raises:
        InputError: It cannot be read as a table at all.
    """
    text = _read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=lambda mark: (first.count(mark), -DELIMITERS.index(mark)))
    try:
        # strict: an unclosed quote is told, and does not swallow the rest of the file.
        reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, [value.strip() for value in line]) for line in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: it is no CSV file ({error}).") from None
    filled = [(number, line) for number, line in rows if any(line)]
    return Table(path, filled[0][1] if filled else [], filled[1:], delimiter)


def _read_text(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is no plain file; it must be a CSV table.")
        if status.st_size > LARGEST:
            raise InputError(f"{path} has more than {LARGEST >> 20} MiB, which is no table of classes.")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is not there.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    encoding = "utf-16" if raw[:2] in UTF16 else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not in UTF-8; save it as CSV in UTF-8.") from None
    if "\0" in text:
        raise InputError(f"{path} holds NUL bytes, so it is no CSV file; save it as CSV in UTF-8.")
    return text


def parse_number(text: str) -> float | None:
    """A finite number as spreadsheets write it (0.5, 0,5 or 50 %); None if it is none."""
    plain = text.strip().replace("\u2212", "-")
    scale = 1.0
    if plain.endswith("%"):
        plain, scale = plain[:-1].strip(), 0.01
    if plain.count(",") == 1 and "." not in plain:
        plain = plain.replace(",", ".")
    if "_" in plain:  # which Python takes for a digit separator
        return None
    try:
        value = float(plain) * scale
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for a misspelt name, or nothing."""
    known = list(known)
    folded = {one.casefold().replace("_", " "): one for one in known}
    close = difflib.get_close_matches(name.casefold().replace("_", " "), folded, n=1)
    return f"; did you mean '{folded[close[0]]}'?" if close else ""


def columns(table: Table, names: Sequence[str], problems: Problems) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the asked columns of every row; the first of them must be there, and stand there once.

    Raises:
        InputError: A column is missing.
    """
    missing = [name for name in names if name not in table.header]
    if missing:
        raise InputError(
            f"{table.path}: the first line has no column '{missing[0]}'; it must name {','.join(names)}, separated by "
            "commas."
        )
    places = [table.header.index(name) for name in names]
    lines: dict[str, int] = {}
    for number, line in table.rows:
        values = tuple(line[place] if place < len(line) else "" for place in places)
        key = values[0]
        if not key:
            problems.add(table.where(number), f"the column '{names[0]}' is empty.")
        elif names[0] != "fold" and key in lines:
            problems.add(table.where(number), f"'{key}' stands in line {lines[key]} already; keep one.")
        else:
            lines[key] = number
            yield number, values
