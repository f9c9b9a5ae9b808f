"""A page in the browser on which to try a run: drop a picture, see where it looks, add a class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from io import BytesIO
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from PIL import Image

from erpcnet.data.images import read_image
from erpcnet.errors import InputError
from erpcnet.inference.classifier import Prediction, ZeroShotClassifier

LARGEST = 64 * 2**20  # bytes of a picture
# What photographs are kept in: Pillow hands other formats to programs that were not made for what strangers send.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
HERE = ("127.0.0.1", "localhost")
SHOWN_ATTRIBUTES = 8


class Demo:
    """What the page asks for, whoever carries it: a classifier, and pictures to begin with."""

    def __init__(self, classifier: ZeroShotClassifier, examples: Sequence[Image.Image] = ()) -> None:
        self._classifier, self._examples = classifier, [_png(picture) for picture in examples]
        self._lock = Lock()  # requests come in several threads, and the network is one

    def about(self) -> dict[str, Any]:
        """What the page has to know before anything is dropped on it."""
        table, data = self._classifier.classes, self._classifier.data
        return {
            "variant": self._classifier.network.variant,
            "crops": data.test_crops,
            "classes": [{"name": n, "seen": bool(s)} for n, s in zip(table.names, table.seen, strict=True)],
            "attributes": list(table.attribute_names),
            "examples": len(self._examples),
        }

    def example(self, number: int) -> bytes:
        """One of the pictures to begin with, as PNG."""
        if not 0 <= number < len(self._examples):
            raise InputError(f"there are {len(self._examples)} examples, and no number {number}.")
        return self._examples[number]

    def predict(self, picture: bytes, candidates: str) -> dict[str, Any]:
        """What is in a picture, where the network looked, and the attributes that speak most for the answer."""
        if candidates not in ("unseen", "all"):
            raise InputError(f"candidates are 'unseen' or 'all', not '{candidates}'.")
        shown = read_image(BytesIO(picture), "this file", FORMATS)
        with self._lock:
            (found,) = self._classifier.predict([shown], candidates)
        return {**asdict(found), "evidence": _top_evidence(found), "width": shown.width, "height": shown.height}

    def add_class(self, name: str, attributes: Mapping[str, float]) -> dict[str, Any]:
        """Make a class known by its attributes; what there is to know then."""
        if not name.strip():
            raise InputError("a class needs a name.")
        with self._lock:
            self._classifier.add_classes({name.strip(): attributes})
        return self.about()


def _top_evidence(found: Prediction) -> list[dict[str, Any]]:
    """The attributes that speak most for the answer, as parts of what all of those for it add up to."""
    total = sum(part for part in found.evidence.values() if part > 0) or 1.0
    most = sorted(found.evidence.items(), key=lambda item: -item[1])[:SHOWN_ATTRIBUTES]
    return [{"name": name, "share": part / total} for name, part in most if part > 0]


def _png(picture: Image.Image) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def serve(demo: Demo, host: str, port: int) -> ThreadingHTTPServer:
    """A server that waits to be told `serve_forever`."""

    class Handler(_Handler):
        shown, listening = demo, host

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise InputError(f"{host}:{port} cannot be listened on ({why}); give another --host or --port.") from None


class _Handler(BaseHTTPRequestHandler):
    shown: Demo
    listening: str

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if self._refused():
            return
        if path == "/":
            page = files("erpcnet.inference").joinpath("demo.html").read_bytes()
            self._answer(HTTPStatus.OK, page, "text/html; charset=utf-8")
        elif path == "/about":
            self._tell(self.shown.about)
        elif path.startswith("/examples/") and path.removeprefix("/examples/").isdecimal():
            self._send_example(int(path.removeprefix("/examples/")))
        else:
            self._complain(HTTPStatus.NOT_FOUND, f"there is no {path} here.")

    def do_POST(self) -> None:
        address, body = urlsplit(self.path), self._body()
        if self._refused():
            return
        if body is None:
            self._complain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a picture has at most {LARGEST // 2**20} MiB.")
        elif address.path == "/predict":
            (candidates,) = parse_qs(address.query).get("candidates", ["unseen"])[:1]
            self._tell(lambda: self.shown.predict(body, candidates))
        elif address.path == "/classes":
            self._tell(lambda: self.shown.add_class(*_class_of(body)))
        else:
            self._complain(HTTPStatus.NOT_FOUND, f"there is no {address.path} here.")

    def _body(self) -> bytes | None:
        """What was sent; None if it is too much, which is read all the same, as nobody listens while they send."""
        length = self.headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() else 0
        if size <= LARGEST:
            return self.rfile.read(size)
        while size > 0:
            size -= len(self.rfile.read(min(size, 2**20))) or size
        return None

    def _refused(self) -> bool:
        """Whether this comes from another page of the same browser, which has no business here."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        foreign = self.listening in HERE and host.rpartition(":")[0] not in HERE
        if foreign or (origin is not None and origin != f"http://{host}"):
            self._complain(HTTPStatus.FORBIDDEN, "only the page of this demo may ask.")
            return True
        return False

    def log_message(self, *_: object) -> None:
        """Nothing: the page says what matters."""

    def _send_example(self, number: int) -> None:
        try:
            self._answer(HTTPStatus.OK, self.shown.example(number), "image/png")
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
