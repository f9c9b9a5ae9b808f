"""`erpcnet bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_device, add_json, add_overwrite
from erpcnet.config.ranges import shorten
from erpcnet.errors import InputError
from erpcnet.utils.files import output_file

DESCRIPTION = "Time training, the policy and prediction, by turns, as ratios."
# From and to what the sizes of a bench are of use; the smallest image is what the backbones can read.
SIZES = {
    "image_size": (64, 2048),
    "zoom": (1, 4),
    "batches": (1, 65536),
    "stage1_batches": (1, 65536),
    "stage2_images": (1, 10**6),
    "repeats": (1, 10**4),
}


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    parser.add_argument("--backbone", type=str, help="by default `small`, and resnet50 on a GPU")
    parser.add_argument("--image-size", type=int, help="by default 112, and 224 on a GPU")
    parser.add_argument("--zoom", type=int, help="read localities again from images so many times larger; by default 1")
    parser.add_argument("--batches", type=str, help="sizes of batches to predict, such as 1,8,32")
    parser.add_argument("--stage1-batches", type=str, help="sizes of batches of Stage I")
    parser.add_argument("--stage2-images", type=int, help="images that Stage II rolls out")
    parser.add_argument("--repeats", type=int, help="turns; by default 5, and 10 on a GPU")
    parser.add_argument("--no-growth", dest="no_growth", action="store_true", help="leave out how times grow")
    parser.add_argument("--out", type=str, metavar="FILE", help="also write the rows, as CSV")
    add_device(parser)
    add_json(parser, "print everything as JSON")
    add_overwrite(parser, "replace a file of that name")


def run(options: Namespace) -> int:
    given = options.as_dict()
    changes = {name: given[name] for name in ("backbone", "image_size", "zoom", "stage2_images", "repeats")}
    changes |= {name: _numbers(name, given[name]) for name in ("batches", "stage1_batches")}
    changes |= {"growth": False} if options.no_growth else {}
    for name, (low, high) in SIZES.items():
        for number in changes[name] if isinstance(changes[name], tuple) else (changes[name],):
            if number is not None and not low <= number <= high:
                raise InputError(f"--{name.replace('_', '-')} is {shorten(number)}; it must be from {low} to {high}.")
    import torch

    from erpcnet.experiments.bench import run_bench
    from erpcnet.experiments.bench_cases import CPU, GPU
    from erpcnet.experiments.rows import write_rows
    from erpcnet.utils.runtime import check_device

    device = check_device(options.device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device is {device}; what is timed runs on cpu or cuda.")
    path = output_file(options.out, options.overwrite) if options.out else None

    def keep(results: dict[str, Any]) -> None:
        if path is not None:
            write_rows(path, results["rows"])

    usual = GPU if device.type == "cuda" else CPU
    settings = replace(usual, **{name: value for name, value in changes.items() if value is not None})
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        results = run_bench(settings, keep)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        _print(results)
    return 0


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(number) for number in text.split(","))
    except ValueError:
        flag = name.replace("_", "-")
        raise InputError(f"--{flag} is '{text}', which is no list of numbers such as 1,8,32.") from None


def _print(results: dict[str, Any]) -> None:
    """Milliseconds per image, and the ratios."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    zoom = f", zoom {results['zoom']}" if results["zoom"] > 1 else ""
    title = f"{results['backbone']} at {results['image_size']}{zoom}, {results['device']}"
    # In a narrow terminal names take several lines, and no figure is cut.
    caption = "ms and GMAC: of an image; MiB: the peak of memory"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("what", "", "grown"):
        table.add_column(name, overflow="fold")
    for name in ("batch", "ms", "spread", "GMAC", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in results["rows"]:
        macs = "" if row["gmac_per_image"] is None else f"{row['gmac_per_image']:.3f}"
        memory = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        times = (f"{row['ms_per_image']:.3f}", f"{row['spread']:.0%}", macs, memory)
        table.add_row(row["group"], row["name"], row["grown"], str(row["batch"]), *times)
    Console().print(table)
    ratios = Table(
        Column("ratio", overflow="fold"), Column(justify="right", no_wrap=True), box=SIMPLE_HEAD, pad_edge=False
    )
    for name, value in results["ratios"].items():
        ratios.add_row(name, f"{value:.3f}")
    Console().print(ratios)
