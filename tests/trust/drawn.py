"""Inputs drawn by hypothesis: tables, settings and headers that are nearly right, in every spelling there is.

The examples are drawn before they are tried, each in a process with limits, so the seed of the campaign alone says what
they are; none is made smaller.
"""

from __future__ import annotations

import csv
import io
import json
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Example = TypeVar("Example")
Rows = list[list[str]]


class _EnoughError(Exception):
    """There are as many examples as were asked for."""


def examples(strategy: SearchStrategy[Example], count: int, campaign_seed: int, what: str) -> list[Example]:
    """So many different draws, or all there are, the same for the same seed and purpose."""
    drawn: list[Example] = []

    @seed(zlib.crc32(f"{campaign_seed} {what}".encode()))
    @settings(
        max_examples=10 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Example) -> None:
        if len(drawn) < count and example not in drawn:
            drawn.append(example)
        if len(drawn) == count:
            raise _EnoughError

    with suppress(_EnoughError):
        collect()
    return drawn


# Tables.


class Table(NamedTuple):
    """A table as a file, and what stands in it.

    Attributes:
        content: The bytes of the file.
        rows: Its cells, as they are meant.
    """

    content: bytes
    rows: Rows


def any_text() -> SearchStrategy[str]:
    """Whatever a cell, a name or a value can be written as."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def numbers() -> SearchStrategy[str]:
    """Numbers on an ordinary scale, in the spellings of programs."""
    ordinary = st.one_of(st.integers(1, 1000).map(float), st.floats(0.001, 1000))
    spellings = (repr, str, "{:.3f}".format, "{:e}".format, "{:G}".format, "+{}".format, " {} ".format)
    return st.builds(lambda value, spell: str(spell(value)), ordinary, st.sampled_from(spellings))


@st.composite
def written(draw: st.DrawFn, rows: Rows) -> bytes:
    """Rows as some program would write them: delimiter, quotes, ends of lines, a mark in front, empty lines."""
    delimiter, end = draw(st.sampled_from(",;\t")), draw(st.sampled_from(["\n", "\r\n"]))
    text = io.StringIO()
    quoting: Literal[0, 1] = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    for row in rows:
        writer.writerow(row)
        if draw(st.integers(0, 9)) == 0:
            text.write(end)
    content, encoding = text.getvalue(), draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    return (content.rstrip() if draw(st.booleans()) else content).encode(encoding)


@st.composite
def right_tables(draw: st.DrawFn, classes: Sequence[str], attributes: Sequence[str]) -> Table:
    """attributes.csv with other values, its rows and columns in any order, in any spelling."""
    names, columns = draw(st.permutations(classes)), draw(st.permutations(attributes))
    rows = [["class", *columns], *([name, *(draw(numbers()) for _ in columns)] for name in names)]
    return Table(draw(written(rows)), rows)


@st.composite
def odd_tables(draw: st.DrawFn, rows: Rows) -> Table:
    """A table some of whose cells, rows or ends of lines are anything."""
    changed = [list(row) for row in rows]
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.integers(0, len(changed) - 1))
        column = draw(st.integers(0, max(0, len(changed[row]) - 1)))
        how = draw(st.sampled_from(["cell", "cell", "shorter", "longer", "row"]))
        if how == "cell" and changed[row]:
            changed[row][column] = draw(st.one_of(any_text(), numbers()))
        elif how == "shorter":
            del changed[row][column:]
        elif how == "longer":
            changed[row].append(draw(any_text()))
        elif how == "row":
            changed.insert(row, draw(st.lists(any_text(), max_size=5)))
    content = draw(written(changed))
    return Table(draw(st.sampled_from([content, content.replace(b"\n", b"\r"), content + b'"'])), changed)


# Settings.


def any_value() -> SearchStrategy[Any]:
    """Whatever YAML can hold."""
    plain = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), any_text(), st.dates(), st.binary(max_size=6)
    )
    return st.recursive(
        plain,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(any_text(), inner, max_size=4)),
        max_leaves=8,
    )


def values_within(kind: Any, allowed: Any) -> SearchStrategy[Any]:
    """Values of a setting's type, in its range and about its ends."""
    if kind is bool:
        return st.booleans()
    if kind is int and allowed is not None:
        low, high = int(allowed.low), int(min(allowed.high, 10**6))
        return st.one_of(st.integers(low, high), st.sampled_from([low - 1, low, high, high + 1]))
    if kind is float and allowed is not None:
        return st.one_of(
            st.floats(allowed.low, allowed.high), st.sampled_from([allowed.low, allowed.high]), st.integers(0, 2)
        )
    return any_value()


@st.composite
def drawn_configurations(draw: st.DrawFn, known: dict[str, tuple[Any, Any]]) -> str:
    """A file of some settings, most of them with values of their types, in any style of YAML."""
    values: dict[Any, Any] = {"extends": "creatures"} if draw(st.booleans()) else {}
    for name in draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=5, unique=True)):
        value = draw(values_within(*known[name]) if draw(st.integers(0, 3)) else any_value())
        *above, last = name.split(".")
        inner = values
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last if draw(st.integers(0, 19)) else draw(any_text())] = value
    style, flow = draw(st.sampled_from([None, '"', "'"])), draw(st.sampled_from([None, True, False]))
    return str(yaml.safe_dump(values, default_style=style, default_flow_style=flow, allow_unicode=draw(st.booleans())))


# Headers of safetensors.


@st.composite
def drawn_headers(draw: st.DrawFn) -> bytes:
    """A file of few tensors that are described in any way, and perhaps rightly; none of them is a model."""
    sizes = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1}
    header: dict[str, Any] = {}
    place = 0
    for name in draw(st.lists(any_text(), max_size=4, unique=True)):
        kind, shape = draw(st.sampled_from(sorted(sizes))), draw(st.lists(st.integers(0, 4), max_size=3))
        count = 1
        for size in shape:
            count *= size
        end = place + count * sizes[kind]
        entry: dict[str, Any] = {"dtype": kind, "shape": shape, "data_offsets": [place, end]}
        if draw(st.integers(0, 3)) == 0:
            odd = st.one_of(
                st.integers(-(2**70), 2**70), st.lists(st.integers(-(2**64), 2**64), max_size=3), any_text()
            )
            entry[draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))] = draw(odd)
        header[name], place = entry, end
    if draw(st.booleans()):
        told = st.recursive(st.none() | st.integers() | any_text(), lambda inner: st.lists(inner, max_size=3))
        about = st.dictionaries(st.sampled_from(["format", "config", "classes", "seen", "checksum"]), told)
        header["__metadata__"] = {"erpcnet": json.dumps(draw(about))} if draw(st.booleans()) else draw(told)
    text = json.dumps(header, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    text += b" " * draw(st.integers(0, 8))
    size = len(text) if draw(st.integers(0, 7)) else draw(st.integers(0, 2**64 - 1))
    data = draw(st.sampled_from([place, place, place, max(0, place - 1), place + 1]))
    return struct.pack("<Q", size) + text + bytes(data)
