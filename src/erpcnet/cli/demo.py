"""`erpcnet demo`: `erpcnet serve` with a browser opened."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli import serve
from erpcnet.cli.parser import Parser

DESCRIPTION = "Try a run in the browser: drop pictures, add classes."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    serve.add_arguments(parser, words)
    parser.add_argument("--no-browser", dest="no_browser", action="store_true", help="only say the address")


def run(options: Namespace) -> int:
    return serve.run(options, browser=not options.no_browser)
