"""The page and the REST interface over HTTP, as browsers, programs and strangers ask."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from html import escape
from io import BytesIO
from pathlib import Path
from threading import Event, Thread

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from PIL import Image
from starlette.testclient import TestClient

from erpcnet.cli import main
from erpcnet.data.images import load_image
from erpcnet.errors import InputError
from erpcnet.inference import Prediction, ZeroShotClassifier, gate, server, service
from erpcnet.inference.app import create_app
from erpcnet.inference.server import Server
from erpcnet.inference.service import BusyError, PixelBudget, Service
from untrained import untrained_run

Start = Callable[..., httpx.Client]


@pytest.fixture
def start(classifier: ZeroShotClassifier, picture: Path) -> Iterator[Start]:
    """Starts servers, and ends them."""
    running: list[tuple[Server, Thread, httpx.Client]] = []

    def begin(host: str = "127.0.0.1", token: str | None = None, names: tuple[str, ...] = ()) -> httpx.Client:
        app = create_app(Service(classifier, [load_image(picture)]), host, names, token)
        one = Server(app, host, 0)
        thread = Thread(target=one.serve_forever, daemon=True)
        thread.start()
        client = httpx.Client(base_url=f"http://127.0.0.1:{one.port}", timeout=60)
        running.append((one, thread, client))
        return client

    yield begin
    for one, thread, client in running:
        client.close()
        one.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_the_page_and_what_it_asks_for(start: Start, picture: Path) -> None:
    client = start()
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "What is in this picture?" in page.text
    about = client.get("/about").json()
    assert [one["name"] for one in about["classes"] if one["seen"]] == [f"class {number}" for number in range(5)]
    assert about["attributes"] == list("abcdefg")
    assert client.get("/health").json()["status"] == "ok"
    example = Image.open(BytesIO(client.get("/examples/0").content))
    assert np.array_equal(np.asarray(example), np.asarray(Image.open(picture)))
    missing = client.get("/examples/7")
    assert (missing.status_code, missing.json()["error"]) == (404, "there are 1 examples, and no number 7.")
    assert "error" in client.get("/nowhere").json()


@pytest.mark.parametrize("candidates", ["unseen", "all"])
def test_a_picture_gets_the_librarys_answer(
    start: Start, classifier: ZeroShotClassifier, picture: Path, candidates: str
) -> None:
    expected = classifier.predict(picture, candidates)
    found = start().post(f"/predict?candidates={candidates}", content=picture.read_bytes()).json()
    assert found["name"] == expected.name
    assert found["confidence"] == pytest.approx(expected.confidence, abs=1e-6)
    assert found["among"] == (4 if candidates == "unseen" else 9)
    for step, locality in zip(found["localities"], expected.localities, strict=True):
        np.testing.assert_allclose(step["box"], locality.box, atol=1e-3)
    assert sum(one["share"] for one in found["evidence"]) == pytest.approx(1, abs=1e-6)


def test_classes_are_added_listed_changed_and_removed(start: Start, picture: Path) -> None:
    client = start()
    added = client.post("/classes", json={"name": " new ", "attributes": {"a": 1.0, "c": 0.5}})
    assert added.json()["classes"][-1] == {"name": "new", "seen": False}
    assert client.get("/classes").json()[-1] == {"name": "new", "seen": False, "attributes": {"a": 1.0, "c": 0.5}}
    assert client.post("/predict", content=picture.read_bytes()).json()["among"] == 10
    client.put("/classes/new", json={"attributes": {"c": 0.0, "b": 0.25}})
    assert client.get("/classes").json()[-1]["attributes"] == {"a": 1.0, "b": 0.25}
    assert client.get("/classes/new").json() == {"name": "new", "seen": False, "attributes": {"a": 1.0, "b": 0.25}}
    assert len(client.delete("/classes/new").json()["classes"]) == 9
    assert client.get("/classes/new").status_code == 404
    assert client.delete("/classes/new").status_code == 404
    client.post("/classes", json={"name": "a/b", "attributes": {"a": 1.0}})
    assert client.put("/classes/a%2Fb", json={"attributes": {"b": 1.0}}).status_code == 200
    assert len(client.delete("/classes/a%2Fb").json()["classes"]) == 9


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "class 0", "attributes": {"a": 1}}, 400),
        ({"name": "new", "attributes": {"z": 1}}, 400),
        ({"name": "new", "attributes": {}}, 400),
        ({"name": "new", "attributes": {"a": 1e-30}}, 400),
        ({"name": " ", "attributes": {"a": 1}}, 400),
        ({"name": None, "attributes": {"a": 1}}, 422),
        ({"name": "x" * 301, "attributes": {"a": 1}}, 422),
        ({"name": "new", "attributes": {"a": "1"}}, 422),
        ({"name": "new"}, 422),
        ([], 422),
    ],
)
def test_a_wrong_class_is_told_in_a_sentence(start: Start, body: object, status: int) -> None:
    reply = start().post("/classes", json=body)
    assert reply.status_code == status
    assert reply.json()["error"]


def test_what_is_no_picture_is_told_in_a_sentence(start: Start, picture: Path) -> None:
    client = start()
    for content in (b"", b"no picture", picture.read_bytes()[:200], b"%!PS-Adobe-3.0 EPSF-3.0\n", b"{" * 10**6):
        reply = client.post("/predict", content=content)
        assert reply.status_code == 400, content[:20]
        assert len(reply.json()["error"]) < 200
    assert client.post("/predict?candidates=some", content=picture.read_bytes()).status_code == 422
    as_json = {"Content-Type": "application/json"}
    for content, status in ((b"[" * 100_000, 400), (b'{"name": "x", "attributes": {"a": 1e999}}', 422)):
        reply = client.post("/classes", content=content, headers=as_json)
        assert reply.status_code == status, content[:20]
        assert len(reply.json()["error"]) < 200
    assert client.get("/predict").status_code == 405


def test_only_its_own_names_and_pages_are_answered(start: Start) -> None:
    client = start()
    port = client.base_url.port
    for host in (f"localhost:{port}", "localhost", "127.0.0.1", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert client.get("/about", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        assert client.get("/about", headers={"Host": host}).status_code == 403, host
    for host in (
        "evil.example@127.0.0.1",
        "127.0.0.1/evil.example",
        "127.0.0.1?x",
        "[::1].evil.example",
        "127.0.0.1:x",
    ):
        assert client.get("/about", headers={"Host": host}).status_code == 403, host
    for host, origin in (("LOCALHOST:9", "http://localhost:9"), ("localhost:80", "http://localhost"), ("::1", "null")):
        status = 403 if origin == "null" else 200
        assert client.get("/about", headers={"Host": host, "Origin": origin}).status_code == status, host
    assert client.get("/about", headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/about", headers={"Origin": f"http://127.0.0.1:{port}"}).status_code == 200


def test_elsewhere_names_of_strangers_are_refused_too(start: Start) -> None:
    """DNS rebinding: a stranger's name that leads to this machine."""
    client = start("0.0.0.0", names=("model.example",))
    for host in ("192.0.2.7", "192.0.2.7:8000", "[2001:db8::1]:8000", socket.gethostname(), "model.example"):
        assert client.get("/about", headers={"Host": host}).status_code == 200, host
    assert client.get("/about", headers={"Host": "rebound.example"}).status_code == 403


def test_a_token_is_asked_for(start: Start) -> None:
    client = start(token="secret")
    assert client.get("/").status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/about").status_code == 401
    assert client.get("/about", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/about", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert client.get("/about", headers={"Authorization": "bearer secret"}).status_code == 200
    assert client.get("/about", headers={"Authorization": "secret"}).status_code == 401
    # The path is what was asked for, whatever this host is called.
    assert client.get("/about", headers={"Host": "127.0.0.1/health?"}).status_code == 403
    other = start(token="ключ")
    assert other.get("/about", headers={b"Authorization": "Bearer ключ".encode()}).status_code == 200


def test_the_interface_is_described_on_a_page(start: Start) -> None:
    """Made here, since a page of scripts from elsewhere is blank where there is no network; and without a token."""
    client = start(token="secret")
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "src=" not in page.text
    described = client.get("/openapi.json").json()["paths"]
    for path, operations in described.items():
        for method, operation in operations.items():
            assert f"<b>{method.upper()}</b> <code>{path}</code>" in page.text
            assert escape(operation["description"]) in page.text
    address = str(client.base_url).rstrip("/")
    assert escape(f"curl --data-binary @picture.jpg '{address}/predict'") in page.text
    assert escape(f"""curl -X DELETE '{address}/classes/{{name}}'""") in page.text
    assert escape('{"name": "TEXT", "attributes": {"NAME": 0.5}}') in page.text


def test_whoever_waits_too_long_is_told(
    start: Start, classifier: ZeroShotClassifier, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is computed for who has gone."""
    begun, go_on, predicted = Event(), Event(), []

    def wait(pictures: list[Image.Image], candidates: str) -> list[Prediction]:
        begun.set()
        go_on.wait(30)
        predicted.append(len(pictures))
        return ZeroShotClassifier.predict(classifier, pictures, candidates)

    monkeypatch.setattr(classifier, "predict", wait)
    monkeypatch.setattr(service, "LONGEST", 0.5)
    client, sent = start(), picture.read_bytes()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/predict", content=sent)
        assert begun.wait(20)
        second = client.post("/predict", content=sent)
        for reply in (first.result(), second):
            assert (reply.status_code, reply.json()["error"]) == (503, "no answer was ready in time; try again.")
    go_on.set()
    monkeypatch.setattr(service, "LONGEST", 60)
    assert client.post("/predict", content=sent).status_code == 200
    assert predicted == [1, 1]  # the first one, which had begun, and the last


def test_too_much_is_refused_before_it_is_read(start: Start) -> None:
    port = start().base_url.port
    for path, length in (("/predict", 2**40), ("/predict", 65 * 2**20), ("/classes", 2**21), ("/predict", "9" * 5000)):
        with socket.create_connection(("127.0.0.1", int(port or 0)), timeout=10) as peer:
            peer.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
            assert b" 4" in peer.recv(100)[:16]


def test_whoever_sends_too_much_is_told(start: Start) -> None:
    """Also where a length stands beside chunks, which have another."""
    client = start()
    for version in ("1.1", "1.0"):
        with socket.create_connection(("127.0.0.1", int(client.base_url.port or 0)), timeout=20) as peer:
            head = f"POST /predict HTTP/{version}\r\nHost: localhost\r\nContent-Length: {70 * 2**20}\r\n\r\n"
            peer.sendall(head.encode())
            for _ in range(70):
                peer.sendall(bytes(2**20))
            assert b" 413 " in peer.recv(100)
    both = {"Content-Length": "9", "Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    assert client.post("/classes", content=iter([b" " * 2**20] * 3), headers=both).status_code == 411
    assert client.post("/predict", content=iter([b" " * 2**20] * 70)).status_code == 413


def test_what_is_no_request_is_told_in_a_sentence(start: Start) -> None:
    client = start()
    for sent in (b"\x16\x03\x01\x02\0\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", int(client.base_url.port or 0)), timeout=10) as peer:
            peer.sendall(sent)
            assert peer.recv(1000).endswith(b'{"error":"this is no request of HTTP."}')
    json_type = {"Content-Type": "application/json"}
    for body in (b"[" * 100_000, b"\xff\xfe{", b'{"name": "x", "attributes": {"a\\n\\ud800": 1}}', b"9" * 5000):
        reply = client.post("/classes", content=body, headers=json_type)
        assert reply.status_code in (400, 422), body[:20]
        assert set(reply.json()) == {"error"}
        assert "\n" not in reply.json()["error"]
    for path in ("/about/", "/about%0a", "/predict/"):
        assert client.post(path).status_code == 404, path


def test_slow_clients_are_let_go_and_block_nobody(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.5)
    client = start()
    port = int(client.base_url.port or 0)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(40)]
    for peer in silent[:20]:
        peer.sendall(b"GET /about HT")
    halfway = socket.create_connection(("127.0.0.1", port), timeout=10)
    halfway.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
    started = time.monotonic()
    assert client.get("/about").status_code == 200
    assert time.monotonic() - started < 5
    assert b"408" in halfway.recv(100)
    for peer in silent:
        assert peer.recv(10) == b""  # closed
        peer.close()


def test_nothing_stays_open_that_does_not_come_whole(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of which a byte comes at a time, a second request without an end, answers that nobody reads."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.5)
    port = int(start().base_url.port or 0)
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = b"POST /classes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    pages = one.replace(b"/health", b"/") * 800
    for sent, last in ((body, b"408 Request Timeout"), (one + b"GET /health HT", b'"ok"'), (pages, b"")):
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.settimeout(20)
            peer.connect(("127.0.0.1", port))
            with suppress(OSError):  # closed while it is sent
                peer.sendall(sent)
            if not last:
                time.sleep(2)
            received = b""
            with suppress(ConnectionResetError):
                while more := peer.recv(2**16):
                    received += more
            assert last in received
            assert received.count(b"200 OK") < 800


def test_whoever_asks_goes_before_those_who_do_not(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_room", lambda: 20)
    client = start()
    port = int(client.base_url.port or 0)
    begun = (b"", b"GET /about HT", b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na")
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(60)]
    for number, peer in enumerate(silent):
        with suppress(OSError):
            peer.sendall(begun[number % 3])
    for _ in range(5):
        started = time.monotonic()
        assert client.get("/about", headers={"Connection": "close"}).status_code == 200
        assert time.monotonic() - started < 3
    for peer in silent:
        peer.close()


def test_many_ask_at_once(start: Start, classifier: ZeroShotClassifier, picture: Path) -> None:
    expected = classifier.predict(picture, "all").name
    client = start()
    with ThreadPoolExecutor(40) as pool:
        jobs = [pool.submit(client.post, "/predict", content=picture.read_bytes()) for _ in range(120)]
        found = [job.result() for job in jobs]
    assert {reply.status_code for reply in found} == {200}
    assert {reply.json()["name"] for reply in found} == {expected}


def test_pictures_share_a_budget_of_pixels() -> None:
    budget, together, most = PixelBudget(100), 0, 0

    def decode(pixels: int) -> None:
        nonlocal together, most
        with budget.take(pixels):
            together += pixels
            most = max(most, together)
            time.sleep(0.01)
            together -= pixels

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(decode, [40] * 30))
    assert 40 <= most <= 100
    with budget.take(10**9):  # alone
        pass


def test_a_picture_that_fails_spares_the_others(
    classifier: ZeroShotClassifier, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pictures: list[Image.Image], candidates: str) -> list[Prediction]:
        if any(one.width == 1 for one in pictures):
            raise RuntimeError
        time.sleep(0.05)
        return ZeroShotClassifier.predict(classifier, pictures, candidates)

    monkeypatch.setattr(classifier, "predict", fail)
    file, asked = BytesIO(), Service(classifier)
    Image.new("RGB", (1, 9)).save(file, "PNG")
    found = [asked.submit(sent) for sent in [picture.read_bytes(), file.getvalue()] * 6]
    assert [one.exception() is None for one in found] == [True, False] * 6
    asked.close()
    with pytest.raises(BusyError):
        asked.submit(picture.read_bytes())


def test_classes_change_while_pictures_are_predicted(
    classifier: ZeroShotClassifier, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()

    def wait(pictures: list[Image.Image], candidates: str) -> list[Prediction]:
        begun.set()
        assert go_on.wait(30)
        return ZeroShotClassifier.predict(classifier, pictures, candidates)

    monkeypatch.setattr(classifier, "predict", wait)
    asked = Service(classifier)
    found = asked.submit(picture.read_bytes())
    assert begun.wait(20)
    asked.add_class("new", {"a": 1.0})
    go_on.set()
    assert found.result()["among"] == 10
    asked.close()


def test_it_ends_while_pictures_wait(
    classifier: ZeroShotClassifier, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(pictures: list[Image.Image], candidates: str) -> list[Prediction]:
        time.sleep(0.3)
        return ZeroShotClassifier.predict(classifier, pictures, candidates)

    monkeypatch.setattr(classifier, "predict", wait)
    asked = Service(classifier)
    found = [asked.submit(picture.read_bytes()) for _ in range(200)]
    started = time.monotonic()
    asked.close()
    assert time.monotonic() - started < 10
    assert any(one.cancelled() or one.exception() for one in found[100:])


def test_an_empty_token_is_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(untrained_run(tmp_path / "run")), "--token", ""]) == 2
    assert "--token is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "set_to", "printed", "opened"),
    [
        (["--token", "a b"], "other", "/#token=a%20b", "/#token=a%20b"),
        ([], "a[b]", "/#token=$ERPCNET_TOKEN", "/#token=a%5Bb%5D"),  # what is kept of a console has no secret in it
        ([], "", "", ""),
    ],
)
def test_the_page_is_opened_with_its_token(
    flags: list[str],
    set_to: str,
    printed: str,
    opened: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    addresses, asked = [], Event()

    def browse(address: str) -> bool:
        addresses.append(address)
        asked.set()
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr(Server, "serve_forever", lambda _: asked.wait(20))
    monkeypatch.setenv("ERPCNET_TOKEN", set_to)
    assert main(["demo", str(untrained_run(tmp_path / "run")), "--port", "0", *flags]) == 0
    (address,) = addresses
    base = address.removesuffix(opened)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", base)
    assert capsys.readouterr().err == f"{base}{printed} (the interface: {base}/docs; Ctrl-C ends it)\n"


def test_a_taken_port_is_told(start: Start, classifier: ZeroShotClassifier) -> None:
    port = int(start().base_url.port or 0)
    app = create_app(Service(classifier))
    with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be listened on"):
        Server(app, "127.0.0.1", port)
    with pytest.raises(InputError, match="cannot be listened on"):
        Server(app, "nowhere.invalid", 0)


def test_the_interface_is_as_it_is_described(classifier: ZeroShotClassifier, picture: Path) -> None:
    """Hypothesis makes requests from the OpenAPI description; every answer is one that it names."""
    app = create_app(Service(classifier, [load_image(picture)]), allowed_hosts=("testserver",))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)

    for operation in schema.get_all_operations():
        for case in _cases(operation.ok()):  # type: ignore[union-attr]
            reply = case.call()
            assert reply.status_code < 500, reply.content[:300]
            assert str(reply.status_code) in {"200", *map(str, (400, 401, 403, 404, 408, 411, 413, 422, 503))}
            if reply.status_code >= 400:
                assert set(json.loads(reply.content)) == {"error"}


def _cases(operation: object, count: int = 12) -> list[schemathesis.Case]:
    found: list[schemathesis.Case] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    def collect(case: schemathesis.Case) -> None:
        found.append(case)

    given(case=operation.as_strategy())(collect)()  # type: ignore[attr-defined]
    return found


def test_a_picture_decoded_while_closing_does_not_wait(
    classifier: ZeroShotClassifier, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, closed = Event(), Event()
    read = service.read_image

    def slow(*given: object) -> Image.Image:
        decoding.set()
        assert closed.wait(20)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(service, "read_image", slow)
    asked = Service(classifier)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asked.predict, picture.read_bytes())
        assert decoding.wait(20)
        asked.close()
        closed.set()
        with pytest.raises(BusyError):
            answer.result(timeout=20)


def test_jobs_are_told_apart_without_their_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "__eq__", lambda *_: pytest.fail("pixels were compared"))
    shown = Image.new("RGB", (4, 4))
    one, other = (service._Job(shown, "all", service.Future()) for _ in range(2))
    assert one != other
    assert one in [other, one]


def test_a_server_answers_under_the_name_it_listens_on(classifier: ZeroShotClassifier) -> None:
    app = create_app(Service(classifier), "Box.lan")
    assert TestClient(app, base_url="http://box.lan:8000").get("/health").status_code == 200
    assert TestClient(app, base_url="http://elsewhere.lan:8000").get("/health").status_code == 403
