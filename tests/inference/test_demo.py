"""The demo over HTTP, as a browser would ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

from conftest import small_network
from erpcnet.config import DataSettings
from erpcnet.data.images import load_image
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, ZeroShotClassifier
from erpcnet.inference import demo as demo_module
from erpcnet.inference.demo import Demo, serve
from erpcnet.model.scoring import OperatingPoint


@pytest.fixture
def classifier() -> ZeroShotClassifier:
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    point = OperatingPoint(0.45, 0.3, "fixed", temperature=(2.5, 2.0), temperature_all=(3.5, 3.0))
    return ZeroShotClassifier(small_network(), table, DataSettings(image_size=64, test_crops=2), point)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(1).integers(0, 256, (80, 60, 3), dtype=np.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def address(classifier: ZeroShotClassifier, picture: Path) -> Iterator[str]:
    with serve(Demo(classifier, [load_image(picture)]), "127.0.0.1", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(address: str, body: bytes | None = None) -> Any:
    with urlopen(Request(address, data=body)) as reply:
        return json.load(reply)


def refused(address: str, body: bytes | None = None) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(address, data=body))
    return caught.value.code, json.load(caught.value)["error"]


def test_a_page_that_needs_nothing_from_elsewhere(address: str) -> None:
    with urlopen(address) as reply:
        page = reply.read().decode()
        assert reply.headers["Content-Type"].startswith("text/html")
    assert "Drop a picture here" in page
    assert "http://" not in page
    assert "https://" not in page


def test_a_picture_is_recognised_as_from_python(address: str, classifier: ZeroShotClassifier, picture: Path) -> None:
    for candidates in ("unseen", "all"):
        (expected,) = classifier.predict([picture], candidates)
        found = ask(f"{address}/predict?candidates={candidates}", picture.read_bytes())
        assert (found["name"], found["crops"]) == (expected.name, 2)
        assert found["confidence"] == pytest.approx(expected.confidence, abs=1e-5)
        assert (found["width"], found["height"]) == (60, 80)
        assert len(found["localities"]) == expected.steps
        for locality, own in zip(found["localities"], expected.localities, strict=True):
            assert locality["box"] == pytest.approx(own.box)
            assert locality["answer"] == own.answer
        assert found["object_crop"] == pytest.approx(expected.object_crop)


def test_the_page_tells_the_evidence_for_the_answer(
    address: str, classifier: ZeroShotClassifier, picture: Path
) -> None:
    (expected,) = classifier.predict([picture])
    found = ask(f"{address}/predict", picture.read_bytes())
    for_it = {name: part for name, part in expected.evidence.items() if part > 0}
    assert [one["name"] for one in found["evidence"]] == sorted(for_it, key=lambda name: -for_it[name])
    for one in found["evidence"]:
        assert one["share"] == pytest.approx(for_it[one["name"]] / sum(for_it.values()), abs=1e-5)


def test_a_class_added_on_the_page_can_be_answered(address: str, classifier: ZeroShotClassifier, picture: Path) -> None:
    (before,) = classifier.predict([picture])
    said = before.attributes
    told = ask(f"{address}/classes", json.dumps({"name": " as said ", "attributes": said}).encode())
    assert told["classes"][-1] == {"name": "as said", "seen": False}
    assert ask(f"{address}/about") == told
    assert classifier.predict([picture])[0].name == "as said"
    assert ask(f"{address}/predict", picture.read_bytes())["name"] == "as said"
    again = json.dumps({"name": "as said", "attributes": said}).encode()
    assert refused(f"{address}/classes", again) == (400, "class 'as said' is known already.")


def test_examples_come_as_they_are(address: str, picture: Path) -> None:
    assert ask(f"{address}/about")["examples"] == 1
    with urlopen(f"{address}/examples/0") as reply, Image.open(reply) as shown:
        assert np.array_equal(np.asarray(shown), np.asarray(Image.open(picture)))
    assert refused(f"{address}/examples/1")[0] == refused(f"{address}/examples/%C2%B2")[0] == 404


def test_other_pages_of_the_browser_may_not_ask(address: str, picture: Path) -> None:
    host = address.removeprefix("http://")
    for headers in ({"Origin": "http://elsewhere.example"}, {"Host": f"elsewhere.example:{host.rpartition(':')[2]}"}):
        for request in (
            Request(f"{address}/about", headers=headers),
            Request(f"{address}/predict", picture.read_bytes(), headers),
        ):
            with pytest.raises(HTTPError) as caught:
                urlopen(request)
            assert caught.value.code == 403
    with urlopen(Request(f"{address}/predict", picture.read_bytes(), {"Origin": address})) as reply:
        assert reply.status == 200


def test_what_cannot_be_is_told_in_a_sentence(address: str, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = refused(f"{address}/predict", b"no picture")
    assert code == 400
    assert told.startswith("this file does not decode as an image (of no known kind)")
    assert refused(f"{address}/predict?candidates=some", picture.read_bytes())[0] == 400
    assert refused(f"{address}/classes", b"[]") == (
        400,
        "a class is sent as {'name': ..., 'attributes': {name: value}}.",
    )
    nameless = json.dumps({"name": " ", "attributes": {"a": 1}}).encode()
    assert refused(f"{address}/classes", nameless) == (400, "a class needs a name.")
    assert refused(f"{address}/nowhere")[0] == refused(f"{address}/nowhere", b"x")[0] == 404
    monkeypatch.setattr(demo_module, "LARGEST", 2**20)
    assert refused(f"{address}/predict", bytes(40 * 2**20)) == (413, "a picture has at most 1 MiB.")
    huge = json.dumps({"name": "huge", "attributes": {"a": 1e39}}).encode()
    assert refused(f"{address}/classes", huge)[1].startswith("the largest attribute of class 'huge' is 1e+39")


def test_a_port_in_use_is_named(address: str, classifier: ZeroShotClassifier) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be listened on"):
        serve(Demo(classifier), "127.0.0.1", port)
    with pytest.raises(InputError, match="there is no such port"):
        serve(Demo(classifier), "127.0.0.1", 99999)
