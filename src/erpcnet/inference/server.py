"""`erpcnet serve`: the page and a REST interface, on FastAPI and uvicorn."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import h11
import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from erpcnet import __version__
from erpcnet.errors import InputError
from erpcnet.inference.api_page import api_page
from erpcnet.inference.service import LARGEST, LONGEST, BusyError, Service

SMALL = 2**20  # bytes of what is no picture
BODY_SECONDS, HEAD_SECONDS = 30.0, 10.0  # that a client may take to send what it began, or to read an answer
REST_SECONDS = 3.0  # for what comes after a refusal, which is not read
HELD = 256 * 2**20  # bytes of all bodies of more than SMALL, together
CONNECTIONS = 256
FILES = 64  # that are not connections, where the system allows few
ACCEPTED, WAITING = 8, 2048  # connections that are taken at a time, and that may wait for it
SHORT = 0.5  # seconds in which what was sent is read
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# A name or an address, and perhaps a port; nothing else is taken for either.
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)

Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=300)]
ClassName = Annotated[str, Path(min_length=1, max_length=300)]


class NewClass(BaseModel):
    """A class by its attributes; those that are not named are 0."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Name
    attributes: dict[Name, Number] = Field(max_length=10_000)


class Attributes(BaseModel):
    """Attributes of a class; those that are not named stay as they are."""

    model_config = ConfigDict(extra="forbid", strict=True)
    attributes: dict[Name, Number] = Field(max_length=10_000)


class Problem(BaseModel):
    """What was wrong with a request, in a sentence."""

    error: str


class Step(BaseModel):
    """A window that was looked at, in pixels of the picture, and what was answered then."""

    box: tuple[float, float, float, float]
    answer: str
    confidence: float
    reward: float


class Evidence(BaseModel):
    """An attribute that speaks for the answer, and its share of all that does."""

    name: str
    share: float


class Answer(BaseModel):
    """What is in a picture."""

    model_config = ConfigDict(extra="allow")
    name: str
    confidence: float
    top: list[tuple[str, float]]
    rejected: bool | None
    among: int
    glance_answer: str
    glance_confidence: float
    localities: list[Step]
    evidence: list[Evidence]
    width: int
    height: int


class ClassEntry(BaseModel):
    """A class with its attributes that are not 0."""

    name: str
    seen: bool
    attributes: dict[str, float]


class KnownClass(BaseModel):
    """A class, and whether training had pictures of it."""

    name: str
    seen: bool


class About(BaseModel):
    """What there is to know of the run."""

    variant: str
    crops: int
    classes: list[KnownClass]
    attributes: list[str]
    examples: int
    rejects: bool


class Health(BaseModel):
    """That the server answers."""

    status: Literal["ok"] = "ok"
    version: str = __version__


POLICY = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; frame-ancestors 'none'"
}
# Pages and descriptions, which a browser opens without a token.
OPEN = ("/", "/health", "/docs", "/openapi.json")
WRONG: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 408, 411, 413, 422, 503)
}


def create_app(
    service: Service, host: str = "127.0.0.1", allowed_hosts: tuple[str, ...] = (), token: str | None = None
) -> FastAPI:
    """The application: a page at /, the interface below it, and its description at /docs.

    Args:
        service: What answers.
        host: What is listened on. On loopback only this machine's names for itself are answered; elsewhere addresses,
            the machine's own name and `allowed_hosts`: a page of a stranger that is bound to another name is refused.
        allowed_hosts: Further names.
        token: What requests must bring as `Authorization: Bearer TOKEN`, but for the pages, their description and
            /health.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="ERPCNet",
        version=__version__,
        lifespan=lifespan,
        responses=WRONG,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    names = {*LOOPBACK, *(() if host in LOOPBACK else (socket.gethostname().lower(),)), *map(str.lower, allowed_hosts)}
    app.add_middleware(_Gate, names=names, loopback=host in LOOPBACK, token=token)
    start = files("erpcnet.inference").joinpath("demo.html").read_bytes()

    @app.exception_handler(InputError)
    async def of_input(_request: Request, error: InputError) -> Response:
        return _problem(400, str(error))

    @app.exception_handler(BusyError)
    async def of_load(_request: Request, _error: BusyError) -> Response:
        return _problem(503, "too many pictures wait; try again.", {"Retry-After": "1"})

    @app.exception_handler(TimeoutError)
    async def of_time(_request: Request, _error: TimeoutError) -> Response:
        return _problem(503, "no answer was ready in time; try again.", {"Retry-After": "1"})

    @app.exception_handler(AnyHTTPException)
    async def of_http(_request: Request, error: AnyHTTPException) -> Response:
        told = {"Not Found": "there is nothing here.", "Method Not Allowed": "this is not done with what is here."}
        return _problem(error.status_code, told.get(str(error.detail), str(error.detail)), error.headers)

    @app.exception_handler(Exception)
    async def of_us(_request: Request, _error: Exception) -> Response:
        return _problem(500, "something is wrong with this server.", {"Connection": "close"})

    from fastapi.exceptions import RequestValidationError

    @app.exception_handler(RequestValidationError)
    async def of_form(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        return _problem(422, f"{where}: {str(first['msg'])[:200]}")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(start, headers=POLICY)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(api_page(app.openapi(), str(request.base_url).rstrip("/")), headers=POLICY)

    @app.get("/health")
    async def health() -> Health:
        """Whether the server answers."""
        return Health()

    @app.get("/about")
    async def about() -> About:
        """What there is to know of the run: its classes, attributes and crops."""
        return About(**service.about())

    @app.get("/examples/{number}", response_class=Response, responses={200: {"content": {"image/png": {}}}})
    async def example(number: Annotated[int, Path(ge=0, le=10_000)]) -> Response:
        """One of the pictures to begin with."""
        try:
            return Response(service.example(number), media_type="image/png")
        except InputError as error:
            raise HTTPException(404, str(error)) from None

    @app.post(
        "/predict",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def predict(request: Request, candidates: Annotated[Literal["all", "unseen"], Query()] = "all") -> Answer:
        """What is in a picture, which is sent as it is: the bytes of a JPEG, PNG, WebP, GIF, BMP, TIFF or HEIC file."""
        picture = await request.body()
        if not picture:
            raise InputError("nothing was sent; send the bytes of a picture.")
        found = asyncio.wrap_future(service.submit(picture, candidates))
        gone = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait((found, gone), timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
            if found.cancelled():
                raise BusyError
            if not found.done():
                raise TimeoutError
            return Answer(**found.result())
        finally:
            found.cancel()
            gone.cancel()

    @app.get("/classes")
    async def classes() -> list[ClassEntry]:
        """Every class with its attributes."""
        return [ClassEntry(**one) for one in service.classes()]

    @app.post("/classes")
    async def add_class(new: NewClass) -> About:
        """Make a class known by its attributes, from now on and until the server ends."""
        return About(**await asyncio.to_thread(service.add_class, new.name, new.attributes))

    @app.get("/classes/{name:path}")
    async def one_class(name: ClassName) -> ClassEntry:
        """A class with its attributes."""
        _known(service, name)
        return ClassEntry(**service.one_class(name))

    @app.put("/classes/{name:path}")
    async def change_class(name: ClassName, changed: Attributes) -> About:
        """Give a class other attributes."""
        _known(service, name)
        return About(**await asyncio.to_thread(service.change_class, name, changed.attributes))

    @app.delete("/classes/{name:path}")
    async def remove_class(name: ClassName) -> About:
        """Forget a class."""
        _known(service, name)
        return About(**await asyncio.to_thread(service.remove_class, name))

    return app


def _known(service: Service, name: str) -> None:
    if all(one["name"] != name for one in service.about()["classes"]):
        raise HTTPException(404, f"there is no class '{name[:60]}'.")


def _problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal in one line, whatever names are in it."""
    line = "".join(one if one.isprintable() else "\ufffd" for one in " ".join(message.split()))
    return JSONResponse({"error": line}, status, headers)


async def _departure(request: Request) -> None:
    """Returns once whoever asks is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Gate:
    """Before anything of a body is read: who asks, from which page, and how much is coming."""

    def __init__(self, app: ASGIApp, names: set[str], loopback: bool, token: str | None) -> None:
        self._app, self._names, self._loopback, self._token = app, names, loopback, token
        self._held = _Held()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        problem = _foreign(request, self._names, self._loopback) or _unauthorised(request, self._token)
        problem = problem or _too_much(request) or _misnamed(request)
        answer = self._app if problem is None else _problem(*problem, {"Connection": "close"})
        body = _Body(receive, send, LARGEST if scope["path"] == "/predict" else SMALL, self._held)
        try:
            await answer(scope, body.receive, body.send)
        finally:
            body.forget()


class _Held:
    """The bytes of all large bodies that are there at the moment."""

    bytes = 0


class _Body:
    """What is sent with a request: in time, and no more than there is room for.

    What nobody has read when the answer is there is let in and forgotten for a while: who is still sending when a
    connection is closed gets no answer.
    """

    def __init__(self, receive: Receive, send: Send, most: int, held: _Held) -> None:
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
        self._unread = self.loop.call_later(BODY_SECONDS, self.transport.abort)

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
            body = _Body(receive, send, SMALL, _Held())
            headers = {"Retry-After": "1", "Connection": "close"}
            await _problem(503, "too many ask at once; try again.", headers)(scope, body.receive, body.send)


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
