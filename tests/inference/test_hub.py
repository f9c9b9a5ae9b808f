"""Models to share: in a folder, and on a Hub that this machine plays."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import erpcnet
from conftest import small_network
from erpcnet.config import BackboneSettings, Config, DataSettings, ModelSettings, PolicySettings
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.inference import ZeroShotClassifier
from erpcnet.inference.model_card import model_card
from erpcnet.inference.model_file import save_model
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint
from erpcnet.utils.files import write_json

METRICS = {
    **{"t1": 0.781, "u": 0.7, "s": 0.75, "h": 0.7241, "ece": 0.021, "crops": 4, "hubness": 0.3, "mean_steps": 3.5},
    **{"protocol": "validation", "seed": 3, "variant": "erpcnet", "dataset": "birds|of [prey]", "auroc_unknown": 0.7},
    "plainer": [{"crops": 1, "hubness": 0.0, "t1": 0.712, "u": None, "s": None, "h": None}],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of an untrained network of five seen and four unseen classes."""
    folder = tmp_path / "run"
    folder.mkdir()
    model = ModelSettings(BackboneSettings("small", "none"), policy=PolicySettings(width=16, memory=8))
    config = Config(model=model, data=DataSettings(image_size=64))
    config.model.joint.hidden = 24
    dataset = ZeroShotDataset(
        name="birds",
        root=tmp_path,
        classes=tuple(f"class {number}" for number in range(9)),
        attribute_names=tuple("abcdefg"),
        attributes=np.random.default_rng(0).random((9, 7), dtype=np.float32),
        image_paths=tuple(f"{number}.png" for number in range(9)),
        labels=np.arange(9),
        train=np.arange(5),
        test_seen=np.array([], dtype=np.int64),
        test_unseen=np.arange(5, 9),
    )
    point = OperatingPoint(0.45, 0.3, "validation", (2.5, 2.0), (3.5, 3.0), reject=1.0)
    save_model(folder / "model.safetensors", small_network(), dataset, config, point, Preprocessing())
    write_json(folder / "metrics.json", METRICS)
    (folder / "config.yaml").write_text(config.to_yaml())
    Image.new("RGB", (8, 8)).save(folder / "localities.png")
    return folder


def test_a_folder_holds_model_classes_and_card(run: Path, picture: Path, tmp_path: Path) -> None:
    model = erpcnet.load(run, "cpu")
    model.add_classes({"night owl": [0.1, 0.9, 0.2, 0.4, 0.0, 0.3, 0.7]})
    model.remove_classes(["class 0"])
    shared = model.save_pretrained(tmp_path / "birds")
    assert {path.name for path in shared.iterdir()} == {
        *("model.safetensors", "README.md", "metrics.json", "config.yaml", "localities.png")
    }
    again = ZeroShotClassifier.from_pretrained(shared, device="cpu")
    assert again.classes.names == model.classes.names
    assert again.classes.names[-1] == "night owl"
    expected, found = model.predict(picture), again.predict(picture)
    assert found.name == expected.name
    assert found.confidence == pytest.approx(expected.confidence, abs=1e-6)
    again.save_pretrained(shared.with_name("copy"))
    model.save_pretrained(shared)  # once more over its own


def test_the_card_says_what_was_measured(run: Path) -> None:
    card = model_card(erpcnet.load(run, "cpu"), run)
    _, head, text = card.split("---\n", 2)
    told = yaml.safe_load(head)
    assert told["pipeline_tag"] == "zero-shot-image-classification"
    (result,) = told["model-index"][0]["results"]
    assert {one["name"]: one["value"] for one in result["metrics"]} == {"T1": 78.1, "U": 70.0, "S": 75.0, "H": 72.41}
    assert "| 4 crops, hubness correction 0.3 | 78.1 | 70.0 | 75.0 | 72.4 |" in text
    assert "| 1 crop, no correction | 71.2 |  |  |  |" in text
    assert "on classes held out of the seen ones" in text
    assert "(AUROC" not in text
    assert "AUROC 70.0" in text
    assert "# birds\\|of \\[prey\\]" in text  # names make no Markdown
    assert "Unseen: class 5, class 6, class 7, class 8." in text
    assert "5 of them" in text
    (run / "metrics.json").write_text("{")
    assert "## Figures" not in model_card(erpcnet.load(run, "cpu"), run)


def test_what_cannot_be_shared_is_said(run: Path, classifier: ZeroShotClassifier, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did not come from a file"):
        classifier.save_pretrained(tmp_path / "birds")
    model = erpcnet.load(run, "cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("words")
    with pytest.raises(InputError, match="holds something else"):
        model.save_pretrained(tmp_path / "mine")
    with pytest.raises(InputError, match="lies already"):
        model.save_pretrained(run)
    with pytest.raises(InputError, match="OWNER/NAME"):
        ZeroShotClassifier.from_pretrained("nowhere")


class Hub(ThreadingHTTPServer):
    """As much of the Hub as a push and a download ask for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.token: str | None = None
        self.private: bool | None = None


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = f"http://127.0.0.1:{self.server.server_port}/somebody/birds"
        if self.path == "/api/repos/create":
            self.server.token = self.headers["Authorization"]
            told = json.loads(body)
            self.server.private = told.get("private", told.get("visibility") == "private")
            self.answer({"url": address, "id": "somebody/birds"})
        elif self.path.endswith("/preupload/main"):
            names = [one["path"] for one in json.loads(body)["files"]]
            self.answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"success": True, "commitOid": 40 * "a", "commitUrl": f"{address}/commit/{40 * 'a'}"})
        else:
            self.answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/somebody/birds/tree/"):
            found = [(name, len(content)) for name, content in self.server.files.items()]
            self.answer([{"type": "file", "path": name, "size": size, "oid": 40 * "b"} for name, size in found])
        elif self.path.startswith("/api/models/somebody/birds"):
            files = [{"rfilename": name, "size": len(content)} for name, content in self.server.files.items()]
            self.answer({"id": "somebody/birds", "sha": 40 * "a", "siblings": files})
        elif self.path.startswith("/somebody/birds/resolve/"):
            content = self.server.files[self.path.rpartition("/")[2]]
            self.send_response(200)
            self.send_header("X-Repo-Commit", 40 * "a")
            self.send_header("ETag", f'"{hash(content):x}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
        else:
            self.answer({"error": "Repository not found"}, 404)

    do_HEAD = do_GET  # noqa: N815 - as the library calls it

    def answer(self, values: Any, status: int = 200) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


PROGRAM = """
import json, sys, erpcnet
run, picture = sys.argv[1:]
model = erpcnet.load(run, "cpu")
address = model.push_to_hub("somebody/birds", private=True, token="hf_secret")
again = erpcnet.ZeroShotClassifier.from_pretrained("somebody/birds", device="cpu")
try:
    erpcnet.ZeroShotClassifier.from_pretrained("somebody/else")
except erpcnet.InputError as error:
    missing = str(error)
one, other = model.predict(picture), again.predict(picture)
print(json.dumps([address, one.name == other.name, abs(one.confidence - other.confidence), missing]))
"""


def test_a_model_goes_to_the_hub_and_comes_back(run: Path, picture: Path, hub: Hub, tmp_path: Path) -> None:
    """In a process of its own: the client reads where the Hub is when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-c", PROGRAM, str(run), str(picture)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    address, same, apart, missing = json.loads(done.stdout.splitlines()[-1])
    assert address.endswith(f"/somebody/birds/commit/{40 * 'a'}")
    assert same
    assert apart < 1e-6
    assert "cannot be had from the Hub" in missing
    assert hub.token == "Bearer hf_secret"
    assert hub.private is True
    assert {"README.md", "model.safetensors", "metrics.json"} <= set(hub.files)
    assert not [name for name in hub.files if name.endswith((".py", ".pt", ".pkl"))]


def test_a_model_that_was_changed_is_refused(run: Path, tmp_path: Path) -> None:
    shared = erpcnet.load(run, "cpu").save_pretrained(tmp_path / "birds")
    content = bytearray((shared / "model.safetensors").read_bytes())
    content[-100] ^= 1
    (shared / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        ZeroShotClassifier.from_pretrained(shared)


def test_a_folder_saved_to_again_holds_one_model_alone(run: Path, tmp_path: Path) -> None:
    shared = erpcnet.load(run, "cpu").save_pretrained(tmp_path / "birds")
    assert "78.1" in (shared / "README.md").read_text()
    for name in ("metrics.json", "localities.png"):
        (run / name).unlink()
    erpcnet.load(run, "cpu").save_pretrained(shared)
    assert {path.name for path in shared.iterdir()} == {"model.safetensors", "README.md", "config.yaml"}
    assert "78.1" not in (shared / "README.md").read_text()
