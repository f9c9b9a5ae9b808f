"""`erpcnet serve`, and `erpcnet demo`, which opens a browser too."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from threading import Timer
from urllib.parse import quote

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_device, add_run
from erpcnet.errors import InputError
from erpcnet.utils.progress import console

DESCRIPTION = "Serve a run: a page to try it on, and a REST interface (its description is at /docs)."
TOKEN = "ERPCNET_TOKEN"


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument(
        "--dataset",
        type=str,
        metavar="DIR",
        help="where examples come from; by default the dataset that the run was trained on, if it is still there",
    )
    parser.add_argument("--host", type=str, default="127.0.0.1", help="what to listen on: only this machine sees that")
    parser.add_argument("--port", type=int, default=8000, help="what to listen on; 0: any that is free")
    parser.add_argument(
        "--allowed-hosts",
        dest="allowed_hosts",
        type=str,
        default="",
        metavar="NAMES",
        help="further names under which this machine is reached, separated by commas",
    )
    parser.add_argument(
        "--token", type=str, help=f"what requests must bring as a bearer token; by default {TOKEN}, if that is set"
    )
    parser.add_argument("--add-classes", dest="add_classes", type=str, metavar="FILE.csv", help="classes to add")
    add_device(parser)
    add_crops(parser)


def run(options: Namespace, browser: bool = False) -> int:
    from erpcnet.data import read_dataset
    from erpcnet.inference import load
    from erpcnet.inference.app import create_app
    from erpcnet.inference.class_files import add_classes_from
    from erpcnet.inference.examples import example_pictures
    from erpcnet.inference.run_files import dataset_of
    from erpcnet.inference.server import Server
    from erpcnet.inference.service import Service

    if not 0 <= options.port < 2**16:
        raise InputError(f"--port is {options.port}; it must be from 0 to {2**16 - 1}.")
    if options.token is not None and not options.token.strip():
        raise InputError("--token is empty, which would let everyone in; give a secret, or leave the flag out.")
    classifier = load(options.run, options.device, test_crops=options.crops)
    if options.add_classes:
        add_classes_from(classifier, options.add_classes)
    try:
        examples = example_pictures(read_dataset(options.dataset or dataset_of(options.run)))
    except InputError:
        if options.dataset is not None:
            raise
        examples = []
    names = tuple(name.strip() for name in options.allowed_hosts.split(",") if name.strip())
    token = options.token or os.environ.get(TOKEN) or None
    service = Service(classifier, examples)
    server = Server(create_app(service, options.host, names, token), options.host, options.port)
    address = f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{server.port}"
    secret = quote(token or "", safe="", errors="surrogateescape")
    # What came from the environment is not repeated where it may be kept.
    page = _page(address, secret if options.token else f"${TOKEN}" if token else "")
    console.print(f"{page} (the interface: {address}/docs; Ctrl-C ends it)", soft_wrap=True)
    if browser:
        Timer(0.5, lambda: webbrowser.open(_page(address, secret))).start()
    with suppress(KeyboardInterrupt):  # the way to end it
        try:
            server.serve_forever()
        finally:
            service.close()
    return 0


def _page(address: str, token: str) -> str:
    """Where the page is; it reads the token behind the #, which no browser sends."""
    return f"{address}/#token={token}" if token else address
