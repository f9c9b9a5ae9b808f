"""`erpcnet experiment`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse import Namespace

from erpcnet.cli.ablation import read_seeds
from erpcnet.cli.parser import Parser, add_config, add_device, add_overwrite, config_of, note_other_weights
from erpcnet.utils.files import output_file

DESCRIPTION = "The paper's figures that need trainings of their own, as rows of a CSV file and a picture beside it."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    parser.add_argument(
        "name", type=Literal["entropy"], help="entropy: accuracy and steps over epochs of Stage II, with and without it"
    )
    add_config(parser, words)
    parser.usage = f"{parser.prog} NAME [--config PRESET_OR_YAML] [--dataset DIR] [--out FILE] [--SETTING VALUE ...]"
    parser.add_argument("--out", type=str, default="runs/entropy.csv", metavar="FILE", help="file for the rows")
    parser.add_argument("--seeds", type=str, default="0,1,2", help="seeds, separated by commas")
    add_overwrite(parser, "replace that file")
    add_device(parser)


def run(options: Namespace) -> int:
    config, seeds = config_of(options), read_seeds(options.seeds)
    from erpcnet.data import read_dataset
    from erpcnet.experiments.entropy import draw_entropy, run_entropy
    from erpcnet.experiments.report import entropy_table
    from erpcnet.experiments.rows import read_rows, write_rows
    from erpcnet.utils.runtime import on_device

    dataset = read_dataset(options.dataset)
    out = output_file(options.out, options.overwrite)
    picture = output_file(out.with_suffix(".png"), options.overwrite)
    note_other_weights(options.config, config)
    rows: list[dict[str, Any]] = []
    with on_device(options.device):
        for row in run_entropy(config, dataset, seeds):
            rows.append(row)
            write_rows(out, rows)
    draw_entropy(read_rows(out), picture)
    print(entropy_table(read_rows(out)))
    return 0
