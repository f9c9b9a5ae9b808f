"""Dataclasses from plain values: the one gate that settings pass, whether from flags, YAML or a stored model."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from erpcnet.config.ranges import shorten
from erpcnet.errors import InputError

T = TypeVar("T")


def build(kind: type[T], values: Any, above: str = "") -> T:
    """A dataclass, and those inside of it, from nested dictionaries.

    Args:
        kind: The dataclass.
        values: What its fields are set to; those left out keep their defaults.
        above: What names in complaints begin with, such as `model.`.

    Returns:
        The dataclass, whose own checks of ranges were passed.

    Raises:
        InputError: A name is unknown, or a value is of another type than its field.
    """
    checked = check(kind, values, above)
    return _construct(kind, checked)


def check(kind: type, values: Any, above: str = "") -> dict[str, Any]:
    """The same values, names and types checked, as nested dictionaries; an empty group is one of defaults."""
    if values is None and above:
        return {}
    if not isinstance(values, Mapping):
        where = f"'{above.rstrip('.')}'" if above else "a configuration"
        raise InputError(f"{where} must hold settings as 'name: value', not {shorten(values)}.")
    hints: dict[str, Any] = _hints(kind)
    for name in values:
        if name not in hints:
            close = difflib.get_close_matches(str(name), hints, n=1)
            hint = f", perhaps '{above}{close[0]}'" if close else f"; there are {', '.join(hints)}"
            raise InputError(f"there is no setting '{above}{str(name)[:60]}'{hint}.")
    return {name: _convert(hints[name], value, f"{above}{name}") for name, value in values.items()}


def _construct(kind: type[T], checked: dict[str, Any]) -> T:
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    return kind(
        **{
            name: _construct(hints[name], value) if isinstance(value, dict) else value
            for name, value in checked.items()
        }
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _convert(kind: Any, value: Any, name: str) -> Any:
    """A value as the type of its field wants it."""
    if is_dataclass(kind) and isinstance(kind, type):
        return check(kind, value, f"{name}.")
    origin, choices = get_origin(kind), get_args(kind)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise InputError(f"{name} is {shorten(value)}; it must be one of {', '.join(map(repr, choices))}.")
        return value
    if origin is UnionType:  # or None
        (other,) = (choice for choice in choices if choice is not NoneType)
        return None if value is None else _convert(other, value, name)
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(choices):
            raise InputError(f"{name} is {shorten(value)}; it must be a list of {len(choices)} values.")
        return tuple(_convert(one, part, name) for one, part in zip(choices, value, strict=True))
    return _number(value, name) if kind is float else _plain(kind, value, name)


def _plain(kind: type, value: Any, name: str) -> Any:
    if type(value) is not kind:  # True is no whole number here
        what = {int: "a whole number", bool: "true or false", str: "text"}[kind]
        raise InputError(f"{name} is {shorten(value)}; it must be {what}.")
    return value


def _number(value: Any, name: str) -> float:
    try:
        # YAML takes 1e-3, which has no dot, for text; but not what Python alone takes for a number.
        odd = isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii()))
        number = math.nan if odd else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} is {shorten(value)}; it must be a finite number.")
    return number
