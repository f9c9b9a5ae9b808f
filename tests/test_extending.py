"""The programs of docs/extending.md, run on a small drawing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import erpcnet
from erpcnet.config import Config, load_config
from erpcnet.config.presets import merge
from erpcnet.model.backbone import BACKBONES
from erpcnet.model.heads import JOINT_HEADS
from erpcnet.model.selection import SELECTION_ORDERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PROGRAMS = {
    section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in PAGE.split("\n## ")[1:]
}
QUICK = {
    "data": {"image_size": 64},
    "model": {"sigma": 0.5, "delta": 0.5},
    "stage1": {"epochs": 1, "batch_size": 16},
    "stage2": {"epochs": 1, "minibatch_size": 16},
}


@pytest.fixture
def place(creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with data/creatures, where `load_config` gives what trains within seconds; nothing stays registered."""

    def quick(name: str, **overrides: Any) -> Config:
        return load_config(name, **merge(QUICK, overrides))

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "creatures").symlink_to(creatures)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(erpcnet, "load_config", quick)
    registries: list[dict[str, Any]] = [BACKBONES, JOINT_HEADS, SELECTION_ORDERS]
    before = [dict(registry) for registry in registries]
    yield tmp_path
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


def run(section: str) -> dict[str, Any]:
    """The one program of a section, executed."""
    (program,) = PROGRAMS[section]
    assert len(program.splitlines()) < 50
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    return names


def figures(metrics: erpcnet.Metrics) -> tuple[float | None, ...]:
    """What a run that is read again must have too."""
    return metrics.t1, metrics.u, metrics.s, metrics.h, metrics.ausuc, metrics.mean_steps


def test_every_section_has_a_program_that_is_run_here() -> None:
    assert list(PROGRAMS) == ["A joint head", "A selection order", "A backbone", "A dataset", "A loop of one's own"]


def test_a_joint_head_trains_and_computes_its_formula(place: Path) -> None:
    names = run("A joint head")
    assert figures(erpcnet.evaluate_run("runs/mean")) == pytest.approx(figures(names["metrics"]))
    head = erpcnet.load(place / "runs" / "mean").network.joint
    assert isinstance(head, names["MeanHead"])
    channels = head.predict.in_features
    e_g, e_l = torch.randn(2, channels), torch.randn(2, 4, channels)
    with torch.no_grad():
        expected = head.predict(e_g + e_l[:, :3].mean(dim=1))
        torch.testing.assert_close(head.prefixes(e_g, e_l)[:, 2], expected)


@pytest.mark.usefixtures("place")
def test_an_order_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    order = run("A selection order")["RowByRow"]()
    assert re.findall(r"^(PCNet|row by row) T1 \d", capsys.readouterr().out, re.MULTILINE) == ["PCNet", "row by row"]
    order._cells = torch.arange(5)
    visited = torch.tensor([[True, True, False, False, True], [False, True, True, True, True]])
    assert order.select(torch.arange(2), torch.zeros(2, 3), visited).tolist() == [2, 0]


def test_a_backbone_trains_and_is_loaded_again(place: Path) -> None:
    names = run("A backbone")
    assert figures(erpcnet.evaluate_run("runs/plain")) == pytest.approx(figures(names["metrics"]))
    backbone = erpcnet.load(place / "runs" / "plain").network.backbone
    assert (backbone.map_channels, backbone.channels, backbone.stride) == (64, 128, 8)


@pytest.mark.usefixtures("place")
def test_a_dataset_is_given_as_an_object() -> None:
    names = run("A dataset")
    read = erpcnet.read_dataset("data/creatures")
    for part in ("train", "test_seen", "test_unseen"):
        assert len(getattr(names["dataset"], part)) == len(getattr(read, part))
    again = erpcnet.evaluate_run("runs/object", names["dataset"])
    assert figures(again) == pytest.approx(figures(names["metrics"]))


@pytest.mark.usefixtures("place")
def test_a_loop_of_ones_own_trains() -> None:
    names = run("A loop of one's own")
    assert names["step"] == 4
    assert all(torch.isfinite(loss) for loss in names["losses"].values())
    assert all(weight.grad is not None for weight in names["network"].backbone.parameters())
