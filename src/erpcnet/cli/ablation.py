"""`erpcnet ablation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_config, add_device, add_overwrite, config_of, note_other_weights
from erpcnet.errors import InputError
from erpcnet.utils.files import output_file

DESCRIPTION = "GlobalNet, PCNet, RPCNet, ERPCNet and every selection order, over several seeds, as a CSV file."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_config(parser, words)
    parser.add_argument("--out", type=str, default="runs/ablation.csv", metavar="FILE", help="file for the rows")
    parser.add_argument("--seeds", type=str, default="0,1,2", help="seeds, separated by commas")
    parser.add_argument(
        "--methods",
        type=str,
        default="all",
        help="methods, separated by semicolons, such as 'GlobalNet; PCNet; centre first; ERPCNet'",
    )
    add_overwrite(parser, "replace that file")
    add_device(parser)


def run(options: Namespace) -> int:
    config, seeds = config_of(options), read_seeds(options.seeds)
    names = [name.strip() for name in options.methods.split(";") if name.strip()]
    if not names:
        raise InputError("--methods is empty; name one, such as 'ERPCNet', or give 'all'.")
    from erpcnet.data import read_dataset
    from erpcnet.evaluation.tables import print_metrics
    from erpcnet.experiments.ablation import check_methods, list_methods, run_ablation
    from erpcnet.experiments.rows import write_rows
    from erpcnet.utils.runtime import on_device

    methods = list_methods() if names == ["all"] else names
    check_methods(methods)
    dataset = read_dataset(options.dataset)
    out = output_file(options.out, options.overwrite)
    note_other_weights(options.config, config)
    rows: list[dict[str, Any]] = []
    with on_device(options.device):
        for row in run_ablation(config, dataset, seeds, methods):
            rows.append(row)
            write_rows(out, rows)  # after each row, so that nothing measured is lost
    print_metrics([{**row, "variant": row["method"]} for row in rows], title=options.out)
    return 0


def read_seeds(text: str) -> list[int]:
    """What `--seeds` asks for."""
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds is '{text[:60]}'; it takes whole numbers, separated by commas.") from None
    wrong = [seed for seed in seeds if not 0 <= seed < 2**32]
    if wrong or len(set(seeds)) < len(seeds):
        what = f"holds {wrong[0]}" if wrong else "names a seed twice"
        raise InputError(f"--seeds is '{text[:60]}', which {what}; seeds are from 0 to {2**32 - 1}, each once.")
    return seeds
