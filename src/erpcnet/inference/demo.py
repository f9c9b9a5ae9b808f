"""A page in the browser on which to try a run: drop a picture, see where it looks, add a class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from erpcnet.data.images import read_image
from erpcnet.errors import InputError
from erpcnet.inference.recogniser import Recogniser

LARGEST = 64 * 2**20  # bytes of a picture
TOLD = 8  # attributes


class Demo:
    """What the page asks for, whoever carries it: a recogniser, and pictures to begin with."""

    def __init__(self, recogniser: Recogniser, examples: Sequence[Path] = ()) -> None:
        self._recogniser, self._examples = recogniser, tuple(examples)
        self._lock = Lock()  # requests come in several threads, and the network is one

    def about(self) -> dict[str, Any]:
        """What the page has to know before anything is dropped on it."""
        table, data = self._recogniser.classes, self._recogniser.data
        return {
            "variant": self._recogniser.network.variant,
            "views": data.test_views,
            "classes": [{"name": n, "seen": bool(s)} for n, s in zip(table.names, table.seen, strict=True)],
            "attributes": list(table.attribute_names),
            "examples": len(self._examples),
        }

    def example(self, number: int) -> bytes:
        """One of the pictures to begin with."""
        if not 0 <= number < len(self._examples):
            raise InputError(f"there are {len(self._examples)} examples, and no number {number}.")
        return self._examples[number].read_bytes()

    def recognise(self, picture: bytes, candidates: str) -> dict[str, Any]:
        """What is in a picture, where the network looked, and the attributes that spoke most for the answer."""
        if candidates not in ("unseen", "all"):
            raise InputError(f"candidates are 'unseen' or 'all', not '{candidates}'.")
        shown = read_image(BytesIO(picture), "this file")
        with self._lock:
            (found,) = self._recogniser.predict([shown], candidates)
            telling = self._telling(found.name, found.attributes)
        return {**asdict(found), "attributes": telling, "width": shown.width, "height": shown.height}

    def add_class(self, name: str, attributes: Mapping[str, float]) -> dict[str, Any]:
        """Make a class known by its attributes; what there is to know then."""
        if not name.strip():
            raise InputError("a class needs a name.")
        with self._lock:
            self._recogniser.add_classes({name.strip(): attributes})
        return self.about()

    def _telling(self, name: str, said: Mapping[str, float]) -> list[dict[str, Any]]:
        """The attributes that add most to the answer's score: what was said times what the class has more of than
        others, as parts of what all of those for it add up to.
        """
        table, network = self._recogniser.classes, self._recogniser.network
        row = table.phi()[table.names.index(name)] - network.global_fit.centre.cpu()
        parts = {key: said[key] * float(value) for key, value in zip(table.attribute_names, row, strict=True)}
        total = sum(part for part in parts.values() if part > 0) or 1.0
        most = sorted(parts, key=lambda key: -parts[key])[:TOLD]
        return [{"name": key, "share": parts[key] / total} for key in most if parts[key] > 0]


def serve(demo: Demo, host: str, port: int) -> ThreadingHTTPServer:
    """A server that waits to be told `serve_forever`."""

    class Handler(_Handler):
        shown = demo

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened on ({error.strerror}); give another --port.") from None


class _Handler(BaseHTTPRequestHandler):
    shown: Demo

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/":
            page = files("erpcnet.inference").joinpath("demo.html").read_bytes()
            self._answer(HTTPStatus.OK, page, "text/html; charset=utf-8")
        elif path == "/about":
            self._tell(self.shown.about)
        elif path.startswith("/examples/") and path.removeprefix("/examples/").isdigit():
            self._send_example(int(path.removeprefix("/examples/")))
        else:
            self._complain(HTTPStatus.NOT_FOUND, f"there is no {path} here.")

    def do_POST(self) -> None:
        address = urlsplit(self.path)
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > LARGEST:
            self.close_connection = True  # what was sent is not read
            self._complain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a picture has at most {LARGEST // 2**20} MiB.")
            return
        body = self.rfile.read(int(size))
        if address.path == "/recognise":
            (candidates,) = parse_qs(address.query).get("candidates", ["unseen"])[:1]
            self._tell(lambda: self.shown.recognise(body, candidates))
        elif address.path == "/classes":
            self._tell(lambda: self.shown.add_class(*_class_of(body)))
        else:
            self._complain(HTTPStatus.NOT_FOUND, f"there is no {address.path} here.")

    def log_message(self, *_: object) -> None:
        """Nothing: the page says what matters."""

    def _send_example(self, number: int) -> None:
        try:
            self._answer(HTTPStatus.OK, self.shown.example(number), "application/octet-stream")
        except InputError as error:
            self._complain(HTTPStatus.NOT_FOUND, str(error))

    def _tell(self, ask: Callable[[], dict[str, Any]]) -> None:
        try:
            self._answer(HTTPStatus.OK, json.dumps(ask()).encode(), "application/json")
        except InputError as error:
            self._complain(HTTPStatus.BAD_REQUEST, str(error))

    def _complain(self, status: HTTPStatus, message: str) -> None:
        self._answer(status, json.dumps({"error": message}).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _class_of(body: bytes) -> tuple[str, dict[str, float]]:
    """A name and attributes, as the page sends them."""
    try:
        sent = json.loads(body)
        return str(sent["name"]), {str(key): float(value) for key, value in sent["attributes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("a class is sent as {'name': ..., 'attributes': {name: value}}.") from None
