"""`erpcnet analyse`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_dataset, add_device, add_overwrite, add_run
from erpcnet.utils.progress import console

DESCRIPTION = (
    "What to know of a run (attributes, classes, what more pictures would bring), and the paper's figures of it."
)


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    add_dataset(parser)
    parser.add_argument("--out", type=str, metavar="FOLDER", help="by default `analysis` in the run's folder")
    add_device(parser)
    add_crops(parser)
    add_overwrite(parser, "replace the pages and pictures of an earlier analysis there")


def run(options: Namespace) -> int:
    from erpcnet.experiments.analyse import analyse_run
    from erpcnet.inference.model_file import model_path

    model_path(options.run)  # before a folder is made in it
    out = Path(options.out or Path(options.run) / "analysis")
    page = analyse_run(options.run, options.dataset, out, options.crops, options.overwrite, options.device)
    console.print(f"wrote {page}")
    return 0
