"""The command line: one module a command."""

from erpcnet.cli.main import main

__all__ = ["main"]
