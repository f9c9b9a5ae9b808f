"""Packages whose names are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A `__getattr__` for a package: each module below it is imported when one of its names is first asked for.

    Args:
        package: The package's name.
        modules: For each module below it, the names that the package offers.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(homes[name]), name)

    return get
