"""`erpcnet demo`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_device, add_run
from erpcnet.errors import InputError
from erpcnet.utils.progress import console

DESCRIPTION = "Try a run in the browser: drop pictures, add classes."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument(
        "--dataset",
        type=str,
        metavar="DIR",
        help="where examples come from; by default the dataset that the run was trained on, if it is still there",
    )
    parser.add_argument("--host", type=str, default="127.0.0.1", help="what to listen on: only this machine sees that")
    parser.add_argument("--port", type=int, default=8000, help="what to listen on")
    add_device(parser)
    add_crops(parser)


def run(options: Namespace) -> int:
    from erpcnet.data import read_dataset
    from erpcnet.inference import load
    from erpcnet.inference.demo import Demo, serve
    from erpcnet.inference.examples import example_pictures
    from erpcnet.inference.run_files import dataset_of

    classifier = load(options.run, options.device, test_crops=options.crops)
    try:
        examples = example_pictures(read_dataset(options.dataset or dataset_of(options.run)))
    except InputError:
        if options.dataset is not None:
            raise
        examples = []
    with serve(Demo(classifier, examples), options.host, options.port) as server:
        console.print(f"http://{options.host}:{server.server_port} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
