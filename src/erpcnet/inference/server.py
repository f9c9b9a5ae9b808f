"""The server of `erpcnet serve`, on uvicorn: its socket, and the connections that it has room for."""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import cache
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from erpcnet.errors import InputError
from erpcnet.inference import gate
from erpcnet.inference.gate import SMALL, Body, Held, refusal

HEAD_SECONDS = 10.0  # that a client may take to ask
CONNECTIONS = 256
FILES = 64  # that are not connections, where the system allows few
ACCEPTED, WAITING = 8, 2048  # connections that are taken at a time, and that may wait for it
SHORT = 0.5  # seconds in which what was sent is read


@cache
def _room() -> int:
    """How many connections there may be: few where the system allows few files."""
    try:
        import resource
    except ModuleNotFoundError:
        return CONNECTIONS
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if allowed == resource.RLIM_INFINITY else max(8, min(CONNECTIONS, allowed - FILES))


class _PatientProtocol(H11Protocol):
    """Lets connections go on which nothing comes whole or is read; where there is no room, those that wait longest."""

    _deaf = False
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        self._impatient = self.loop.call_later(HEAD_SECONDS, self._give_up)
        if len(self.connections) > _room():
            self._answer, self.app = self.app, self._answer_if_room
            # Who has just come may have sent something that is not read yet.
            _make_room(self.connections, _room() + ACCEPTED, SHORT, self)
            _make_room(self.connections, 2 * _room(), 0.0, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._impatient.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._deaf:
            super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(gate.BODY_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        self._impatient.cancel()
        self._impatient = self.loop.call_later(HEAD_SECONDS, self._give_up)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in a sentence too; what comes behind it is not read."""
        self._deaf = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = b'{"error":"this is no request of HTTP."}'
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            self.conn.send_failed()
        self.loop.call_later(SHORT, self.transport.close)

    def _give_up(self) -> None:
        if self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def waits_for(self) -> int | None:
        """0: that its answer is read, 1: a request, 2: the rest of one; None: it waits for this server."""
        if self.flow.write_paused:
            return 0
        if self._is_idle():
            return 1
        return 2 if self.cycle.more_body else None

    def let_go(self) -> None:
        """Close it, unless something has come already that is read in the next turns of the loop."""
        self.connections.discard(self)
        self.loop.call_soon(self.loop.call_soon, self._leave, self.since)

    def _leave(self, since: float) -> None:
        if self.transport.is_closing():
            return
        if self.waits_for() is None or self.since != since:
            self.connections.add(self)
        else:
            self.transport.abort()

    async def _answer_if_room(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever asks something goes before those who do not."""
        _make_room(self.connections, _room(), but=self)
        if len(self.connections) <= _room():
            await self._answer(scope, receive, send)
        else:
            body = Body(receive, send, SMALL, Held())
            headers = {"Retry-After": "1", "Connection": "close"}
            await refusal(503, "too many ask at once; try again.", headers)(scope, body.receive, body.send)


def _make_room(connections: set[Any], most: int, seconds: float = 0.0, but: object = None) -> None:
    """Close those that wait for their clients, the longest wait first, until no more than `most` are open.

    Args:
        connections: The open ones.
        most: Of them.
        seconds: After which one may be closed.
        but: One that stays.
    """
    excess = len(connections) - most
    if excess <= 0:
        return
    waiting: list[tuple[bool, int, float, Any]] = []
    for one in connections:
        kind, waits = one.waits_for(), one.loop.time() - one.since
        if kind is not None and one is not but and waits >= seconds:
            # What has just come may be an idle connection only because nothing of it is read yet.
            waiting.append((waits < SHORT, 0 if waits < SHORT else kind, one.since, one))
    for *_, one in sorted(waiting, key=lambda entry: entry[:3])[:excess]:
        one.let_go()


class Server(uvicorn.Server):
    """A server on a socket of its own, which is open before anyone is told of it."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.socket = socket.socket(family, socket.SOCK_STREAM)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((host, port))
            self.socket.listen(WAITING)
        except (OSError, OverflowError, UnicodeError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "there is no such host or port"
            shown = f"{host[:60]}:{port}"
            raise InputError(f"{shown} cannot be listened on ({why}); give another --host or --port.") from None
        self.port = int(self.socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            http=_PatientProtocol,
            log_level="critical",
            access_log=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
            backlog=ACCEPTED,
            server_header=False,
            ws="none",
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._of_loop)
        await super().startup(sockets)
        self.socket.listen(WAITING)  # which became ACCEPTED

    def _of_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Neither clients that leave nor a want of connections are a matter for the console."""
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif error.errno in (errno.EMFILE, errno.ENFILE):  # asyncio tries again after a second
            loop.call_later(SHORT, _make_room, self.server_state.connections, _room() // 2, SHORT)

    def serve_forever(self) -> None:
        """Serve until it is told to end, or Ctrl-C."""
        self.run(sockets=[self.socket])
