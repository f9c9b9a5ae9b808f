"""Ways to damage bytes, texts and tables, drawn from a generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Random = np.random.Generator

ENCODINGS = ("latin-1", "utf-16", "utf-16-le", "utf-32", "utf-7", "cp500", "utf-8-sig", "shift-jis")
# What is no finite number, however a spreadsheet writes numbers.
NO_NUMBERS = (
    *(
        "nan",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "1e400",
        "-1e999",
        "",
        " ",
        "one",
        "0x10",
        "1_000",
        "1,2,3",
        "--1",
        "1e",
    ),
    *("=1+1", "#DIV/0!", "None", "true", "[1]", "1;2", "½", "٣x", "1 2", "9" * 400, "x" * 5000, "\u202e1"),
)
# Texts that names and values may turn into.
ODD_TEXTS = (
    *("", " ", "\t", "'", '"', '""', "\\", "/", "..", "../..", "/etc/passwd", "%s%n", "{}", "$(id)", "`id`", "-1", "0"),
    *("nul", "\u202egnp.exe", "\u200b", "\u0301" * 40, "\U0001f98b", "a" * 400, "b" * 70000, "[bold]x[/bold]", "[/]"),
    *("x\ny", "x\ry", "x\x1b[31my", "x\x07y", "\ufeff", "é", "e\u0301", "ﬁ", "ＡＢＣ", "null", "~", "*", "&a", "!!x"),
)
HUGE_NUMBERS = (2**31, 2**32, 2**63, 2**64, 10**30, -(2**31), -(2**63), 10**308, 1e308, 1e-308, 5e-324, -0.0)


def pick(random: Random, choices: Sequence[Any]) -> Any:
    """One of some."""
    return choices[int(random.integers(len(choices)))]


def one_of(random: Random, choices: tuple[str, ...]) -> str:
    """One of some texts."""
    return choices[int(random.integers(len(choices)))]


def flip_bits(random: Random, content: bytes, count: int | None = None, start: int = 0) -> tuple[str, bytes]:
    """Some bits of bytes from `start` on are others."""
    if len(content) <= start:
        return "nothing to flip", content
    places = random.integers(start, len(content), size=count or int(random.choice([1, 1, 2, 8, 64])))
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 1 << int(random.integers(8))
    return f"{len(places)} bits flipped, the first at {places[0]}", bytes(changed)


def truncate(random: Random, content: bytes) -> tuple[str, bytes]:
    """Cut off somewhere."""
    end = int(random.choice([0, 1, 4, 8, 16, len(content) - 1, *random.integers(0, max(1, len(content)), size=6)]))
    return f"cut off after {end} of {len(content)} bytes", content[: max(0, end)]


def zero(random: Random, content: bytes) -> tuple[str, bytes]:
    """A stretch of zeros, as a disk leaves after a power cut."""
    start, end = _stretch(random, content)
    return f"zeros from {start} to {end}", content[:start] + bytes(end - start) + content[end:]


def drop(random: Random, content: bytes) -> tuple[str, bytes]:
    """Without a stretch."""
    start, end = _stretch(random, content)
    return f"without {start} to {end}", content[:start] + content[end:]


def repeat(random: Random, content: bytes) -> tuple[str, bytes]:
    """A stretch stands there twice."""
    start, end = _stretch(random, content)
    return f"{start} to {end} twice", content[:end] + content[start:end] + content[end:]


def insert(random: Random, content: bytes) -> tuple[str, bytes]:
    """Something is put in between."""
    place = int(random.integers(len(content) + 1))
    more = random.bytes(int(random.choice([1, 3, 16, 300])))
    return f"{len(more)} bytes put in at {place}", content[:place] + more + content[place:]


def swap(random: Random, content: bytes) -> tuple[str, bytes]:
    """Two stretches change places."""
    cuts = sorted(int(one) for one in random.integers(0, len(content) + 1, size=3))
    a, b, c = cuts
    return f"{a} to {b} after {b} to {c}", content[:a] + content[b:c] + content[a:b] + content[c:]


def noise(random: Random, content: bytes) -> tuple[str, bytes]:
    """Other bytes altogether."""
    size = int(random.choice([0, 1, 2, 100, 5000]))
    return f"{size} bytes of noise", random.bytes(size)


def append(random: Random, content: bytes) -> tuple[str, bytes]:
    """Something follows the end."""
    more = random.bytes(int(random.choice([1, 100, 5000])))
    return f"{len(more)} bytes more at the end", content + more


BYTES: tuple[Callable[[Random, bytes], tuple[str, bytes]], ...] = (
    *(flip_bits, flip_bits, flip_bits, truncate, truncate, zero, drop, repeat, insert, swap, noise, append),
)


def of_bytes(random: Random, content: bytes) -> tuple[str, bytes]:
    """Any of these."""
    how = BYTES[int(random.integers(len(BYTES)))]
    return how(random, content)


def _stretch(random: Random, content: bytes) -> tuple[int, int]:
    start = int(random.integers(len(content) + 1))
    length = int(random.choice([1, 4, 64, 512, 4096]))
    return start, min(len(content), start + length)


def of_text(random: Random, text: str) -> tuple[str, bytes]:
    """A text in another encoding, with other ends of lines, or with something odd in it."""
    how = int(random.integers(6))
    if how == 0:
        encoding = one_of(random, ENCODINGS)
        marked = text.replace("a", "ä", 1) + "é"
        return f"in {encoding}", marked.encode(encoding, "replace")
    if how == 1:
        end = one_of(random, ("\r", "\r\n", "\n\n", "\v", "\f", "\x85", "\u2028", "\0"))
        return f"lines end in {end!r}", text.replace("\n", end).encode()
    if how == 2:
        place, odd = int(random.integers(len(text) + 1)), one_of(random, ODD_TEXTS)
        return f"{odd[:20]!r} at {place}", (text[:place] + odd + text[place:]).encode()
    if how == 3:
        lines = text.splitlines(keepends=True)
        random.shuffle(lines)
        return "lines in another order", "".join(lines).encode()
    if how == 4:
        lines = text.splitlines(keepends=True)
        place = int(random.integers(len(lines)))
        count = int(random.choice([0, 2, 3000]))
        return f"line {place} {count} times", "".join(
            lines[:place] + lines[place : place + 1] * count + lines[place + 1 :]
        ).encode()
    return of_bytes(random, text.encode())
