"""`erpcnet serve`: the page and a REST interface, on FastAPI and uvicorn."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from uvicorn.protocols.http.h11_impl import H11Protocol

from erpcnet import __version__
from erpcnet.errors import InputError
from erpcnet.inference.api_page import api_page
from erpcnet.inference.service import LARGEST, LONGEST, BusyError, Service

SMALL = 2**20  # bytes of what is no picture
BODY_SECONDS, HEAD_SECONDS = 30.0, 10.0  # that a client may take to send what it began
CONNECTIONS = 256
LOOPBACK = ("127.0.0.1", "localhost", "::1")

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
    "script-src 'self' 'unsafe-inline'; img-src 'self' blob: data:"
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
        title="ERPCNet", version=__version__, lifespan=lifespan, responses=WRONG, docs_url=None, redoc_url=None
    )
    names = {*LOOPBACK, *(() if host in LOOPBACK else (socket.gethostname().lower(),)), *map(str.lower, allowed_hosts)}

    @app.middleware("http")
    async def gate(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Before anything of the body is read: who asks, from which page, and how much is coming."""
        problem = _foreign(request, names, loopback=host in LOOPBACK) or _unauthorised(request, token)
        problem = problem or _too_much(request)
        if problem is not None:
            status, message = problem
            return JSONResponse({"error": message}, status, {"Connection": "close"})
        return await answer(request)

    @app.exception_handler(InputError)
    async def of_input(_request: Request, error: InputError) -> Response:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(BusyError)
    async def of_load(_request: Request, _error: BusyError) -> Response:
        return JSONResponse({"error": "too many pictures wait; try again."}, 503, {"Retry-After": "1"})

    @app.exception_handler(TimeoutError)
    async def of_time(_request: Request, _error: TimeoutError) -> Response:
        return JSONResponse({"error": "no answer was ready in time; try again."}, 503, {"Retry-After": "1"})

    @app.exception_handler(HTTPException)
    @app.exception_handler(404)
    @app.exception_handler(405)
    async def of_http(_request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    from fastapi.exceptions import RequestValidationError

    @app.exception_handler(RequestValidationError)
    async def of_form(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        return JSONResponse({"error": f"{where}: {str(first['msg'])[:200]}"}, 422)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        body = files("erpcnet.inference").joinpath("demo.html").read_bytes()
        return HTMLResponse(body, headers=POLICY)

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
        picture = await _body(request, LARGEST)
        if not picture:
            raise InputError("nothing was sent; send the bytes of a picture.")
        found = await asyncio.wait_for(asyncio.to_thread(service.predict, picture, candidates), LONGEST)
        return Answer(**found)

    @app.get("/classes")
    async def classes() -> list[ClassEntry]:
        """Every class with its attributes."""
        return [ClassEntry(**one) for one in service.classes()]

    @app.post("/classes")
    async def add_class(new: NewClass) -> About:
        """Make a class known by its attributes, from now on and until the server ends."""
        return About(**await asyncio.to_thread(service.add_class, new.name, new.attributes))

    @app.put("/classes/{name}")
    async def change_class(name: ClassName, changed: Attributes) -> About:
        """Give a class other attributes."""
        _known(service, name)
        return About(**await asyncio.to_thread(service.change_class, name, changed.attributes))

    @app.delete("/classes/{name}")
    async def remove_class(name: ClassName) -> About:
        """Forget a class."""
        _known(service, name)
        return About(**await asyncio.to_thread(service.remove_class, name))

    return app


def _known(service: Service, name: str) -> None:
    if all(one["name"] != name for one in service.about()["classes"]):
        raise HTTPException(404, f"there is no class '{name[:60]}'.")


async def _body(request: Request, most: int) -> bytes:
    """What is sent, if it comes in time and is no more than that."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise HTTPException(413, f"a picture has at most {most // 2**20} MiB.", {"Connection": "close"})
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "what was begun to be sent did not come in time.", {"Connection": "close"}) from None
    return b"".join(parts)


def _foreign(request: Request, names: set[str], loopback: bool) -> tuple[int, str] | None:
    """Whether this comes under a name that is not this server's, or from another page of the same browser."""
    host = request.headers.get("host", "")
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        name = ""
    known = name in names or (not loopback and _is_address(name))
    origin = request.headers.get("origin")
    if not known or (origin is not None and origin not in (f"http://{host}", f"https://{host}")):
        return 403, "only the page of this server may ask, under one of the server's own names."
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _unauthorised(request: Request, token: str | None) -> tuple[int, str] | None:
    if token is None or request.url.path in OPEN:
        return None
    brought = request.headers.get("authorization", "").removeprefix("Bearer ")
    if hmac.compare_digest(brought.encode(), token.encode()):
        return None
    return 401, "this server wants a token: Authorization: Bearer TOKEN."


def _too_much(request: Request) -> tuple[int, str] | None:
    """Whether more is announced than is read."""
    length = request.headers.get("content-length")
    most = LARGEST if request.url.path == "/predict" else SMALL
    if length is None:
        chunked = request.headers.get("transfer-encoding") is not None
        needs_length = chunked and request.url.path != "/predict"
        return (411, "say how much is sent (Content-Length).") if needs_length else None
    if not length.isdecimal() or len(length) > 12 or int(length) > most:
        return 413, f"at most {most // 2**20} MiB are read."
    return None


class _PatientProtocol(H11Protocol):
    """Closes connections on which no request comes, and more of them than there is room for."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.close()
            return
        self._impatient = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        with suppress(AttributeError):
            self._impatient.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.cycle is None:  # no request has come whole yet
            self.transport.close()


class Server(uvicorn.Server):
    """A server on a socket of its own, which is open before anyone is told of it."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.socket = socket.socket(family, socket.SOCK_STREAM)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((host, port))
            self.socket.listen(2048)
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
            timeout_graceful_shutdown=5,
            limit_concurrency=2 * CONNECTIONS,
            server_header=False,
            ws="none",
        )
        super().__init__(config)

    def serve_forever(self) -> None:
        """Serve until it is told to end, or Ctrl-C."""
        self.run(sockets=[self.socket])
