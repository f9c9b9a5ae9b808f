"""The application of `erpcnet serve`, on FastAPI: its page, the REST interface, and what both answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from erpcnet import __version__
from erpcnet.errors import InputError
from erpcnet.inference.api_page import api_page
from erpcnet.inference.gate import LOOPBACK, Gate, refusal
from erpcnet.inference.service import LONGEST, BusyError, Service

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
    own = () if host in LOOPBACK else (socket.gethostname(), host)
    names = {*LOOPBACK, *map(str.lower, (*own, *allowed_hosts))}
    app.add_middleware(Gate, names=names, loopback=host in LOOPBACK, token=token)
    start = files("erpcnet.inference").joinpath("demo.html").read_bytes()

    @app.exception_handler(InputError)
    async def of_input(_request: Request, error: InputError) -> Response:
        return refusal(400, str(error))

    @app.exception_handler(BusyError)
    async def of_load(_request: Request, _error: BusyError) -> Response:
        return refusal(503, "too many pictures wait; try again.", {"Retry-After": "1"})

    @app.exception_handler(TimeoutError)
    async def of_time(_request: Request, _error: TimeoutError) -> Response:
        return refusal(503, "no answer was ready in time; try again.", {"Retry-After": "1"})

    @app.exception_handler(AnyHTTPException)
    async def of_http(_request: Request, error: AnyHTTPException) -> Response:
        sentences = {"Not Found": "there is nothing here.", "Method Not Allowed": "this is not done with what is here."}
        return refusal(error.status_code, sentences.get(str(error.detail), str(error.detail)), error.headers)

    @app.exception_handler(Exception)
    async def of_us(_request: Request, _error: Exception) -> Response:
        return refusal(500, "something is wrong with this server.", {"Connection": "close"})

    from fastapi.exceptions import RequestValidationError

    @app.exception_handler(RequestValidationError)
    async def of_form(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        return refusal(422, f"{where}: {str(first['msg'])[:200]}")

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
    if not service.has_class(name):
        raise HTTPException(404, f"there is no class '{name[:60]}'.")


async def _departure(request: Request) -> None:
    """Returns once whoever asks is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
