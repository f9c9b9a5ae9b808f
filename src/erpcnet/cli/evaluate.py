"""`erpcnet evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_dataset, add_json, add_run

DESCRIPTION = "Evaluate a run's network on the test images."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    add_dataset(parser)
    add_crops(parser)
    add_json(parser, "print the figures as JSON")


def run(options: Namespace) -> int:
    from erpcnet.evaluation import evaluate_run
    from erpcnet.evaluation.tables import print_metrics

    metrics = evaluate_run(options.run, options.dataset, options.crops).to_json()
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        print_metrics([metrics], title=options.run)
    return 0
