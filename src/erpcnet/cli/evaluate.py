"""`erpcnet evaluate`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli.baseline import print_baselines_of
from erpcnet.cli.parser import Parser, add_baseline, add_crops, add_dataset, add_device, add_json, add_run
from erpcnet.errors import InputError

DESCRIPTION = "Evaluate a run's network on the test images."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    add_dataset(parser)
    add_device(parser)
    add_crops(parser)
    parser.add_argument(
        "--delta", type=float, default=None, help="what seen classes give up, in place of what was chosen in training"
    )
    add_baseline(parser)
    add_json(parser, "print the figures as JSON")


def run(options: Namespace) -> int:
    from erpcnet.evaluation import evaluate_run
    from erpcnet.evaluation.runs import read_validation
    from erpcnet.evaluation.tables import print_choices, print_metrics

    if options.delta is not None and not math.isfinite(options.delta):
        raise InputError(f"--delta is {options.delta}; it must be a finite number.")
    metrics = evaluate_run(options.run, options.dataset, options.crops, options.delta, options.device).to_json()
    if options.json and options.baseline:
        raise InputError("--baseline goes with the table, not with --json; `erpcnet baseline --json` prints it.")
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        print_metrics([metrics], title=options.run)
        print_choices(metrics, read_validation(options.run))
        if options.baseline:
            print_baselines_of(options.run, options.dataset, options.device)
    return 0
