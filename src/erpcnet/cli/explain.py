"""`erpcnet explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_candidates, add_crops, add_device, add_overwrite, add_run, candidates_of
from erpcnet.utils.files import output_file

DESCRIPTION = "Why a picture is taken for one class and not for another: attributes, and where each was read."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument("image", type=str, help="a picture file")
    parser.add_argument(
        "-o",
        "--out",
        type=str,
        metavar="FILE",
        help="a .png or .html file; by default the picture's name with -why.html",
    )
    parser.add_argument("--against", type=str, metavar="CLASS", help="compare with this class, not with the runner-up")
    add_candidates(parser)
    add_device(parser)
    add_crops(parser)
    add_overwrite(parser, "replace a file of that name")


def run(options: Namespace) -> int:
    out = output_file(options.out or f"{Path(options.image).stem}-why.html", options.overwrite, [options.image])
    from erpcnet.inference import load
    from erpcnet.inference.class_files import add_classes_from

    classifier = load(options.run, options.device, test_crops=options.crops)
    if options.add_classes:
        add_classes_from(classifier, options.add_classes)
    why = classifier.explain(options.image, candidates_of(options.classes, classifier), options.against)
    why.save(out)
    print(f"{why.answer} ({why.prediction.confidence:.0%} among {why.prediction.among} classes), not {why.runner_up}")
    for title, found in ((f"for {why.answer}", why.speaks_for), (f"for {why.runner_up}", why.speaks_against)):
        print(f"  {title}:")
        for one in found[:5]:
            print(f"    {one.amount:+.2f}  {one.name}, read at {why.place_name(one.place)}")
    print(f"{out}")
    return 0
