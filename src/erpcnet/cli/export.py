"""`erpcnet export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_overwrite, add_run
from erpcnet.utils.files import output_file
from erpcnet.utils.progress import console

DESCRIPTION = "Write a run's network as a program that torch.export.load reads."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument("--out", type=str, metavar="FILE", help="by default model.pt2 in the run's folder")
    add_crops(parser)
    add_overwrite(parser, "replace a file of that name")


def run(options: Namespace) -> int:
    from erpcnet.inference import load
    from erpcnet.inference.export import export

    classifier, folder = load(options.run, "cpu", test_crops=options.crops), Path(options.run)
    inputs = [folder] if folder.is_file() else folder.iterdir()
    read = (path for path in inputs if path.suffix != ".pt2")
    path = output_file(options.out or folder / "model.pt2", options.overwrite, read)
    export(classifier, path)
    console.print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0
