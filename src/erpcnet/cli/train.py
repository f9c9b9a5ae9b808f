"""`erpcnet train`."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_config, add_overwrite, config_of, note_other_weights
from erpcnet.utils.progress import SPEAKS, console

DESCRIPTION = "Train ERPCNet (Stage I, then Stage II) on a dataset, evaluate it, and leave a run."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_config(parser, words)
    parser.add_argument(
        "--out",
        type=str,
        default="runs/latest",
        metavar="RUN",
        help="folder for the run; an unfinished one there is resumed",
    )
    add_overwrite(parser, "replace a finished run in that folder")


def run(options: Namespace) -> int:
    config = config_of(options)
    from erpcnet.evaluation.tables import print_metrics
    from erpcnet.training import train_run

    console.print(config.to_yaml(), markup=False, end="")
    note_other_weights(options.config, config)
    metrics = train_run(config, options.dataset, options.out, options.overwrite)
    if SPEAKS:
        print_metrics([metrics.to_json()], title=options.out)
    return 0
