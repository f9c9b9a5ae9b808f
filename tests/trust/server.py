"""Strangers behave badly towards `erpcnet serve`: everyone else is answered, and nothing grows or is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from trust.cases import Ended, Row, Size, clean, command, complaint, generator, in_child, left_running

T = TypeVar("T")
LIFE = 200.0  # seconds that a server may run
# Seconds within which a server that is busy with others answers what is no work; and where other tests take its cores.
PROMPT, PROMPT_BESIDE_OTHERS = 3.0, 30.0
LIMITS = {"prompt": PROMPT}
ADDRESS = re.compile(r"http://\S+?:(\d+)(?:/#token=\S+)? \(the interface")
MIB = 2**20
SENTENCE = 400  # characters of a refusal, at most
MANY = 20_000  # classes beside those that come and go


class Served:
    """A server in a process of its own, which ends with the block that uses it."""

    def __init__(self, run: Path, folder: Path, *words: str, prepare: Callable[[], object] = lambda: None) -> None:
        self.folder, self._words, self._prepare = clean(folder), ["serve", str(run), "--port", "0", *words], prepare
        self._thread = threading.Thread(target=self._live, daemon=True)
        self.ended: Ended | None = None
        self.pid = self.port = self._base = 0

    def _live(self) -> None:
        def work() -> int:
            (self.folder / "pid").write_text(str(os.getpid()))
            self._prepare()
            return command(self._words)()

        self.ended = in_child(work, self.folder, LIFE, memory=None)

    def __enter__(self) -> Served:
        self._thread.start()
        deadline = time.monotonic() + 60
        while not (address := ADDRESS.search(self.console())):
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError(f"the server did not start: {self.console()} {self.ended}")
            time.sleep(0.02)
        self.port, self.pid = int(address[1]), int((self.folder / "pid").read_text())
        self._base = self._status("VmRSS")
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(ProcessLookupError):
            if self.ended is None:
                os.kill(self.pid, signal.SIGTERM)
        self._thread.join(20)
        if self.ended is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._thread.join(20)

    def console(self) -> str:
        """What it has printed."""
        if self.ended is not None:
            return self.ended.out + self.ended.err
        told = ""
        for name in (".case-out", ".case-err"):
            with suppress(OSError):
                told += (self.folder / name).read_text(encoding="utf-8", errors="replace")
        return told

    def noise(self) -> str | None:
        """What it printed beside its address."""
        lines = [line for line in self.console().splitlines() if line.strip() and not ADDRESS.search(line)]
        return f"on its console: {' / '.join(lines)[:300]}" if lines else None

    def _status(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0

    def memory(self) -> int:
        """Bytes beyond what it had when it began to serve, now."""
        return self._status("VmRSS") - self._base

    def peak(self) -> int:
        """The most of these so far."""
        return self._status("VmHWM") - self._base

    def seconds(self) -> float:
        """Of a processor, that it used so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        """How many files and connections it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def request(self, method: str, path: str, body: bytes | None = None, *lines: str, host: str | None = None) -> bytes:
        """A request as it is sent."""
        head = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}", *lines]
        if body is not None:
            head.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*head, "", ""]).encode("latin-1") + (body or b"")

    def of_json(self, method: str, path: str, value: object) -> bytes:
        """A request that sends JSON."""
        return self.request(method, path, json.dumps(value).encode(), "Content-Type: application/json")

    async def ask(self, sent: bytes, seconds: float = 60.0) -> Reply:
        """Send something on a connection of its own, and read one answer."""
        return await talk(self.port, sent, seconds)


class Reply(NamedTuple):
    """What came back; status 0 where that was no answer, and `lost` says why."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float
    lost: str = ""

    def json(self) -> Any:
        return json.loads(self.body)


async def talk(port: int, sent: bytes, seconds: float, whole: bool = True) -> Reply:
    """What a server answers first."""
    started = time.monotonic()

    def lost(why: str) -> Reply:
        return Reply(0, {}, b"", time.monotonic() - started, why)

    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
            sending = asyncio.ensure_future(_send(writer, sent))
            try:
                status, headers, body = await read_reply(reader, whole and not sent.startswith(b"HEAD"))
            finally:
                sending.cancel()
                writer.close()
        return Reply(status, headers, body, time.monotonic() - started)
    except TimeoutError:
        return lost(f"no answer within {seconds:.0f} s")
    except asyncio.IncompleteReadError as error:
        return lost(f"closed after {len(error.partial)} bytes of an answer")
    except (OSError, ValueError) as error:
        return lost(f"{type(error).__name__}: {error}")


async def _send(writer: asyncio.StreamWriter, sent: bytes) -> None:
    with suppress(OSError):
        for start in range(0, len(sent), 2**18):
            writer.write(sent[start : start + 2**18])
            await writer.drain()


async def read_reply(reader: asyncio.StreamReader, with_body: bool = True) -> tuple[int, dict[str, str], bytes]:
    """One answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if first.split()[1].startswith("1"):
        return await read_reply(reader, with_body)
    if not with_body:
        return int(first.split()[1]), headers, b""
    length = headers.get("content-length")
    body = await reader.readexactly(int(length)) if length is not None else await reader.read()
    return int(first.split()[1]), headers, body


async def together(jobs: Iterable[Awaitable[T]], at_once: int = 1000) -> list[T]:
    """All of them, so many at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(job: Awaitable[T]) -> T:
        async with room:
            return await job

    return list(await asyncio.gather(*(one(job) for job in jobs)))


def refusal(reply: Reply, statuses: Iterable[int] = range(400, 500)) -> str | None:
    """What is wrong with an answer that was to be a refusal in one sentence; None if nothing is."""
    if not reply.status:
        return reply.lost
    if reply.status not in statuses:
        return f"{reply.status}: {reply.body[:200]!r}"
    try:
        told = reply.json()
    except ValueError:
        return f"{reply.status}, but no JSON: {reply.body[:200]!r}"
    if not isinstance(told, dict) or set(told) != {"error"} or not isinstance(told["error"], str) or not told["error"]:
        return f"{reply.status}, but no sentence: {reply.body[:200]!r}"
    if "\n" in told["error"] or "Traceback (" in told["error"] or len(told["error"]) > SENTENCE:
        return f"{reply.status}, but more than a sentence: {told['error'][:300]!r}"
    return None


def answered(reply: Reply, seconds: float | None = None) -> str | None:
    """What is wrong with an answer that was to be given."""
    if reply.status != 200:
        return reply.lost or f"{reply.status}: {reply.body[:200]!r}"
    if seconds is not None and reply.seconds > seconds:
        return f"only after {reply.seconds:.1f} s"
    return None


def noise(
    random: np.random.Generator, width: int = 60, height: int = 50, kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    """A picture of noise."""
    pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def bomb(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG of few bytes and many pixels: 0 is grey, 2 RGB, 3 a palette, 4 and 6 are grey and RGB that let through."""
    row = 1 + (width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] + 7) // 8
    packer, parts = zlib.compressobj(9), []
    for start in range(0, height, 64):
        parts.append(packer.compress(bytes(row * min(64, height - start))))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))]
    if colour == 3:
        chunks += [(b"PLTE", bytes(6)), (b"tRNS", b"\0\x80")]
    chunks += [(b"IDAT", b"".join(parts) + packer.flush()), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


@contextmanager
def serving(rows: Sequence[Row], *given: Any, **options: Any) -> Iterator[Served]:
    """A server whose console must stay silent for these rows' promises to hold."""
    with Served(*given, **options) as server:
        yield server
    problem = server.noise() or (None if server.ended else "it did not end")
    for row in rows:
        if problem is not None:
            row.count(problem, "the console")


def run(size: Size, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of this campaign."""
    import erpcnet.cli  # here, so that no server has to
    import erpcnet.inference.app
    import erpcnet.inference.server
    from untrained import untrained_run

    model = untrained_run(folder / "run")
    erpcnet.load(model)
    full, random = size == "full", generator(seed, "server")
    LIMITS["prompt"] = PROMPT if full else PROMPT_BESIDE_OTHERS
    yield at_once(model, folder / "once", random, full)
    yield slow(model, folder / "slow", random, full)
    if full:
        yield slow(model, folder / "slow-few", random, full, files=128)
    yield large(model, folder / "large", full)
    yield bodies(model, folder / "bodies", full)
    yield odd(model, folder / "odd", random, 420 if full else 60)
    yield names(model, folder / "names")
    yield token(model, folder / "token")
    yield classes(model, folder / "classes", random, 200 if full else 20)
    if full:
        yield classes(model, folder / "many-classes", random, 200, MANY)
    yield page(model, folder / "page")
    yield changing(model, folder / "changing", random, 40 if full else 6)
    yield leaving(model, folder / "leaving", random, 240 if full else 30)
    yield in_a_row(model, folder / "row", random, 500 if full else 60)
    yield ends(model, folder / "ends", random, full)


def at_once(model: Path, folder: Path, random: np.random.Generator, full: bool) -> Row:
    """Many requests at the same moment."""
    row = Row("server", "200 requests at once", "each is answered, 200 or 503 with a sentence; none is reset")
    with serving([row], model, folder) as server:
        sent = [server.request("POST", "/predict", noise(random)) for _ in range(8)]
        for _ in range(4 if full else 1):
            replies = asyncio.run(together(server.ask(sent[case % 8]) for case in range(200 if full else 100)))
            for reply in replies:
                row.count(answered(reply) if reply.status in (0, 200) else refusal(reply, (503,)))
        row.note = f"peak memory {server.peak() / MIB:.0f} MiB more"
    return row


def _few_files(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def slow(model: Path, folder: Path, random: np.random.Generator, full: bool, files: int | None = None) -> Row:
    """Clients that hold connections, each in one of several ways."""
    kind = "slow and half-open clients" + (f", ulimit -n {files}" if files else "")
    prompt = LIMITS["prompt"]
    row = Row("server", kind, f"others are answered within {prompt:.0f} s, and the processor is idle")
    worst, busiest = 0.0, 0.0
    prepare = (lambda: _few_files(files)) if files else (lambda: None)
    with serving([row], model, folder, prepare=prepare) as server:
        ways: dict[str, tuple[bytes, bytes]] = {
            "say nothing": (b"", b""),
            "a head never finished": (b"GET /about HTTP/1.1\r\nHost: 127.0.0.1\r\n", b""),
            "a head byte by byte": (b"GET /about HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x"),
            "a picture byte by byte": (server.request("POST", "/predict", b"")[:-5] + b"9999\r\n\r\n", b"x"),
            "a class byte by byte": (
                server.request("POST", "/classes", b"", "Content-Type: application/json")[:-5] + b"9999\r\n\r\n",
                b" ",
            ),
            "a second head byte by byte": (server.request("GET", "/health") + b"GET /about HTTP/1.1\r\nX: ", b"x"),
            "answers not read": (server.request("GET", "/") * 400, b""),
        }
        chosen = list(ways) if full else ["say nothing", "a class byte by byte"]
        # Accepting them is work too, so that the fewer there are, the shorter they need to be held.
        clients, seconds = (300, 3.0) if full else (60, 2.0)
        for way in chosen:
            first, drip = ways[way]
            begun, used = time.monotonic(), server.seconds()
            found = asyncio.run(_held(server, first, drip, clients, seconds, random))
            share = (server.seconds() - used) / (time.monotonic() - begun)
            worst = max(worst, *(reply.seconds for reply in found))
            if way != "answers not read":  # which is work
                busiest = max(busiest, share)
                row.count(None if share < 0.6 else f"{100 * share:.0f} % of a processor", way)
            for reply in found:
                busy = way == "answers not read" and reply.status == 503
                row.count(refusal(reply, (503,)) if busy else answered(reply, prompt), way)
        row.note = f"at most {worst:.1f} s, {100 * busiest:.0f} % of a processor"
        if full and files is None:
            for way, problem in asyncio.run(_let_go(server, ways)):
                row.count(problem, f"let go: {way}")
    return row


async def _held(
    server: Served, first: bytes, drip: bytes, count: int, seconds: float, random: np.random.Generator
) -> list[Reply]:
    """What others are answered while so many connections are held."""

    async def hold() -> None:
        with suppress(OSError, TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", server.port), 10)
            try:
                writer.write(first)
                while True:
                    await asyncio.sleep(0.5 if drip else 60)
                    writer.write(drip)
                    if drip:
                        await writer.drain()
            finally:
                writer.transport.abort()

    holders = [asyncio.ensure_future(hold()) for _ in range(count)]
    await asyncio.sleep(0.3)
    found = []
    picture = server.request("POST", "/predict", noise(random))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found += [
            await server.ask(sent, 2 * PROMPT_BESIDE_OTHERS) for sent in (server.request("GET", "/about"), picture)
        ]
        await asyncio.sleep(seconds / 10)
    for holder in holders:
        holder.cancel()
    await asyncio.gather(*holders, return_exceptions=True)
    return found


async def _let_go(server: Served, ways: dict[str, tuple[bytes, bytes]]) -> list[tuple[str, str | None]]:
    """Whether connections on which nothing comes whole are closed, within 45 seconds."""

    async def one(way: str) -> tuple[str, str | None]:
        first, drip = ways[way]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(first)
        deadline = time.monotonic() + 45
        try:
            while time.monotonic() < deadline:
                writer.write(drip)
                with suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(2**16), 0.5):
                        return way, None
        except OSError:
            return way, None
        finally:
            writer.transport.abort()
        return way, "still open after 45 s"

    return await together(one(way) for way in ways if way != "answers not read")


def large(model: Path, folder: Path, full: bool) -> Row:
    """Pictures of few bytes that decode to much."""
    most = 2200 if full else 1500
    row = Row("server", "12 pictures that decode to 88 million pixels at once", f"below {most} MiB, and each answered")
    kinds: tuple[tuple[int, int], ...] = ((8, 2), (8, 6), (16, 0), (8, 4), (1, 3), (8, 0))
    width, height = (13000, 6800) if full else (5000, 4000)
    if not full:
        row.kind, kinds = "4 pictures that decode to 20 million pixels at once", kinds[1:3]
    pictures = [bomb(width, height, depth, colour) for depth, colour in kinds]
    with serving([row], model, folder) as server:

        async def attack() -> tuple[list[Reply], list[Reply]]:
            jobs = [server.ask(server.request("POST", "/predict", picture), 150) for picture in pictures * 2]
            attacks = asyncio.ensure_future(together(jobs))
            others = []
            while not attacks.done():
                await asyncio.sleep(0.5)
                others.append(await server.ask(server.request("GET", "/about"), 20))
            return await attacks, others

        replies, others = asyncio.run(attack())
        for reply in replies:
            row.count(answered(reply) if reply.status in (0, 200) else refusal(reply, (400, 503)))
        for reply in others:
            row.count(answered(reply, LIMITS["prompt"]), "another client")
        peak = server.peak() / MIB
        row.count(None if peak < most else f"{peak:.0f} MiB", "memory")
        row.note = f"{max(map(len, pictures)) // 1000} kB each; peak memory {peak:.0f} MiB more"
    return row


def bodies(model: Path, folder: Path, full: bool) -> Row:
    """Much is sent at once, announced and in chunks, that is no picture."""
    count, size = (24, 60) if full else (6, 8)
    row = Row("server", f"{count} bodies of {size} MiB at once", "below 1000 MiB, and each answered")
    with serving([row], model, folder) as server:
        body = b"x" * (size * MIB)
        chunked = server.request("POST", "/predict", None, "Transfer-Encoding: chunked")
        chunked += f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        smuggled = server.request("POST", "/classes", None, "Content-Length: 9", "Transfer-Encoding: chunked")
        smuggled += chunked.partition(b"\r\n\r\n")[2]
        sent = [server.request("POST", "/predict", body), chunked, smuggled]
        replies = asyncio.run(together(server.ask(sent[case % 3], 100) for case in range(count)))
        for case, reply in enumerate(replies):
            row.count(refusal(reply, (400, 411, 413, 503)), ("announced", "chunked", "both")[case % 3])
        too_large = server.request("POST", "/predict", bytes(70 * MIB))
        for sent_one in (too_large, too_large.replace(b"HTTP/1.1", b"HTTP/1.0", 1)):
            row.count(refusal(asyncio.run(server.ask(sent_one, 60)), (413,)), "sent though too large")
        peak = server.peak() / MIB
        row.count(None if peak < 1000 else f"{peak:.0f} MiB", "memory")
        row.note = f"peak memory {peak:.0f} MiB more"
    return row


class Odd(NamedTuple):
    """Something that may be sent, and whether it may be right in the end."""

    name: str
    sent: bytes
    may_be_right: bool = False


def odd(model: Path, folder: Path, random: np.random.Generator, count: int) -> Row:
    """What no program and no browser would send."""
    row = Row(
        "server", "odd and broken requests", "each is refused, 4xx, in one sentence, and nothing is on the console"
    )
    prepare = (lambda: None) if count > 100 else _less_patient
    with serving([row], model, folder, prepare=prepare) as server:
        fixed = [*_odd_pictures(server, random), *_odd_json(server), *_odd_heads(server), *_odd_paths(server)]
        if count < len(fixed):
            chosen = [fixed[place] for place in sorted(random.choice(len(fixed), size=count, replace=False))]
        else:
            chosen = [*fixed, *(mutant(server, random) for _ in range(count - len(fixed)))]
        replies = asyncio.run(together((server.ask(one.sent, 45) for one in chosen), 16))
        kinds: dict[int, int] = {}
        for one, reply in zip(chosen, replies, strict=True):
            kinds[reply.status] = kinds.get(reply.status, 0) + 1
            head = one.sent.startswith(b"HEAD ") and 400 <= reply.status < 500
            right = one.may_be_right and reply.status == 200
            row.count(None if head or right else refusal(reply), one.name)
        row.count(answered(asyncio.run(server.ask(server.request("GET", "/about"))), LIMITS["prompt"]), "afterwards")
        row.note = ", ".join(f"{status}: {number}" for status, number in sorted(kinds.items()))
    return row


def _less_patient() -> None:
    """Bodies that never come whole are not waited for so long."""
    from erpcnet.inference import gate

    gate.BODY_SECONDS = 2.0


def _odd_pictures(server: Served, random: np.random.Generator) -> Iterator[Odd]:
    def sent(body: bytes, *lines: str) -> bytes:
        return server.request("POST", "/predict", body, *lines)

    png, jpeg = noise(random), noise(random, kind="JPEG")
    wrong = {
        "nothing": b"",
        "text": b"no picture",
        "zeros": bytes(5000),
        "half a PNG": png[: len(png) // 2],
        "half a JPEG": jpeg[:40],
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "PDF": b"%PDF-1.7\n1 0 obj\n",
        "PPM": b"P6 1 1 255\n\0\0\0",
        "XBM": b"#define x_width 1\n#define x_height 1\nstatic char x_bits[] = {0x00};",
        "ICO": noise(random, 16, 16, "ICO"),
        "ZIP": b"PK\3\4" + bytes(60),
        "a pickle": b"cos\nsystem\n(S'true'\ntR.",
        "a GIF without pictures": b"GIF89a\1\0\1\0\0\0\0;",
        "a TIFF that points at itself": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
        "a BMP of a negative size": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 60, 0, 0, 54, 40, -5, -5, 1, 24, *[0] * 6),
        "a PNG of 0 x 0": bomb(0, 0),
        "a PNG of 2147483647 x 2147483647": bomb(1, 1).replace(struct.pack(">II", 1, 1), b"\x7f\xff\xff\xff" * 2),
        "a PNG of 100000 x 100000": _with_size(100_000, 100_000),
        "a PNG whose text is a bomb": _with_text(png),
    }
    for name, body in wrong.items():
        yield Odd(name, sent(body))
    odd_shapes = {"1 x 1": (1, 1), "1 x 60000": (1, 60_000), "60000 x 1": (60_000, 1), "2 x 3": (2, 3)}
    for name, shape in odd_shapes.items():
        yield Odd(name, sent(noise(random, *shape)), True)
    kinds = {"PNG": ("1", "L", "LA", "P", "RGBA"), "TIFF": ("I", "F", "CMYK"), "JPEG": ("CMYK",), "WEBP": ("RGBA",)}
    for kind, modes in kinds.items():
        for mode in modes:
            yield Odd(f"{kind} {mode}", sent(noise(random, kind=kind, mode=mode)), True)
    yield Odd("Content-Encoding", sent(zlib.compress(png), "Content-Encoding: deflate"))
    yield Odd("two kinds of candidates", server.request("POST", "/predict?candidates=all&candidates=some", png))
    for value in ("some", "", "ALL", "a" * 5000, "%00", "%FF", "all%0A"):
        yield Odd(f"candidates {value[:9]}", server.request("POST", f"/predict?candidates={value}", png))


def _with_size(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + struct.pack(">I", zlib.crc32(head)) + bytes(40)


def _with_text(png: bytes) -> bytes:
    text = b"zTXtx\0\0" + zlib.compress(bytes(200 * MIB), 9)
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return png[:33] + chunk + png[33:]


def _odd_json(server: Served) -> Iterator[Odd]:
    right = '{"name": "right", "attributes": {"a": 1}}'
    wrong: dict[str, bytes] = {
        "nothing": b"",
        "an end in the middle": right.encode()[:20],
        "something behind it": right.encode() + b"x",
        "depth": b"[" * 100_000,
        "depth of objects": b'{"attributes":' * 50_000,
        "NaN": b'{"name": "x", "attributes": {"a": NaN}}',
        "Infinity": b'{"name": "x", "attributes": {"a": -Infinity}}',
        "1e999": b'{"name": "x", "attributes": {"a": 1e999}}',
        "a number of 400 digits": b'{"name": "x", "attributes": {"a": ' + b"9" * 400 + b"}}",
        "a number of 5000 digits": b'{"name": "x", "attributes": {"a": ' + b"9" * 5000 + b"}}",
        "half of a surrogate in a name": b'{"name": "\\ud800", "attributes": {"a": 1}}',
        "half of a surrogate in an attribute": b'{"name": "x", "attributes": {"\\udfff": 1}}',
        "half of a surrogate in a field": b'{"name": "x", "attributes": {"a": 1}, "\\udfff": 1}',
        "NUL in a name": b'{"name": "a\\u0000b", "attributes": {"a": 1}}',
        "lines in a name": b'{"name": "a\\nb", "attributes": {"a": 1}}',
        "lines in an attribute": b'{"name": "x", "attributes": {"a\\nTraceback": 1}}',
        "lines in a field": b'{"name": "x", "attributes": {"a": 1}, "a\\nTraceback": 1}',
        "a name from right to left": '{"name": "a\u202eb", "attributes": {"a": 1}}'.encode(),
        "no UTF-8": b'{"name": "\xff\xfe", "attributes": {"a": 1}}',
        "UTF-16 of nothing known": '{"name": "x", "attributes": {"\u00e4": 1}}'.encode("utf-16"),
    }
    values: dict[str, object] = {
        "a list": [],
        "a text": "x",
        "null": None,
        "a number": 7,
        "no attributes": {"name": "x"},
        "no name": {"attributes": {"a": 1}},
        "a name that is a number": {"name": 1, "attributes": {"a": 1}},
        "an empty name": {"name": "", "attributes": {"a": 1}},
        "blanks for a name": {"name": "  ", "attributes": {"a": 1}},
        "a name of 301": {"name": "x" * 301, "attributes": {"a": 1}},
        "a name of 500000": {"name": "x" * 500_000, "attributes": {"a": 1}},
        "a known name": {"name": "class 1", "attributes": {"a": 1}},
        "a known name with blanks": {"name": " class 1 ", "attributes": {"a": 1}},
        "an unknown attribute": {"name": "x", "attributes": {"z": 1}},
        "a long unknown attribute": {"name": "x", "attributes": {"z" * 300: 1}},
        "an attribute of 100000": {"name": "x", "attributes": {"z" * 100_000: 1}},
        "20000 attributes": {"name": "x", "attributes": {str(number): 1 for number in range(20_000)}},
        "no attribute": {"name": "x", "attributes": {}},
        "all 0": {"name": "x", "attributes": {"a": 0, "b": -0.0}},
        "too small": {"name": "x", "attributes": {"a": 1e-30}},
        "too large": {"name": "x", "attributes": {"a": 1e38}},
        "a text for a number": {"name": "x", "attributes": {"a": "1"}},
        "true for a number": {"name": "x", "attributes": {"a": True}},
        "null for a number": {"name": "x", "attributes": {"a": None}},
        "a list of attributes": {"name": "x", "attributes": [1, 2, 3]},
        "a field too many": {"name": "x", "attributes": {"a": 1}, "seen": True},
    }
    wrong |= {name: json.dumps(value).encode() for name, value in values.items()}
    for name, body in wrong.items():
        yield Odd(f"JSON: {name}", server.request("POST", "/classes", body, "Content-Type: application/json"))
        if name in ("depth", "NaN", "all 0", "no UTF-8", "half of a surrogate in an attribute", "a list"):
            change = server.request("PUT", "/classes/class%201", body, "Content-Type: application/json")
            yield Odd(f"JSON of a change: {name}", change)
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "x",
        "a/b; c=\xff",
    ):
        body = right.replace("right", f"by {kind[:9]}").encode()
        yield Odd(f"JSON as {kind}", server.request("POST", "/classes", body, f"Content-Type: {kind}"), True)
    yield Odd("JSON as nothing", server.request("POST", "/classes", right.encode()), True)
    yield Odd("JSON of no length", server.request("POST", "/classes"))


def _odd_heads(server: Served) -> Iterator[Odd]:
    host, right = f"Host: 127.0.0.1:{server.port}\r\n", b'{"name": "x", "attributes": {"z": 1}}'

    def raw(*lines: str, body: bytes = b"") -> bytes:
        return ("\r\n".join(lines) + "\r\n" + host + "\r\n").encode("latin-1") + body

    for method in ("PATCH", "PUT", "DELETE", "TRACE", "OPTIONS", "get", "FOO", "POST", "HEAD", "X" * 3000):
        yield Odd(f"method {method[:9]}", server.request(method, "/about"))
    yield Odd("method of /predict", server.request("GET", "/predict"))
    yield Odd("method CONNECT", raw("CONNECT 127.0.0.1:80 HTTP/1.1"))
    post = "POST /classes HTTP/1.1"
    kind = "Content-Type: application/json"
    for length in ("abc", "-1", "+5", "1e3", "5 5", "5, 6", "0x10", "", "9" * 400, "\u00b2", "1048577", "99999999999"):
        yield Odd(f"length {length[:12]!r}", raw(post, kind, f"Content-Length: {length}", body=right))
    yield Odd("a length too small", raw(post, kind, "Content-Length: 5", body=right))
    yield Odd("a length too large", raw(post, kind, "Content-Length: 5000", body=right))
    yield Odd("two lengths", raw(post, kind, "Content-Length: 5", "Content-Length: 37", body=right))
    chunks = b"25\r\n" + right + b"\r\n0\r\n\r\n"
    yield Odd("chunks", raw(post, kind, "Transfer-Encoding: chunked", body=chunks))
    yield Odd("chunks and a length", raw(post, kind, "Content-Length: 9", "Transfer-Encoding: chunked", body=chunks))
    yield Odd("chunks of a picture", raw("POST /predict HTTP/1.1", "Transfer-Encoding: chunked", body=chunks))
    for size in (b"zz", b"-5", b"0x5", b"", b"5;" + b"x" * 9000, b"f" * 20):
        body = size + b"\r\nabcde\r\n0\r\n\r\n"
        yield Odd(f"a chunk of {size[:9]!r}", raw("POST /predict HTTP/1.1", "Transfer-Encoding: chunked", body=body))
    for coding in ("gzip", "chunked, chunked", "identity", "xchunked", "chunked\x0b"):
        yield Odd(f"coding {coding!r}", raw("POST /predict HTTP/1.1", f"Transfer-Encoding: {coding}", body=chunks))
    for name, sent in {
        "no words": b"\r\n\r\n\r\n\r\nx\r\n\r\n",
        "zeros": bytes(300),
        "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/0.9": b"GET /about\r\n\r\n",
        "SSH": b"SSH-2.0-OpenSSH_9.0\r\n\r\n",
        "no host": b"GET /about HTTP/1.1\r\n\r\n",
        "no host, HTTP/1.0": b"GET /about HTTP/1.0\r\n\r\n",
        "two hosts": b"GET /about HTTP/1.1\r\n" + host.encode() * 2 + b"\r\n",
        "a header without a colon": raw("GET /about HTTP/1.1", "nothing here"),
        "a header without a name": raw("GET /about HTTP/1.1", ": x"),
        "a name with blanks": raw("GET /about HTTP/1.1", "a b: x"),
        "NUL in a header": raw("GET /about HTTP/1.1", "a: \0"),
        "a bare line feed": raw("GET /about HTTP/1.1", "a: x\nb\0: y"),
        "a header without end": raw("GET /about HTTP/1.1", "a: " + "x" * 2**20),
        "headers without end": raw("GET /about HTTP/1.1", *["a: x"] * 2**18),
        "a blank more": raw("GET  /about HTTP/1.1"),
        "a path with blanks": raw("GET /a b HTTP/1.1"),
        "a path of no ASCII": raw("GET /\xe4\xff HTTP/1.1"),
        "no path": raw("GET HTTP/1.1"),
    }.items():
        yield Odd(f"head: {name}", sent)
    yield Odd("HTTP/9.9", raw("GET /about HTTP/9.9"), True)
    yield Odd("a continuation", raw("GET /about HTTP/1.1", "a: x\r\n y"), True)
    yield Odd("an upgrade", raw("GET /about HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket"), True)
    yield Odd("an upgrade to HTTP/2", raw("GET /about HTTP/1.1", "Connection: Upgrade", "Upgrade: h2c"), True)
    yield Odd("expects more", raw(post, kind, "Expect: 100-continue", "Content-Length: 99999999", body=b""))
    yield Odd("expects what is not there", raw("GET /nowhere HTTP/1.1", "Expect: the unexpected"))


def _odd_paths(server: Served) -> Iterator[Odd]:
    paths = [
        *("/nowhere", "//", "//about", "/about/", "/predict/", "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"),
        *("/%00", "/%ff", "/%", "/%zz", "/about%00", "/about%0a", "/about\\", "/ABOUT", "/about;x", "/.git/config"),
        *("*", "about", "?", "http://evil.example/about", "http://[", "//evil.example/about", "/" + "x" * 60_000),
        *("/examples/", "/examples/-1", "/examples/0", "/examples/x", "/examples/1e3", "/examples/10001"),
        *("/examples/%00", "/examples/" + "9" * 5000, "/examples/1.5", "/examples/\u00b2", "/examples/%D9%A1"),
        *("/docs/x", "/redoc", "/static/../../x", "/openapi.json/"),
    ]
    for path in paths:
        yield Odd(f"path {path[:24]}", server.request("GET", path))
    names = [
        "",
        "no%20such",
        "%00",
        "%ff",
        "a/b",
        "..",
        "x" * 300,
        "x" * 301,
        "x" * 50_000,
        "%F0%9F%A6%86",
        "%ED%A0%80",
    ]
    for name in names:
        yield Odd(f"forget {name[:12]}", server.request("DELETE", f"/classes/{name}"))
        change = server.of_json("PUT", f"/classes/{name}", {"attributes": {"a": 1}})
        yield Odd(f"change {name[:12]}", change)


def mutant(server: Served, random: np.random.Generator) -> Odd:
    """Something right with a few bytes changed, gone, doubled or moved."""
    kind = str(random.choice(["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "JSON", "request"]))
    if kind == "JSON":
        text = b'{"name": "mutant %d", "attributes": {"a": 0.25, "b": 1e0}}' % random.integers(10**6)
        return Odd(
            kind, server.request("POST", "/classes", mutated(text, random), "Content-Type: application/json"), True
        )
    if kind == "request":
        text = server.of_json("POST", "/classes", {"name": "x", "attributes": {"a": 1}})
        head, _, body = text.partition(b"\r\n\r\n")
        changed = mutated(head, random).replace(b"\r\n\r\n", b"\r\n")
        return Odd(f"{kind} {changed!r}", changed + b"\r\n\r\n" + body + b"\r\n\r\n", True)
    picture = mutated(noise(random, int(random.integers(1, 90)), int(random.integers(1, 90)), kind), random)
    return Odd(kind, server.request("POST", "/predict", picture), True)


def mutated(given: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(given)
    for _ in range(int(random.integers(1, 6))):
        # Heads of files matter most.
        place = int(random.integers(min(len(changed), 64) if random.random() < 0.6 else len(changed)))
        what = random.integers(4)
        if what == 0:
            changed[place] = int(random.integers(256))
        elif what == 1:
            changed[place] ^= 1 << int(random.integers(8))
        elif what == 2:
            del changed[place : place + int(random.integers(1, 9))]
        else:
            changed[place:place] = changed[place : place + int(random.integers(1, 9))]
        if not changed:
            return b"x"
    return bytes(changed)


STRANGERS = (
    *("evil.example", "evil.example:PORT", "127.0.0.1.evil.example", "localhost.evil.example:PORT", "evil.example."),
    *("127.0.0.1.nip.io", "evil.example@127.0.0.1", "127.0.0.1@evil.example", "127.0.0.1/evil.example", "127.0.0.1?x"),
    *("127.0.0.1#x", "127.0.0.1:80:80", "127.0.0.1:port", "localhost\\evil.example", "[::1].evil.example", "[::1"),
    *("xn--evil.example", "\xff\xfe", "127.0.0.1, evil.example", "local host", "-", "", "rebound.example:PORT"),
)


def names(model: Path, folder: Path) -> Row:
    """DNS rebinding, and pages of other servers."""
    row = Row("server", "names and pages of strangers", "refused before the body is read; its own are answered")
    for port, host in ((0, "127.0.0.1"), (80, "127.0.0.1"), (0, "0.0.0.0")):
        if port and not _is_free(port):
            row.note = f"port {port} is taken"
            continue
        words = ["--port", str(port), "--host", host, "--allowed-hosts", "model.example"]
        case = f"--host {host}{' on port 80' if port else ''}"
        with serving([row], model, folder, *words, prepare=_only_loopback) as server:
            for name, problem in asyncio.run(_named(server, loopback=host != "0.0.0.0")):
                row.count(problem, f"{case}: {name}")
    return row


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _only_loopback() -> None:
    """Whatever is listened on, nobody outside of this machine can come."""

    class Loopback(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(("127.0.0.1", *address[1:]))

    socket.socket = Loopback  # type: ignore[misc]


async def _named(server: Served, loopback: bool) -> list[tuple[str, str | None]]:
    port = str(server.port)
    found: list[tuple[str, str | None]] = []
    own = ["127.0.0.1", f"127.0.0.1:{port}", "localhost", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"]
    own += ["model.example", f"Model.Example:{port}"]
    addresses = ["192.0.2.7", f"192.0.2.7:{port}", "[2001:db8::1]:8000", f"{socket.gethostname()}:{port}"]
    for name in own + ([] if loopback else addresses):
        for origin in (None, f"http://{name.lower()}", f"https://{name.lower()}"):
            lines = [] if origin is None else [f"Origin: {origin}"]
            reply = await server.ask(server.request("GET", "/about", None, *lines, host=name))
            found.append((f"own {name}, {origin}", answered(reply, LIMITS["prompt"])))
    if server.port == 80:
        for name, origin in (("localhost:80", "http://localhost"), ("localhost", "http://localhost:80")):
            reply = await server.ask(server.request("GET", "/about", None, f"Origin: {origin}", host=name))
            found.append((f"own {name}, {origin}", answered(reply, LIMITS["prompt"])))
    waits = b"9" * 7 + b"\r\n\r\n"  # a body that never comes
    for stranger in STRANGERS + (("192.0.2.7",) if loopback else ()):
        host = stranger.replace("PORT", port)
        for request in (
            server.request("GET", "/about", host=host or " "),
            server.request("GET", "/", host=host or " "),
        ):
            found.append((f"stranger {host!r}", refusal(await server.ask(request, LIMITS["prompt"]))))
        sent = server.request("POST", "/predict", b"", host=host or " ")[:-5] + waits
        found.append((f"stranger {host!r}, with a body", refusal(await server.ask(sent, LIMITS["prompt"]))))
    pages = [
        *(
            "http://evil.example",
            f"http://127.0.0.1:{server.port + 1}",
            "null",
            "file://",
            "http://localhost.evil.example",
        )
    ]
    pages += [
        *(f"http://evil.example:{port}", f"ftp://127.0.0.1:{port}", "http://", f"http://127.0.0.1:{port}.evil.example")
    ]
    pages += [*(f"http://127.0.0.1:{port}@evil.example", "\xff", f"http://127.0.0.1:{port}, http://evil.example")]
    for origin in pages:
        for method, path in (
            ("POST", "/predict"),
            ("POST", "/classes"),
            ("DELETE", "/classes/class%201"),
            ("GET", "/about"),
        ):
            sent = server.request(method, path, b"", f"Origin: {origin}")[:-5] + waits
            found.append(
                (f"page {origin!r}, {method} {path}", refusal(await server.ask(sent, LIMITS["prompt"]), (403,)))
            )
    return found


def token(model: Path, folder: Path) -> Row:
    """A secret that requests must bring."""
    row = Row("server", "a token", "refused without; the pages open; compared in constant time")
    secret = "t0ken-of-32-characters-or-a-few-more"
    with serving([row], model, folder / "a", "--token", secret) as server:

        async def ask(words: str | None, path: str = "/about", method: str = "GET", **more: Any) -> Reply:
            lines = [] if words is None else [f"Authorization: {words}"]
            return await server.ask(server.request(method, path, None if method == "GET" else b"", *lines, **more), 10)

        async def all_of_them() -> None:
            wrong = [None, "", "Bearer", "Bearer ", f"Basic {secret}", f"Bearer {secret}x", f"Bearer x{secret}"]
            wrong += [f"Bearer {secret[:length]}" for length in range(1, len(secret), 5)]
            wrong += [f"Bearer {secret.upper()}", f"Bearer {secret}\xff", "Bearer \xff\xfe", f"Bearer {'x' * 9000}"]
            for words in wrong:
                row.count(refusal(await ask(words), (401,)), f"{words}")
            for method, path in (
                ("GET", "/classes"),
                ("POST", "/predict"),
                ("POST", "/classes"),
                ("GET", "/examples/0"),
            ):
                row.count(refusal(await ask(None, path, method), (401,)), f"{method} {path}")
            for path in (
                "/health/",
                "//health",
                "/health/../about",
                "/about?/health",
                "/about#/health",
                "/health%2f..",
            ):
                row.count(refusal(await ask(None, path), (401,)), path)
            for host in (f"127.0.0.1:{server.port}/health?", "127.0.0.1/docs#", "127.0.0.1/?"):
                row.count(refusal(await ask(None, host=host), (401, 403)), f"Host: {host}")
            for path in ("/", "/docs", "/health", "/openapi.json"):
                row.count(answered(await ask(None, path)), f"{path} is open")
            for words in (f"Bearer {secret}", f"bearer {secret}"):
                row.count(answered(await ask(words)), f"{words[:7]} the right one")

        asyncio.run(all_of_them())
    with serving([row], model, folder / "b", "--token", "sécret-ключ") as server:
        right = server.request(
            "GET", "/about", None, f"Authorization: Bearer {'sécret-ключ'.encode().decode('latin-1')}"
        )
        row.count(answered(asyncio.run(server.ask(right, 10))), "a token of other letters")
    with serving([row], model, folder / "c", "--token", secret, prepare=_nothing_is_equal) as server:
        right = server.request("GET", "/about", None, f"Authorization: Bearer {secret}")
        row.count(refusal(asyncio.run(server.ask(right, 10)), (401,)), "hmac.compare_digest decides")
    empty = in_child(command(["serve", str(model), "--port", "0", "--token", ""]), clean(folder / "d"), 5)
    problem = complaint(empty, (2,)) if empty.code is not None else "an empty token: served to everyone"
    row.count(problem, "an empty token")
    return row


def _nothing_is_equal() -> None:
    import hmac

    hmac.compare_digest = lambda _one, _other: False


def with_more_classes(model: Path, folder: Path, random: np.random.Generator, count: int) -> Path:
    """A copy of a run that knows so many classes more."""
    from erpcnet.inference.model_file import MODEL, read_model, rewrite_classes

    known = read_model(model).classes
    values = random.random((count, len(known.attribute_names))) + 0.01
    more = known.add({f"one of many {number}": row for number, row in enumerate(values)})
    (clean(folder) / MODEL).write_bytes(rewrite_classes(model / MODEL, more))
    return folder


def classes(model: Path, folder: Path, random: np.random.Generator, count: int, beside: int = 0) -> Row:
    """Many classes come, change and go, beside others that stay."""
    what = f"{count} classes added, changed, removed" + (f" beside {beside} others" if beside else "")
    row = Row("server", what, "each within 0.5 s, the last as fast as the first")
    model = with_more_classes(model, folder.with_name(f"{folder.name}-run"), random, beside) if beside else model
    with serving([row], model, folder) as server:
        told = []
        odd_names = [
            "a/b",
            "a?b",
            "a#b",
            "100 %",
            "%41",
            "ä ö",
            "\U0001f986",
            "a\\b",
            "'\"",
            "<b>",
            "a;b",
            "a&b=c",
            "+",
            "~",
        ]
        names = [odd_names[n] if n < len(odd_names) else f"new {n} {random.integers(10**9)}" for n in range(count)]

        async def change() -> None:
            for name, number in zip(names, random.random(count), strict=True):
                times["add"].append(await server.ask(server.of_json("POST", "/classes", _new(name, number))))
            for name in names:
                sent = server.of_json("PUT", _path(name), {"attributes": {"b": 0.5, "a": 0.0}})
                times["change"].append(await server.ask(sent))
            listed = {one["name"]: one for one in (await server.ask(server.request("GET", "/classes"))).json()}
            wrong = [name for name in names if listed.get(name, {}).get("attributes") != {"b": 0.5}]
            row.count(f"not as they were changed: {wrong[:3]}" if wrong else None, "as they were changed")
            for name in names:
                times["remove"].append(await server.ask(server.request("DELETE", _path(name))))
            left = len((await server.ask(server.request("GET", "/classes"))).json())
            row.count(None if left == 9 + beside else f"{left} classes, of {9 + beside}", "as before")

        times: dict[str, list[Reply]] = {"add": [], "change": [], "remove": []}
        asyncio.run(change())
        for what, replies in times.items():
            for name, reply in zip(names, replies, strict=True):
                row.count(answered(reply, 0.5), f"{what} {name}")
            few = max(5, count // 10)
            first, last = (statistics.median(r.seconds for r in part) for part in (replies[:few], replies[-few:]))
            if what == "remove":
                first, last = last, first
            row.count(None if last < 3 * first + 0.02 else f"{what}: {first:.3f} s, in the end {last:.3f} s", what)
            told.append(f"{what} {1000 * first:.0f} to {1000 * last:.0f} ms")
        row.note = ", ".join(told)
    return row


def _new(name: str, value: float = 1.0) -> dict[str, object]:
    return {"name": name, "attributes": {"a": float(value) + 0.01}}


def _path(name: str) -> str:
    from urllib.parse import quote

    return f"/classes/{quote(name, safe='')}"


SCRIPTS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'-alert(1)-'",
    "javascript:alert(1)",
    "</title><script>alert(1)</script>",
    "{{7*7}}${7*7}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "--><script>alert(1)</script>",
)
# A document that keeps what is shown, and complains of whatever would read a text as HTML.
DOCUMENT = """
const shown = [], unsafe = [];
class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], style: {}, options: [], files: [], value: "all" }); }
  set innerHTML(text) { unsafe.push(`innerHTML ${text}`); } set outerHTML(text) { unsafe.push(`outerHTML ${text}`); }
  insertAdjacentHTML(_, text) { unsafe.push(`insertAdjacentHTML ${text}`); }
  setAttribute(name, text) { unsafe.push(`${name}=${text}`); }
  set textContent(text) { this.text = String(text); shown.push(this.text); } get textContent() { return this.text; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; if (this.tag === "names") this.options = more; }
  remove() {} click() {} focus() {} select() {}
  getContext() { return new Proxy({}, { get: () => () => ({ width: 1 }), set: () => true }); }
}
const known = new Map();
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
globalThis.document = {
  documentElement: new Element("html"),
  getElementById: id => known.get(id) ?? known.set(id, new Element(id)).get(id),
  createElement: tag => new Element(tag), write: text => unsafe.push(`write ${text}`),
};
globalThis.location = { hash: "" };
globalThis.Option = class { constructor(text) { this.value = text; shown.push(text); } };
globalThis.Image = class extends Element {};
globalThis.createImageBitmap = async () => { throw new Error("none here"); };
const far = globalThis.fetch;
globalThis.fetch = (path, options) => far(BASE + path, options);
const wait = () => new Promise(done => setTimeout(done, 300));
"""
STEPS = """
await wait();
for (const name of NAMES) {
  document.getElementById("newname").value = name;
  const value = document.getElementById("attributes").children[0].children[1];
  value.value = "1"; value.oninput();
  await document.getElementById("edit").onsubmit({ preventDefault() {} });
  document.getElementById("search").value = name; document.getElementById("search").oninput();
  await change(name); document.getElementById("leave").onclick();
}
await show(new Blob([Buffer.from(PICTURE, "base64")]));
await wait();
const links = [...known.values()].filter(one => /javascript:/i.test(String(one.href ?? "") + String(one.src ?? "")));
console.log(JSON.stringify({ shown, unsafe: [...unsafe, ...links.map(one => one.href ?? one.src)] }));
"""


def page(model: Path, folder: Path) -> Row:
    """Names that are scripts, on the page as it is served."""
    row = Row("server", "names of classes that are scripts", "shown as they are written, never run")
    with serving([row], model, folder) as server:
        html = asyncio.run(server.ask(server.request("GET", "/")))
        text = html.body.decode()
        policy = html.headers.get("content-security-policy", "")
        row.count(None if "default-src 'self'" in policy else f"the page's policy is {policy!r}", "policy")
        framed = "frame-ancestors 'none'" in policy or html.headers.get("x-frame-options") == "DENY"
        row.count(None if framed else "any page may show it in a frame", "frames")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            row.count(f"the page uses {way}" if way in text else None, way)
        if shutil.which("node") is None:
            row.note = "without node the page's script was read, and not run"
            return row
        found = _shown(server, text, folder)
        row.count(f"as HTML: {found['unsafe'][:3]}" if found["unsafe"] else None, "as HTML")
        for name in SCRIPTS:
            shown = any(name in one for one in found["shown"])
            row.count(None if shown else "it is not shown as it is written", name)
        listed = asyncio.run(server.ask(server.request("GET", "/classes")))
        kept = {one["name"] for one in listed.json()}
        kind = listed.headers.get("content-type", ""), listed.headers.get("x-content-type-options", "")
        row.count(None if kept >= set(SCRIPTS) else f"not kept: {set(SCRIPTS) - kept}", "kept")
        row.count(None if kind == ("application/json", "nosniff") else f"sent as {kind}", "sent as JSON")
        for path in ("/", "/docs"):
            whole = asyncio.run(server.ask(server.request("GET", path))).body.decode()
            wrong = [name for name in SCRIPTS if name in whole]
            row.count(f"{path} has {wrong[0]} in it" if wrong else None, path)
    return row


def _shown(server: Served, html: str, folder: Path) -> dict[str, list[str]]:
    """What the page's own script shows, run by node on a document that complains."""
    import base64

    script = html.partition("<script>")[2].partition("</script>")[0]
    picture = base64.b64encode(noise(np.random.default_rng(0))).decode()
    given = {"BASE": f"http://127.0.0.1:{server.port}", "NAMES": SCRIPTS, "PICTURE": picture}
    words = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items())
    file = folder / "page.mjs"
    file.write_text(words + DOCUMENT + script + STEPS)
    done = subprocess.run(["node", str(file)], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return {"shown": [], "unsafe": [f"the script failed: {done.stderr[-500:]}"]}
    return json.loads(done.stdout.splitlines()[-1])


def changing(model: Path, folder: Path, random: np.random.Generator, rounds: int) -> Row:
    """Classes change while pictures are predicted."""
    row = Row(
        "server", "classes that change while others predict", "every answer is of classes there were at one moment"
    )
    with serving([row], model, folder) as server:
        picture = noise(random)

        async def change(who: int) -> str | None:
            for number in range(rounds):
                name = f"of {who} {number}"
                added = await server.ask(server.of_json("POST", "/classes", _new(name, number + who)))
                if added.status != 200 or name not in [one["name"] for one in added.json()["classes"]]:
                    return f"added, but not there: {added.status} {added.lost}"
                gone = await server.ask(server.request("DELETE", _path(name)))
                if gone.status != 200 or name in [one["name"] for one in gone.json()["classes"]]:
                    return f"removed, but there: {gone.status} {gone.lost}"
            return None

        async def predict() -> str | None:
            for _ in range(rounds):
                reply = await server.ask(server.request("POST", "/predict", picture))
                if reply.status != 200:
                    return f"{reply.status} {reply.lost} {reply.body[:100]!r}"
                found = reply.json()
                names = [name for name, _ in found["top"]]
                if not 9 <= found["among"] <= 13 or found["name"] not in names or len(set(names)) != 5:
                    return f"{found['name']}, among {found['among']}: {names}"
            return None

        async def same(who: int) -> Reply:
            return await server.ask(server.of_json("POST", "/classes", _new(f"the same {who}")))

        async def all_of_them() -> None:
            for problem in await together([*(change(who) for who in range(4)), *(predict() for _ in range(4))]):
                row.count(problem)
            for who in range(rounds):  # one of ten adds it
                replies = await together(same(who) for _ in range(10))
                statuses = sorted(reply.status for reply in replies)
                row.count(None if statuses == [200] + [400] * 9 else f"ten that add one class: {statuses}")

        asyncio.run(all_of_them())
    return row


def leaving(model: Path, folder: Path, random: np.random.Generator, count: int) -> Row:
    """Clients that go away, at any byte and at any moment."""
    row = Row(
        "server", "clients that leave in the middle", "nothing on the console, and whoever comes next is answered"
    )
    with serving([row], model, folder) as server:
        asyncio.run(server.ask(server.request("POST", "/predict", noise(random))))
        before = server.files()
        requests = [
            server.request("POST", "/predict", noise(random, 300, 300)),
            server.of_json("POST", "/classes", {"name": "left", "attributes": {"z": 1}}),
            server.request("GET", "/"),
            server.request("GET", "/classes"),
        ]

        async def leave(sent: bytes, pause: float, hard: bool) -> None:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(sent)
                await asyncio.sleep(pause)
                if hard:
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                writer.close()

        async def all_of_them() -> None:
            for _ in range(count // 10):
                jobs: list[Awaitable[object]] = []
                for _ in range(10):
                    sent = requests[int(random.integers(4))]
                    length = len(sent) if random.random() < 0.4 else int(random.integers(len(sent)))
                    jobs.append(leave(sent[:length], float(random.choice([0, 0.01, 0.1])), bool(random.random() < 0.5)))
                await together(jobs)
                for sent in (server.request("GET", "/about"), requests[0]):
                    row.count(answered(await server.ask(sent, 20), 10.0))
            await asyncio.sleep(1)

        asyncio.run(all_of_them())
        more = server.files() - before
        row.count(None if more <= 5 else f"{more} more files are open", "files")
        row.note = f"{count} left"
    return row


def in_a_row(model: Path, folder: Path, random: np.random.Generator, count: int) -> Row:
    """One after the other."""
    row = Row("server", f"{count} requests in a row", "memory stays flat: the second half adds less than 16 MiB")
    with serving([row], model, folder) as server:
        pictures = [noise(random, 400, 300, "JPEG") for _ in range(5)]

        async def half() -> None:
            for number in range(count // 2):
                one = number % 10
                if one < 7:
                    sent = server.request("POST", "/predict", pictures[number % 5])
                else:
                    sent = [
                        server.request("GET", "/"),
                        server.request("GET", "/classes"),
                        server.request("GET", "/docs"),
                    ][one - 7]
                row.count(answered(await server.ask(sent)))

        asyncio.run(half())
        before = server.memory()
        asyncio.run(half())
        more = (server.memory() - before) / MIB
        row.count(None if more < 16 else f"{more:.0f} MiB more", "memory")
        row.note = f"{more:+.1f} MiB in the second half; peak {server.peak() / MIB:.0f} MiB more"
    return row


def ends(model: Path, folder: Path, random: np.random.Generator, full: bool) -> Row:
    """Ctrl-C and SIGTERM, whatever goes on."""
    row = Row("server", "Ctrl-C and SIGTERM", "it ends within 12 s, whatever goes on, and nothing runs on")
    slowest = 0.0
    states = ["nothing", "pictures that wait", "slow bodies", "idle clients", "large pictures", "answers not read"]
    for case, state in enumerate(states if full else states[1:2]):
        for name in ("SIGINT", "SIGTERM") if full and case < 2 else (("SIGINT", "SIGTERM")[case % 2],):
            with Served(model, folder) as server:
                took, problem = asyncio.run(_ended(server, state, getattr(signal, name), random, full))
                slowest = max(slowest, took)
                left = left_running(server.pid)
            problem = problem or (f"{len(left)} processes are left" if left else None) or server.noise()
            if problem is None and server.ended is not None:
                allowed = (0, 130) if name == "SIGINT" else (-signal.SIGTERM, 0)
                problem = None if server.ended.code in allowed else f"it ended with {server.ended.code}"
            row.count(problem, f"{name}, {state}")
    row.note = f"at most {slowest:.1f} s"
    return row


async def _ended(
    server: Served, state: str, number: int, random: np.random.Generator, full: bool
) -> tuple[float, str | None]:
    """How long it took after a signal, while something goes on."""
    sent, count = {
        "nothing": (b"", 0),
        "pictures that wait": (server.request("POST", "/predict", noise(random, 900, 900)), 150 if full else 50),
        "slow bodies": (server.request("POST", "/predict", b"")[:-5] + b"9999\r\n\r\nx", 30),
        "idle clients": (b"GET /", 50),
        "large pictures": (server.request("POST", "/predict", bomb(13000, 6000, 8, 6)), 20),
        "answers not read": (server.request("GET", "/") * 400, 30),
    }[state]
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        writers.append(writer)
    await asyncio.sleep(0.6)
    os.kill(server.pid, number)
    started = time.monotonic()
    while server.ended is None and time.monotonic() - started < 12:
        await asyncio.sleep(0.02)
    took = time.monotonic() - started
    for writer in writers:
        writer.transport.abort()
    return took, None if server.ended is not None else f"it still runs after {took:.0f} s"


if __name__ == "__main__":
    sys.exit("PYTHONPATH=tests python -m trust --only server")
