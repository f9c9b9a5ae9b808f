"""Who may ask the server, and how much: checked before anything of a request's body is read."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from erpcnet.inference.service import LARGEST

SMALL = 2**20  # bytes of what is no picture
BODY_SECONDS = 30.0  # that a client may take to send what it began, or to read an answer
REST_SECONDS = 3.0  # for what comes after a refusal, which is not read
HELD = 256 * 2**20  # bytes of all bodies of more than SMALL, together
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# A name or an address, and perhaps a port; nothing else is taken for either.
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)

# Pages and descriptions, which a browser opens without a token.
OPEN = ("/", "/health", "/docs", "/openapi.json")


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal in one line, whatever names are in it."""
    line = "".join(one if one.isprintable() else "\ufffd" for one in " ".join(message.split()))
    return JSONResponse({"error": line}, status, headers)


class Gate:
    """Before anything of a body is read: who asks, from which page, and how much is coming."""

    def __init__(self, app: ASGIApp, names: set[str], loopback: bool, token: str | None) -> None:
        self._app, self._names, self._loopback, self._token = app, names, loopback, token
        self._held = Held()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        problem = _foreign(request, self._names, self._loopback) or _unauthorised(request, self._token)
        problem = problem or _too_much(request) or _misnamed(request)
        answer = self._app if problem is None else refusal(*problem, {"Connection": "close"})
        body = Body(receive, send, LARGEST if scope["path"] == "/predict" else SMALL, self._held)
        try:
            await answer(scope, body.receive, body.send)
        finally:
            body.forget()


class Held:
    """The bytes of all large bodies that are there at the moment."""

    bytes = 0


class Body:
    """What is sent with a request: in time, and no more than there is room for.

    What nobody has read when the answer is there is let in and forgotten for a while: who is still sending when a
    connection is closed gets no answer.
    """

    def __init__(self, receive: Receive, send: Send, most: int, held: Held) -> None:
        self._receive, self._send, self._most, self._held = receive, send, most, held
        self._size, self._whole = 0, False
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self._whole = True  # nobody waits for more
            why = "what was begun to be sent did not come in time."
            raise HTTPException(408, why, {"Connection": "close"}) from None
        self._take(len(message.get("body", b"")))
        self._whole = not message.get("more_body", False)
        return message

    def _take(self, more: int) -> None:
        if self._size + more > self._most:
            raise HTTPException(413, f"at most {self._most // 2**20} MiB are read.", {"Connection": "close"})
        before, self._size = self._size, self._size + more
        if self._size > SMALL:
            self._held.bytes += more if before > SMALL else self._size
            if self._held.bytes > HELD:
                raise HTTPException(503, "too much is sent at once; try again.", {"Retry-After": "1"})

    def forget(self) -> None:
        """It is needed no longer."""
        if self._size > SMALL:
            self._held.bytes -= self._size
        self._size = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
        elif not message.get("more_body", False) and not self._whole:
            await self._send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_SECONDS):
                    while (await self._receive()).get("more_body", False):
                        pass
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)


def _foreign(request: Request, names: set[str], loopback: bool) -> tuple[int, str] | None:
    """Whether this comes under a name that is not this server's, or from another page of the same browser."""
    name, port = _name_and_port(request.headers.get("host", ""))
    known = name in names or (not loopback and _is_address(name))
    origin = request.headers.get("origin")
    if origin is not None:
        scheme, _, page = origin.partition("://")
        usual = {"http": "80", "https": "443"}.get(scheme)
        own_name, own_port = _name_and_port(page)
        known = known and usual is not None and (own_name, own_port or usual) == (name, port or usual)
    return None if known else (403, "only the page of this server may ask, under one of the server's own names.")


def _name_and_port(host: str) -> tuple[str, str]:
    """Of a Host header, or of what stands behind http:// in an Origin; empty if it is neither."""
    found = HOST.fullmatch(host)
    return (found[1].lower().strip("[]"), found[2] or "") if found else ("", "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _unauthorised(request: Request, token: str | None) -> tuple[int, str] | None:
    # The path of `scope` and not of `url`, which is made with what the client says that this host is called.
    if token is None or request.scope["path"] in OPEN:
        return None
    kind, _, brought = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(brought.encode("latin-1"), token.encode("utf-8", "surrogateescape"))
    if right and kind.lower() == "bearer":
        return None
    return 401, "this server wants a token: Authorization: Bearer TOKEN."


def _too_much(request: Request) -> tuple[int, str] | None:
    """Whether more is announced than is read."""
    length, path = request.headers.get("content-length"), request.scope["path"]
    most = LARGEST if path == "/predict" else SMALL
    if request.headers.get("transfer-encoding") is not None and path != "/predict":
        return 411, "say how much is sent (Content-Length)."
    if length is not None and (not length.isdecimal() or len(length) > 12 or int(length) > most):
        return 413, f"at most {most // 2**20} MiB are read."
    return None


def _misnamed(request: Request) -> tuple[int, str] | None:
    return None if request.scope["path"].isprintable() else (404, "there is nothing here.")
