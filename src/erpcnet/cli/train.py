"""`erpcnet train`."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli.baseline import print_baselines_of
from erpcnet.cli.parser import (
    Parser,
    add_baseline,
    add_config,
    add_device,
    add_overwrite,
    config_of,
    note_other_weights,
)
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
    add_device(parser)
    add_baseline(parser)


def run(options: Namespace) -> int:
    config = config_of(options)
    from erpcnet.data import read_dataset
    from erpcnet.evaluation.runs import read_validation
    from erpcnet.evaluation.tables import print_choices, print_metrics
    from erpcnet.model.heads import check_joint_kind
    from erpcnet.training import train_run

    # What is wrong comes first, and is not lost behind the settings.
    check_joint_kind(config.model)
    dataset = read_dataset(options.dataset)
    console.print(config.to_yaml(), markup=False, end="")
    note_other_weights(options.config, config)
    metrics = train_run(config, dataset, options.out, options.overwrite, options.device).to_json()
    if SPEAKS:
        print_metrics([metrics], title=options.out)
        print_choices(metrics, read_validation(options.out))
        if options.baseline:
            print_baselines_of(options.out, options.dataset, options.device)
    return 0
