"""`erpcnet presets`."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser
from erpcnet.config import describe_preset, list_presets

DESCRIPTION = "The names that --config takes."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    """None."""


def run(options: Namespace) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("preset", "what it is", box=SIMPLE_HEAD)
    for name in list_presets():
        table.add_row(name, describe_preset(name))
    Console().print(table)
    return 0
