"""Ranges of settings, declared where the settings are, and checked whichever way a value comes."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from erpcnet.errors import InputError

T = TypeVar("T")
LONGEST = 4096  # characters of a text


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, which belong to it, or do not where they are `open`."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.low_open else f"from {self.low:.15g}"
        return f"{low} {'to below' if self.high_open else 'to'} {self.high:.15g}"


def ranged(default: T, low: float, high: float, *, above_low: bool = False, below_high: bool = False) -> T:
    """A field of a dataclass of settings, with its default and the range of its values.

    Examples:
        >>> @dataclass
        ... class Some(Settings):
        ...     epochs: int = ranged(20, 1, 1000)
    """
    value: T = field(default=default, metadata={"range": Range(low, high, above_low, below_high)})
    return value


@dataclass
class Settings:
    """Settings whose fields are checked when they are made; `_prefix` is what their names begin with."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value: Any = getattr(self, one.name)
            name = f"{type(self)._prefix()}{one.name}"
            allowed = one.metadata.get("range")
            if allowed is not None and value is not None and not _within(value, allowed):
                unset = ", or unset" if one.default is None else ""
                raise InputError(f"{name} is {shorten(value)}; it must be {allowed}{unset}.")
            if isinstance(value, str):
                _check_text(value, name)

    @classmethod
    def _prefix(cls) -> str:
        return ""


def _within(value: Any, allowed: Range) -> bool:
    # A whole number may be too large for what asks whether it is finite.
    number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return number and not isinstance(value, bool) and value in allowed


def _check_text(value: str, name: str) -> None:
    if not value.strip() or len(value) > LONGEST or not value.isprintable():
        raise InputError(f"{name} is {shorten(value)}; it must be a name or a path of printable characters.")


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong, self.maxstring, self.maxother = 2, 40, 60, 60
        self.maxlist = self.maxdict = self.maxtuple = self.maxset = 4

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if abs(x) < 10**100 else "a number of more than 100 digits"


def shorten(value: object) -> str:
    """A value in a message: on one line, not longer than a line, and written in no time, whatever it holds."""
    return _Short().repr(value)


def check_name(name: object, what: str) -> None:
    """Refuse what cannot be the name of something that is registered, such as `what` = "an order"."""
    if not isinstance(name, str) or not name.isprintable() or not name or name != name.strip():
        raise InputError(f"{str(name)[:40]!r} is no name for {what}; give a text without spaces around it.")
