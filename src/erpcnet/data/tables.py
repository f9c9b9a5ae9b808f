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

    def tell(self, sentence: str) -> None:
        """One more, in a sentence that says where it is."""
        self.found.append(sentence)

    def add(self, where: str, what: str) -> None:
        """One more: where it is, and a sentence on it."""
        self.tell(f"{where}: {what}")

    def add_empty(self, where: str, column: str) -> None:
        """One more: a line in which a column that it needs is empty."""
        self.add(where, f"the column '{column}' is empty; fill it in, or take the line out.")


@dataclass(frozen=True)
class Table:
    """The rows of a CSV file.

    Attributes:
        path: The file.
        header: Its first row.
        rows: The others, each with its line number; empty ones are left out.
        delimiter: What separates values.
        first: The line number of the header.
    """

    path: Path
    header: list[str]
    rows: list[tuple[int, list[str]]]
    delimiter: str
    first: int = 1

    def where(self, line: int) -> str:
        """What a complaint about a line begins with."""
        return f"{self.path}, line {line}"

    def shown_header(self) -> str:
        """The first row in a complaint."""
        return ",".join(self.header)[:100]


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
        raise InputError(
            f"{path}, line {reader.line_num}: it is no CSV file ({error}); perhaps a quote is left open: close it, "
            "or save the table as CSV again."
        ) from None
    filled = [(number, line) for number, line in rows if any(line)]
    return Table(path, filled[0][1], filled[1:], delimiter, filled[0][0]) if filled else Table(path, [], [], delimiter)


def collect_table(path: Path, problems: Problems) -> Table | None:
    """The table as `read_table` reads it; None if it cannot be read, which is one of the problems then."""
    try:
        return read_table(path)
    except InputError as error:
        problems.tell(str(error))
        return None


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


def columns(table: Table, names: Sequence[str], problems: Problems) -> Iterator[tuple[int, tuple[str | None, ...]]]:
    """The asked columns of every row; the first of them must be filled, and hold nothing twice.

    A header that misses columns is told. One of as many columns as are asked for is then taken by its order, so that
    the rows are read nevertheless.

    Args:
        table: Of which rows are read.
        names: The columns; what `fold` holds may stand in many rows.
        problems: Collects what is wrong.

    Yields:
        Line number and values of a row, None for a column that is not there.
    """
    places, rows = _places(table, names, problems), table.rows
    if not any(name in table.header for name in names):
        below = [row for row in rows if row[1] != list(names)]  # where sorting has put the header
        rows = [(table.first, table.header), *below] if len(below) < len(rows) or _is_row(table) else rows
    if not any(place is not None for place in places):
        return
    lines: dict[str, int] = {}
    for number, line in rows:
        values = tuple(None if place is None else line[place] if place < len(line) else "" for place in places)
        key = values[0]
        if key == "":
            problems.add_empty(table.where(number), names[0])
        elif names[0] != "fold" and key in lines:
            problems.add(table.where(number), f"'{key}' stands in line {lines[key]} already; keep one.")
        else:
            if key is not None:
                lines[key] = number
            yield number, values


def _places(table: Table, names: Sequence[str], problems: Problems) -> list[int | None]:
    """Where the columns stand; None for those that are not there."""
    header, where = table.header, table.where(table.first)
    missing = [name for name in names if name not in header]
    if missing:
        quoted = ", ".join(f"'{name}'" for name in missing)
        problems.add(
            where,
            f"there is no column {quoted}; the first line must name {','.join(names)}, separated by commas, and is "
            f"'{table.shown_header()}'.",
        )
    for name in names:
        if header.count(name) > 1:
            problems.add(where, f"the column '{name}' is there {header.count(name)} times; keep one.")
    by_order = len(header) == len(names)
    return [
        header.index(name) if name in header else place if by_order and header[place] not in names else None
        for place, name in enumerate(names)
    ]


def _is_row(table: Table) -> bool:
    """Whether the first line is no header, but holds a value that stands below it again."""
    return any(
        name and any(place < len(line) and line[place] == name for _, line in table.rows)
        for place, name in enumerate(table.header)
    )
