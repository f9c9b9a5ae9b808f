"""Presets: the YAML files of `erpcnet.presets`, and anyone's own."""

from __future__ import annotations

import difflib
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from erpcnet.errors import InputError

MEASURED = "measured"  # no setting: what the committed figures of a preset rest on


def list_presets() -> list[str]:
    """Names that `--config` takes."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in resources.files("erpcnet.presets").iterdir()
        if entry.name.endswith(".yaml") and not entry.name.startswith("_")
    )


def describe_preset(name: str) -> str:
    """What the comment at the top of a preset says."""
    lines = takewhile(lambda line: line.startswith("#"), _read(name).splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def read_values(name: str | Path) -> dict[str, Any]:
    """The settings of a preset or a YAML file; `extends: NAME` in it names what it builds on."""
    values = _read_all(name)
    values.pop(MEASURED, None)
    return values


def measured_backbone(name: str | Path) -> dict[str, str] | None:
    """The backbone `name` and `weights` that the figures of a preset, or of what it extends, were measured with.

    None where nothing was measured. `measured` in a YAML file says it; weights are a weight name, or a file's name.
    """
    found = _read_all(name).get(MEASURED)
    return None if found is None else {key: str(value) for key, value in found.items()}


def _read_all(name: str | Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    if str(name) in above:
        raise InputError(f"{name} extends itself, by way of {' and '.join(above)}.")
    text = _read(name)
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{name} is no YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{name} must hold settings as 'name: value', not {type(values).__name__}.")
    base = values.pop("extends", None)
    return values if base is None else merge(_read_all(base, (*above, str(name))), values)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, group by group."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _read(name: str | Path) -> str:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise InputError(f"{path} is not there; --config takes a YAML file or one of {', '.join(list_presets())}.")
        return path.read_text(encoding="utf-8")
    preset = resources.files("erpcnet.presets") / f"{name}.yaml"
    if not preset.is_file():
        close = difflib.get_close_matches(str(name), list_presets(), n=1)
        hint = f", perhaps '{close[0]}'" if close else ""
        raise InputError(f"there is no preset '{name}'{hint}; the presets are {', '.join(list_presets())}.")
    return preset.read_text(encoding="utf-8")
