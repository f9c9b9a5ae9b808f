"""`erpcnet predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from erpcnet.cli.parser import (
    Parser,
    add_candidates,
    add_crops,
    add_device,
    add_json,
    add_overwrite,
    add_run,
    read_candidates,
)
from erpcnet.errors import InputError
from erpcnet.utils.files import output_file

if TYPE_CHECKING:
    from PIL import Image

    from erpcnet.inference import Prediction, ZeroShotClassifier

DESCRIPTION = "Name what is in pictures, from attributes alone."
BATCH = 64  # pictures that are opened at once
DRAWN = 60  # the most that one drawing holds
NONE = "none of these"

Found = Iterator[tuple[str, "Image.Image", "Prediction"]]


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument("images", type=str, nargs="+", help="picture files, folders of them, patterns such as '*.jpg'")
    add_candidates(parser)
    parser.add_argument("--top", type=int, default=1, choices=(1, 2, 3, 4, 5), help="how many classes to name of each")
    parser.add_argument(
        "--reject",
        action="store_true",
        help=f"say '{NONE}' where too little fits; the threshold was chosen on validation classes in training",
    )
    parser.add_argument("--out", type=str, metavar="FILE", help="a .csv or .jsonl file, written as it goes")
    parser.add_argument("--picture", type=str, metavar="FILE", help="also draw the localities, as a PNG")
    add_device(parser)
    add_crops(parser)
    add_json(parser, "print everything as JSON")
    add_overwrite(parser, "replace files of those names")


def run(options: Namespace) -> int:
    from erpcnet.data.images import expand_paths

    images = expand_paths(options.images)
    picture = output_file(options.picture, options.overwrite, images) if options.picture else None
    if picture is not None and len(images) > DRAWN:
        raise InputError(f"--picture draws up to {DRAWN} pictures, and these are {len(images)}.")
    if picture is not None and picture.suffix.lower() != ".png":
        raise InputError(f"--picture is {picture}; its ending must be .png.")
    out = output_file(options.out, options.overwrite, images) if options.out else None
    if out is not None and out.suffix not in (".csv", ".jsonl"):
        raise InputError(f"--out is {out}; its ending must be .csv or .jsonl.")
    from erpcnet.inference import load
    from erpcnet.inference.class_files import add_classes_from

    classifier = load(options.run, options.device, test_crops=options.crops)
    if options.add_classes:
        add_classes_from(classifier, options.add_classes)
    if options.reject and classifier.point.reject is None:
        raise InputError("no threshold for --reject was chosen in this run: that needs two validation classes.")
    candidates = read_candidates(options.classes, classifier.classes.names)
    among = _describe(classifier, candidates)
    broken: list[str] = []
    found = _predictions(classifier, images, candidates, broken)
    if out is not None and not options.json and picture is None:
        with _writer(out, options.top, options.reject) as write:
            count = sum(write(name, prediction) for name, _, prediction in found)
        print(f"{out}: {count} pictures, among {among}")
        return _report(broken, count)
    kept = list(found)
    if out is not None:
        with _writer(out, options.top, options.reject) as write:
            for name, _, prediction in kept:
                write(name, prediction)
    if picture is not None and kept:
        from erpcnet.inference.drawing import draw_localities

        shown, predictions = [one for _, one, _ in kept], [one for _, _, one in kept]
        draw_localities(shown, predictions, [None] * len(kept), picture)
    if options.json:
        print(json.dumps([{"image": _plain(name), **asdict(prediction)} for name, _, prediction in kept], indent=2))
    elif kept:
        _print_table(kept, options.top, among, options.reject)
    return _report(broken, len(kept))


def _predictions(
    classifier: ZeroShotClassifier, images: Sequence[str], candidates: str | list[str], broken: list[str]
) -> Found:
    """Batch by batch, so that memory does not grow; what cannot be opened is told in `broken`."""
    from erpcnet.data.images import load_image
    from erpcnet.utils.progress import bar

    with bar("Pictures", len(images)) as advance:
        for start in range(0, len(images), BATCH):
            opened = []
            for name in images[start : start + BATCH]:
                try:
                    opened.append((name, load_image(name)))
                except InputError as error:
                    broken.append(str(error))
            predictions = classifier.predict([one for _, one in opened], candidates)
            for (name, shown), prediction in zip(opened, predictions, strict=True):
                yield name, shown, prediction
            advance(len(images[start : start + BATCH]))


@contextmanager
def _writer(out: Path, top: int, reject: bool) -> Iterator[Callable[[str, Prediction], bool]]:
    """Writes a line for each prediction, and flushes it."""
    with out.open("w", newline="", encoding="utf-8") as file:
        rows: Any = csv.writer(file, lineterminator="\n")
        if out.suffix == ".csv":
            others = [f"{column}_{place}" for place in range(2, top + 1) for column in ("class", "confidence")]
            rows.writerow(["image", "class", "confidence", "steps", *others])

        def write(name: str, prediction: Prediction) -> bool:
            if out.suffix == ".csv":
                others = [part for label, chance in prediction.top[1:top] for part in (label, f"{chance:.4f}")]
                answer = _answer(prediction, reject)
                rows.writerow([_plain(name), answer, f"{prediction.confidence:.4f}", prediction.steps, *others])
            else:
                file.write(json.dumps({"image": _plain(name), **asdict(prediction)}) + "\n")
            file.flush()
            return True

        yield write


def _plain(name: str) -> str:
    """The name of a file, which may be no UTF-8, as text."""
    return name.encode("utf-8", "backslashreplace").decode()


def _answer(prediction: Prediction, reject: bool) -> str:
    return NONE if reject and prediction.rejected else prediction.name


def _describe(classifier: ZeroShotClassifier, candidates: str | list[str]) -> str:
    """Among which classes the answer is chosen."""
    count = len(classifier.classes.select(candidates).names)
    if candidates == "all":
        unseen = int((~classifier.classes.seen).sum())
        return f"all {count} classes, {unseen} of which were never seen in training"
    if candidates == "unseen":
        only = "the only unseen class" if count == 1 else f"the {count} unseen classes"
        return f"{only}; --classes all also knows the seen ones"
    return f"the {count} classes that were named"


def _print_table(found: Sequence[tuple[str, Image.Image, Prediction]], top: int, among: str, reject: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    wide = Column("class", overflow="fold")
    table = Table(Column("image", overflow="fold"), wide, "confidence", "steps", caption=f"among {among}")
    for name, _, prediction in found:
        answer = _answer(prediction, reject)
        table.add_row(escape(_plain(name)), escape(answer), f"{prediction.confidence:.1%}", str(prediction.steps))
        for label, chance in prediction.top[1:top]:
            table.add_row("", escape(label), f"{chance:.1%}", "")
    Console().print(table)


def _report(broken: Sequence[str], count: int) -> int:
    """The exit code: 1 if some pictures could not be read, which are named, 2 if none could."""
    for problem in broken:
        print(f"erpcnet: {_plain(problem)}", file=sys.stderr)
    return 0 if not broken else 1 if count else 2
