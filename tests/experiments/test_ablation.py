from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from erpcnet.config import Config, Variant
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.evaluation.rollouts import build_test_tables
from erpcnet.experiments.ablation import list_methods, literal, run_ablation
from erpcnet.experiments.oracle import OracleOrder
from erpcnet.experiments.report import ablation_tables
from erpcnet.experiments.rows import read_rows, write_rows
from erpcnet.model import Classes
from erpcnet.model.rollout import rollout
from erpcnet.model.scoring import score
from erpcnet.model.selection import FixedOrder, SelectionOrder
from erpcnet.training import Log, open_context
from erpcnet.training.pipeline import run_stage1


def test_an_ablation_has_every_method_and_a_page(tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path) -> None:
    rows = list(run_ablation(tiny_config, dataset, seeds=[0, 1]))
    assert [row["method"] for row in rows] == [*list_methods(), *list_methods()]
    for row in rows:
        if row["method"] != "GlobalNet":
            hits = [row[f"hit_step{step}"] for step in range(1, 7)]
            assert hits == sorted(hits)
    write_rows(tmp_path / "rows.csv", rows)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.count("\n| ERPCNet |") == 4
    assert "±" in page


@pytest.mark.parametrize("variant", ["rpcnet", "erpcnet"])
def test_variants_share_stage_one_to_the_bit(tiny_config: Config, dataset: ZeroShotDataset, variant: Variant) -> None:
    context = open_context(tiny_config, dataset)
    plain = run_stage1(replace(context, config=replace(tiny_config, variant="pcnet")), dataset, Log()).state_dict()
    other = run_stage1(replace(context, config=replace(tiny_config, variant=variant)), dataset, Log()).state_dict()
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_detached_global_subnet_is_globalnets_row(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, stage1=replace(tiny_config.stage1, detach_global=True))
    (alone,) = run_ablation(config, dataset, [0], ["GlobalNet"])
    beside, pcnet = run_ablation(config, dataset, [0], ["GlobalNet", "PCNet"])
    timed = {"images_per_second"}
    assert {k: v for k, v in alone.items() if k not in timed} == {k: v for k, v in beside.items() if k not in timed}
    assert pcnet["t1_global"] == beside["t1"]


def test_crops_have_rows_of_their_own(tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path) -> None:
    methods = ["GlobalNet", "highest beta first", "ERPCNet", "oracle"]
    alone = list(run_ablation(tiny_config, dataset, [0], methods))
    config = replace(tiny_config, data=replace(tiny_config.data, test_crops=4))
    both = list(run_ablation(config, dataset, [0], methods))
    assert [(row["method"], row["crops"]) for row in both] == [(name, crops) for name in methods for crops in (1, 2, 4)]
    # What depends on other settings, and on the clock, alone differs: every crop is rolled out by itself. (PCNet's
    # chance has drawn for more crops of seen classes' images when it comes to those of unseen ones.)
    for one, same, two, four in zip(alone, both[::3], both[1::3], both[2::3], strict=True):
        assert {k for k in one if one[k] != same[k]} <= {"images_per_second", "settings"}
        assert all(same[k] == two[k] == four[k] for k in same if k.startswith("hit_step"))
    for number in (0, 1, 2):  # delta lies between two logits, which no two numbers of crops share
        assert len({both[3 * number + crops]["delta"] for crops in (0, 1, 2)}) == 3
    write_rows(tmp_path / "rows.csv", both)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.index("**1 crop**") < page.index("\n| oracle |") < page.index("**2 crops**") < page.index("**4 crops**")


def test_the_hubness_correction_has_rows_of_its_own(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path
) -> None:
    methods = ["GlobalNet", "PCNet", "ERPCNet", "oracle"]
    alone = list(run_ablation(tiny_config, dataset, [0], methods))
    config = replace(tiny_config, model=replace(tiny_config.model, hubness=0.5))
    both = list(run_ablation(config, dataset, [0], methods))
    assert [(row["method"], row["hubness"]) for row in both] == [(name, a) for name in methods for a in (0.0, 0.5)]
    for one, same, other in zip(alone, both[::2], both[1::2], strict=True):
        assert {k for k in one if one[k] != same[k]} <= {"images_per_second", "settings"}
        assert one["method"] == "oracle" or other["delta"] != same["delta"]
    write_rows(tmp_path / "rows.csv", both)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.index("**1 crop**") < page.index("\n| oracle |") < page.index("**1 crop, hubness correction**")


def test_given_settings_need_no_fold(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    model = replace(tiny_config.model, sigma=0.3, delta=1.5)
    methods = ["GlobalNet", "ERPCNet"]
    rows = list(run_ablation(replace(tiny_config, model=model), replace(dataset, folds=()), [0], methods))
    assert [row["method"] for row in rows] == methods
    assert {(row["sigma"], row["delta"], row["protocol"]) for row in rows} == {(0.3, 1.5, "fixed")}


def test_choosing_on_test_classes_is_reported(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    evaluation = replace(tiny_config.evaluation, protocol="test")
    (row,) = run_ablation(replace(tiny_config, evaluation=evaluation), replace(dataset, folds=()), [0], ["GlobalNet"])
    assert row["protocol"] == "test"
    assert row["h"] == pytest.approx(row["h_best"])


def test_an_unknown_method_is_refused_by_name(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    with pytest.raises(InputError, match="no method 'GloblNet', perhaps 'GlobalNet'; the methods"):
        list(run_ablation(tiny_config, dataset, [0], ["GloblNet"]))


@pytest.mark.parametrize(("dataset", "sigma"), [("CUB", 0.5), ("SUN", 0.7), ("aPY", 1.1), ("AwA2", 0.5), ("mine", 1.1)])
def test_the_literal_policy_stops_where_the_paper_does(tiny_config: Config, dataset: str, sigma: float) -> None:
    assert literal(tiny_config, dataset).model.sigma == sigma


def test_the_oracle_selects_what_helps_the_true_class_most(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    context = open_context(tiny_config, dataset)
    network = run_stage1(context, dataset, Log())
    (table,) = build_test_tables(
        network, replace(dataset, test_seen=dataset.test_seen[:0]), context.loader, 32
    ).values()
    phi = torch.from_numpy(dataset.unit_attributes[dataset.unseen])
    classes, labels = Classes(phi), torch.from_numpy(np.searchsorted(dataset.unseen, dataset.labels))
    own = labels[table.rows]

    @torch.inference_mode()
    def first_chance(order: SelectionOrder) -> torch.Tensor:
        images = torch.arange(len(table))
        found = rollout(network, table.take(torch.zeros_like(images), images), order)
        logits = score(network, found.each(lambda tensor: tensor[None]), classes).logits[0, :, 1]
        return logits.softmax(dim=1)[images, own]

    best = first_chance(OracleOrder(network, labels, classes))
    each = torch.stack([first_chance(FixedOrder(torch.arange(16).roll(-cell))) for cell in range(16)])
    torch.testing.assert_close(best, each.amax(dim=0), atol=1e-5, rtol=1e-4)
    assert (best > each.amin(dim=0) + 1e-4).any()
