"""`erpcnet predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_device, add_json, add_overwrite, add_run
from erpcnet.utils.files import output_file

DESCRIPTION = "Name what is in pictures, from attributes alone."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument("images", type=str, nargs="+", help="picture files")
    parser.add_argument("--classes", type=str, default="unseen", help="'unseen', 'all', or names separated by commas")
    parser.add_argument("--picture", type=str, metavar="FILE", help="also draw the localities, as a PNG")
    add_device(parser)
    add_crops(parser)
    add_json(parser, "print everything as JSON")
    add_overwrite(parser, "replace a file of that name")


def run(options: Namespace) -> int:
    picture = output_file(options.picture, options.overwrite, options.images) if options.picture else None
    from rich.console import Console
    from rich.table import Column, Table

    from erpcnet.inference import load

    candidates = options.classes if options.classes in ("unseen", "all") else options.classes.split(",")
    classifier = load(options.run, options.device, test_crops=options.crops)
    predictions = classifier.predict(options.images, candidates)
    if picture is not None:
        from erpcnet.inference.drawing import draw_localities

        draw_localities(options.images, predictions, [None] * len(predictions), picture)
    if options.json:
        pairs = zip(options.images, predictions, strict=True)
        print(json.dumps([{"image": path, **asdict(prediction)} for path, prediction in pairs], indent=2))
        return 0
    table = Table(Column("image", overflow="fold"), Column("class", overflow="fold"), "confidence", "steps")
    for path, prediction in zip(options.images, predictions, strict=True):
        table.add_row(path, prediction.name, f"{prediction.confidence:.1%}", str(prediction.steps))
    Console().print(table)
    return 0
