"""Presets: the YAML files of `erpcnet.presets`, and anyone's own."""

from __future__ import annotations

import difflib
import stat
from collections.abc import Hashable
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from erpcnet.config.ranges import shorten
from erpcnet.errors import InputError

DEEPEST = 20  # groups within groups, and files that extend files
LARGEST = 2**20  # bytes of a file of settings
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
    if len(above) > DEEPEST:
        raise InputError(f"{above[0]} extends another file, which extends another, more than {DEEPEST} times.")
    values = _parse(_read(name), name)
    base = values.pop("extends", None)
    if base is not None and not isinstance(base, str):
        raise InputError(f"{name}: 'extends' is {shorten(base)}; it must be the name of a preset or a file.")
    found = values.get(MEASURED)
    if found is not None and not (isinstance(found, dict) and {"name", "weights"} <= set(found)):
        raise InputError(f"{name}: '{MEASURED}' must hold the name and the weights of a backbone.")
    return values if base is None else merge(_read_all(base, (*above, str(name))), values)


class _Loader(yaml.SafeLoader):
    """YAML without what settings need none of: aliases, which make bombs, and names that stand twice."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read here; write the values out")
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {DEEPEST} times")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, Hashable):
                raise yaml.YAMLError("the name of a setting is a list or a group; it must be text")
            if name in names:
                raise yaml.YAMLError(f"'{str(name)[:60]}' stands there twice; keep one")
            names.add(name)
        return super().construct_mapping(node, deep)


def _parse(text: str, name: str | Path) -> dict[str, Any]:
    try:
        values = yaml.load(text, _Loader) or {}
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # ValueError: of a number or a date
        raise InputError(f"{_shown(name)} is no YAML file of settings: {_why(error)}.") from None
    if not isinstance(values, dict):
        raise InputError(f"{name} must hold settings as 'name: value', not {type(values).__name__}.")
    return values


def _why(error: Exception) -> str:
    """What is wrong, and in which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        what, where = error.problem, f"line {error.problem_mark.line + 1}: "
    elif isinstance(error, ReaderError):
        what, where = "a character that is none of a text", ""
    elif isinstance(error, yaml.YAMLError):
        what, where = str(error), ""
    else:  # of the values themselves
        what, where = "a value cannot be read as a number or a date", ""
    return f"{where}{_plain(' '.join(what.split()))[:200]}".rstrip(".")


def _plain(text: str) -> str:
    """On one line, without what no terminal shows."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _shown(name: str | Path) -> str:
    """A name in a message, however long or odd it is."""
    text = _plain(str(name))
    return text if len(text) <= 120 else f"{text[:117]}..."


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, group by group."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _read(name: str | Path) -> str:
    if not isinstance(name, str | Path):
        raise InputError(f"a configuration is the name of a preset or a YAML file, not {shorten(name)}.")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return _read_file(path)
    known = list_presets()
    if str(name) not in (*known, *_hidden()):
        close = difflib.get_close_matches(str(name)[:60], known, n=1)
        hint = f", perhaps '{close[0]}'" if close else ""
        raise InputError(f"there is no preset '{_plain(str(name)[:60])}'{hint}; the presets are {', '.join(known)}.")
    return (resources.files("erpcnet.presets") / f"{name}.yaml").read_text(encoding="utf-8")


def _hidden() -> list[str]:
    """What presets extend, and nobody asks for."""
    names = (entry.name for entry in resources.files("erpcnet.presets").iterdir())
    return [name.removesuffix(".yaml") for name in names if name.startswith("_") and name.endswith(".yaml")]


def _read_file(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{_shown(path)} is no plain file; --config takes a YAML file.")
        if status.st_size > LARGEST:
            raise InputError(f"{_shown(path)} has more than {LARGEST >> 10} KiB, which is no file of settings.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(list_presets())
        raise InputError(f"{_shown(path)} is not there; --config takes a YAML file or one of {known}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{_shown(path)} is not in UTF-8; save it as UTF-8.") from None
    except OSError as error:
        raise InputError(f"{_shown(path)} cannot be read ({error.strerror}).") from None
    except ValueError:  # a NUL in the name
        raise InputError("a file of settings has a name that no file can have.") from None
