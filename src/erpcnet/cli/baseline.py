"""`erpcnet baseline`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_config, add_device, add_json, config_of, note_other_weights

DESCRIPTION = "What the backbone gives without training: ESZSL and ridge regression in closed form, within a minute."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_config(parser, words)
    parser.usage = f"{parser.prog} [--config PRESET_OR_YAML] [--dataset DIR] [--json] [--SETTING VALUE ...]"
    add_device(parser)
    add_json(parser, "print the figures as JSON")


def run(options: Namespace) -> int:
    config = config_of(options)
    from erpcnet.data import read_dataset
    from erpcnet.evaluation.baselines import evaluate_baselines
    from erpcnet.evaluation.tables import print_baselines
    from erpcnet.utils.runtime import on_device

    dataset = read_dataset(options.dataset)
    if not options.json:
        note_other_weights(options.config, config)
    with on_device(options.device):
        rows = [asdict(row) for row in evaluate_baselines(config, dataset)]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_baselines(rows, title=f"{options.dataset}, {config.model.backbone.name} as it comes")
    return 0


def print_baselines_of(run: str, dataset: str | None, device: str | None) -> None:
    """The baselines of a run's backbone as it comes, on the dataset of the run or another."""
    from erpcnet.evaluation.baselines import evaluate_baselines
    from erpcnet.evaluation.runs import open_run
    from erpcnet.evaluation.tables import print_baselines
    from erpcnet.utils.runtime import on_device

    opened = open_run(run, dataset, device=device)
    with on_device(device):
        rows = [asdict(row) for row in evaluate_baselines(opened.config, opened.dataset)]
    print_baselines(rows, title=f"{opened.config.model.backbone.name} as it comes, without training")
