"""`erpcnet evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

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
    from erpcnet.evaluation.runs import damaged_files, open_run, read_validation
    from erpcnet.evaluation.stacking import check_delta
    from erpcnet.evaluation.tables import print_choices, print_metrics
    from erpcnet.utils.processes import processes_joined
    from erpcnet.utils.runtime import check_device

    check_delta(options.delta)
    if options.json and options.baseline:
        raise InputError("--baseline goes with the table, not with --json; `erpcnet baseline --json` prints it.")
    with processes_joined(check_device(options.device)) as share:
        opened = open_run(options.run, options.dataset, options.crops, options.device, share)
        rollouts = opened.rollouts()
    if share.rank:  # the first process has what the others found
        return 0
    metrics, validation = opened.measure(rollouts, options.delta).to_json(), read_validation(options.run)
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        print_metrics([metrics], title=options.run)
        print_choices(metrics, validation)
        if options.baseline:
            print_baselines_of(options.run, options.dataset, options.device)
    folder = Path(options.run)
    if options.crops is None and options.delta is None and damaged_files(folder):
        from erpcnet.training.repair import repair_run

        repair_run(folder, opened, rollouts, validation)
    return 0
