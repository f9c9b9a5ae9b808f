"""What CONTRIBUTING.md and the page on the architecture tell a newcomer, done."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import erpcnet
from conftest import small_network
from erpcnet.config import Config, JointSettings
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.protocol import measure
from erpcnet.experiments.ablation import list_methods, run_ablation
from erpcnet.model import JointHead, OperatingPoint, list_backbones, rollout
from erpcnet.model.backbone import BACKBONES
from erpcnet.model.heads import JOINT_HEADS
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.selection import SELECTION_ORDERS
from erpcnet.training import open_context
from erpcnet.training.context import create_network
from erpcnet.training.log import Log
from erpcnet.training.pipeline import rollout_test, train_network

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "erpcnet"
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)


def run(holds: str) -> dict[str, Any]:
    """The one snippet that holds some words, executed."""
    (snippet,) = (one for one in SNIPPETS if holds in one)
    assert len(snippet.splitlines()) < 40
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(snippet, names)
    return names


def test_a_joint_head_is_added(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    try:
        head = run("register_joint_head")["MaximumHead"]
        model = replace(tiny_config.model, joint=JointSettings(kind="maximum"), sigma=0.5, delta=0.5)
        (row,) = run_ablation(replace(tiny_config, model=model), dataset, [0], ["PCNet"])
        alone = replace(tiny_config, model=model, variant="pcnet")
        context = open_context(alone, dataset)
        rollouts = rollout_test(context, train_network(context, dataset, Log()), dataset)
        assert row["t1"] == pytest.approx(measure(rollouts, OperatingPoint(0.5, 0.5, "fixed"), seed=0).t1)
        network = create_network(replace(tiny_config, model=model), 7)
        assert isinstance(network.joint, JointHead)
        assert isinstance(network.joint, head)
        e_g, e_l = torch.randn(2, 128), torch.randn(2, 6, 128)
        expected = network.joint.of_global(e_g) + network.joint.of_local(e_l[:, :4]).amax(dim=1)
        torch.testing.assert_close(network.joint.prefixes(e_g, e_l)[:, 3], expected)
    finally:
        JOINT_HEADS.pop("maximum", None)


def test_a_selection_order_is_added(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    try:
        order = run("register_order")["LowestBetaFirst"]()
        assert "lowest beta first" in list_methods()
        config = replace(tiny_config, model=replace(tiny_config.model, sigma=0.5, delta=0.5))
        (row,) = run_ablation(config, dataset, [0], ["lowest beta first"])
        assert row["mean_steps"] == 6
        network, images = small_network(), torch.randn(3, 3, 64, 64)
        with torch.inference_mode():
            localities = DirectLocalities(network, images)
            found = rollout(network, localities, order).cells
        assert torch.equal(found, localities.beta.argsort(dim=1)[:, :6])
    finally:
        SELECTION_ORDERS.pop("lowest beta first", None)


def test_a_backbone_is_added() -> None:
    try:
        names = run("register_backbone")
        assert names["backbone"].stride == 4
        assert "two convolutions" in list_backbones()
    finally:
        BACKBONES.pop("two convolutions", None)


def test_a_dataset_is_read(tmp_path: Path) -> None:
    for name in ("ant", "bee", "crow"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    found = run("read_mine")["read_mine"](tmp_path)
    assert found.classes == ("ant", "bee", "crow")
    assert np.array_equal(found.unseen, [2])
    assert len(found.train) == 4


def test_an_experiment_reads_rollouts(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, data=replace(tiny_config.data, test_crops=2))
    network = create_network(config, len(dataset.attribute_names)).eval()
    rollouts = rollout_test(open_context(config, dataset), network, dataset)
    found = run("accuracy_of_the_first_crop")["accuracy_of_the_first_crop"](rollouts, 0.7)
    expected = measure(rollouts.first_crops(1), OperatingPoint(0.7, 0.0, "fixed"), seed=0).t1
    assert found == pytest.approx(expected)


def test_the_architecture_names_every_module_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    before, walk, after = re.split(r"\n## (?:A picture|What stands once)", page)
    modules = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    ]
    assert sorted(re.findall(r"`((?:\w+/)*\w+\.py)`", walk)) == sorted(modules)
    elsewhere = set(re.findall(r"`((?:\w+/)*\w+\.py)`", before + after))
    assert elsewhere <= {*modules, "tests/test_layers.py", "tests/test_contributing.py"}


def test_versions_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert f"\n## {erpcnet.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert cited == erpcnet.__version__


def test_public_names_are_listed() -> None:
    assert set(dir(erpcnet)) == set(erpcnet.__all__)
    for name in erpcnet.__all__:
        assert getattr(erpcnet, name).__doc__
