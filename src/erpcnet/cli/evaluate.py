"""`erpcnet evaluate`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_dataset, add_device, add_json, add_run
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
    add_json(parser, "print the figures as JSON")


def run(options: Namespace) -> int:
    from erpcnet.evaluation import evaluate_run
    from erpcnet.evaluation.runs import read_validation
    from erpcnet.evaluation.tables import print_metrics

    if options.delta is not None and not math.isfinite(options.delta):
        raise InputError(f"--delta is {options.delta}; it must be a finite number.")
    metrics = evaluate_run(options.run, options.dataset, options.crops, options.delta, options.device).to_json()
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        print_metrics([metrics], title=options.run)
        validation = read_validation(options.run)
        if validation is not None and validation.stop is not None:
            print(f"\nsigma: {validation.stop.describe()}.")
        if validation is not None and validation.reject is not None:
            print(f"\nrejection: {validation.reject.describe()}.")
            if metrics["auroc_unknown"] is not None:
                print(f"On the test classes, AUROC {100 * metrics['auroc_unknown']:.1f}.")
        curve = None if validation is None else validation.curve
        if curve is not None:
            print(f"\n{curve.describe()}.")
            for delta in dict.fromkeys((curve.chosen, metrics["delta"])):
                u, s, h = (100 * value for value in curve.at(delta))
                print(f"On the validation classes, at delta {delta:.2f}: U {u:.1f}  S {s:.1f}  H {h:.1f}")
    return 0
