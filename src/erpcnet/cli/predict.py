"""`erpcnet predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import Namespace

from erpcnet.cli.parser import (
    Parser,
    add_candidates,
    add_crops,
    add_device,
    add_json,
    add_overwrite,
    add_run,
    candidates_of,
)
from erpcnet.errors import InputError
from erpcnet.utils.files import output_file, plain_text
from erpcnet.utils.progress import console

if TYPE_CHECKING:
    from PIL import Image

    from erpcnet.inference import Prediction, ZeroShotClassifier

DESCRIPTION = "Name what is in pictures, from attributes alone."
BATCH = 32  # pictures that are predicted at once, while as many are opened
DRAWN = 60  # the most that one drawing holds
NONE = "none of these"

Found = Iterator[tuple[str, "Image.Image", "Prediction"]]


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument("images", type=str, nargs="+", help="picture files, folders of them, patterns such as '*.jpg'")
    add_candidates(parser)
    parser.add_argument("--top", type=Literal[1, 2, 3, 4, 5], default=1, help="how many classes to name of each")
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
    from erpcnet.data.images import expand_paths, find_files, is_image

    if is_image(PurePosixPath(options.run)):
        raise InputError(f"{options.run} is a picture; the run comes first: `erpcnet predict RUN {options.run}`.")
    images = expand_paths(options.images)
    for folder in filter(Path.is_dir, map(Path, options.images)):
        others = [file for file in find_files(folder) if not is_image(file)]
        if others:
            files = "1 file" if len(others) == 1 else f"{len(others)} files"
            note = f"note: {files} in {folder} passed over as no picture, such as {others[0]}"
            console.print(plain_text(note), markup=False, soft_wrap=True)
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
    candidates = candidates_of(options.classes, classifier)
    among = _describe(classifier, candidates)
    broken: list[str] = []
    table = Rows(options.top, options.reject)
    shown: list[tuple[Image.Image, Prediction]] = []
    count = 0
    with ExitStack() as stack:
        write = None if out is None else stack.enter_context(_writer(out, options.top, options.reject))
        tell = stack.enter_context(_json_array()) if options.json else None
        for name, opened, prediction in _predictions(classifier, images, candidates, broken):
            count += 1
            if write is not None:
                write(name, prediction)
            if tell is not None:
                tell(_as_json(name, prediction))
            elif out is None or picture is not None:
                table.add(name, prediction)
            if picture is not None:
                shown.append((opened, prediction))
    if picture is not None and shown:
        from erpcnet.inference.drawing import draw_localities

        draw_localities([one for one, _ in shown], [one for _, one in shown], [None] * len(shown), picture)
    if table.rows:
        table.print(among)
    elif not options.json:
        print(f"{out}: {count} pictures, among {among}" if out else "no picture could be read")
    return _report(broken, count)


def _predictions(
    classifier: ZeroShotClassifier, images: Sequence[str], candidates: str | list[str], broken: list[str]
) -> Found:
    """Batch by batch, so that memory does not grow; what cannot be opened is told in `broken`.

    The next batch is opened while one is predicted.
    """
    from erpcnet.utils.progress import bar

    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    with bar("Pictures", len(images)) as advance, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_open, batches[0])
        for number, names in enumerate(batches):
            opened = waiting.result()
            if number + 1 < len(batches):
                waiting = pool.submit(_open, batches[number + 1])
            broken += [one for _, one in opened if isinstance(one, str)]
            pictures = [(name, one) for name, one in opened if not isinstance(one, str)]
            predictions = classifier.predict([one for _, one in pictures], candidates)
            for (name, picture), prediction in zip(pictures, predictions, strict=True):
                yield name, picture, prediction
            advance(len(names))


def _open(names: Sequence[str]) -> list[tuple[str, Image.Image | str]]:
    """The pictures of these names, or what is wrong with them."""
    from erpcnet.data.images import load_image

    found: list[tuple[str, Image.Image | str]] = []
    for name in names:
        try:
            found.append((name, load_image(name)))
        except InputError as error:
            found.append((name, str(error)))
    return found


def _as_json(name: str, prediction: Prediction) -> dict[str, Any]:
    return {"image": _plain(name), **asdict(prediction)}


@contextmanager
def _json_array() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Prints what it is given as the members of one array, as they come."""
    count = 0

    def tell(value: dict[str, Any]) -> None:
        nonlocal count
        print("[" if not count else ",", json.dumps(value, indent=2), sep="\n", end="", flush=True)
        count += 1

    yield tell
    print("\n]" if count else "[]")


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


class Rows:
    """What a table on the screen has of each picture."""

    def __init__(self, top: int, reject: bool) -> None:
        self._top, self._reject = top, reject
        self.rows: list[tuple[str, str, str, str]] = []

    def add(self, name: str, prediction: Prediction) -> None:
        answer = _answer(prediction, self._reject)
        self.rows.append((plain_text(name), answer, f"{prediction.confidence:.1%}", str(prediction.steps)))
        self.rows += [("", label, f"{chance:.1%}", "") for label, chance in prediction.top[1 : self._top]]

    def print(self, among: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Column, Table

        names = (Column(name, overflow="fold") for name in ("image", "class"))
        figures = (Column(name, no_wrap=True) for name in ("confidence", "steps"))
        table = Table(*names, *figures, caption=f"among {among}")
        for row in self.rows:
            table.add_row(*map(escape, row))
        Console().print(table)


def _report(broken: Sequence[str], count: int) -> int:
    """The exit code: 1 if some pictures could not be read, which are named, 2 if none could."""
    for problem in broken:
        print(f"erpcnet: {plain_text(problem)}", file=sys.stderr)
    return 0 if not broken else 1 if count else 2
