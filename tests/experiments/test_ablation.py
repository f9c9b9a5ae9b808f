from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import build_test_tables
from erpcnet.experiments.ablation import METHODS, literal, run_ablation
from erpcnet.experiments.oracle import OracleOrder
from erpcnet.experiments.report import ablation_tables
from erpcnet.experiments.rows import read_rows, write_rows
from erpcnet.model import Classes, Variant
from erpcnet.model.scoring import logits_by_step
from erpcnet.model.walk import FixedOrder, Order, walk
from erpcnet.pipeline import open_workshop, train_localities
from erpcnet.training import Log


def test_an_ablation_has_every_method_and_a_page(tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path) -> None:
    rows = list(run_ablation(tiny_config, dataset, seeds=[0, 1]))
    assert [row["method"] for row in rows] == [*METHODS, *METHODS]
    for row in rows:
        if row["method"] != "GlobalNet":
            seen = [row[f"hit_step{step}"] for step in range(1, 7)]
            assert seen == sorted(seen)
    write_rows(tmp_path / "rows.csv", rows)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.count("\n| ERPCNet |") == 4
    assert "±" in page


@pytest.mark.parametrize("variant", ["rpcnet", "erpcnet"])
def test_variants_share_stage_one_to_the_bit(tiny_config: Config, dataset: ZeroShotDataset, variant: Variant) -> None:
    shop = open_workshop(tiny_config, dataset)
    plain = train_localities(replace(shop, config=replace(tiny_config, variant="pcnet")), dataset, Log()).state_dict()
    other = train_localities(replace(shop, config=replace(tiny_config, variant=variant)), dataset, Log()).state_dict()
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_separate_global_subnet_is_globalnets_row(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    config = replace(tiny_config, stage1=replace(tiny_config.stage1, separate=True))
    (alone,) = run_ablation(config, dataset, [0], ["GlobalNet"])
    beside, pcnet = run_ablation(config, dataset, [0], ["GlobalNet", "PCNet"])
    timed = {"images_per_second"}
    assert {k: v for k, v in alone.items() if k not in timed} == {k: v for k, v in beside.items() if k not in timed}
    assert pcnet["t1_global"] == beside["t1"]


def test_several_views_have_rows_of_their_own_beside_those_of_one(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path
) -> None:
    methods = ["GlobalNet", "highest beta first", "ERPCNet", "oracle"]
    alone = list(run_ablation(tiny_config, dataset, [0], methods))
    config = replace(tiny_config, data=replace(tiny_config.data, test_views=4))
    both = list(run_ablation(config, dataset, [0], methods))
    assert [(row["method"], row["views"]) for row in both] == [(name, views) for name in methods for views in (1, 2, 4)]
    # What depends on other settings, and on the clock, alone differs: every view is walked over by itself. (PCNet's
    # chance has drawn for more views of seen classes' images when it comes to those of unseen ones.)
    for one, same, two, four in zip(alone, both[::3], both[1::3], both[2::3], strict=True):
        assert {k for k in one if one[k] != same[k]} <= {"images_per_second", "settings"}
        assert all(same[k] == two[k] == four[k] for k in same if k.startswith("hit_step"))
    for number in (0, 1, 2):  # delta lies between two scores, which no two numbers of views share
        assert len({both[3 * number + views]["delta"] for views in (0, 1, 2)}) == 3
    write_rows(tmp_path / "rows.csv", both)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.index("**1 view**") < page.index("\n| oracle |") < page.index("**2 views**") < page.index("**4 views**")


def test_attraction_has_rows_of_its_own_beside_those_without(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path
) -> None:
    methods = ["GlobalNet", "PCNet", "ERPCNet", "oracle"]
    alone = list(run_ablation(tiny_config, dataset, [0], methods))
    config = replace(tiny_config, model=replace(tiny_config.model, attraction=0.5))
    both = list(run_ablation(config, dataset, [0], methods))
    assert [(row["method"], row["attraction"]) for row in both] == [(name, a) for name in methods for a in (0.0, 0.5)]
    for one, same, other in zip(alone, both[::2], both[1::2], strict=True):
        assert {k for k in one if one[k] != same[k]} <= {"images_per_second", "settings"}
        assert one["method"] == "oracle" or other["delta"] != same["delta"]
    write_rows(tmp_path / "rows.csv", both)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.index("**1 view**") < page.index("\n| oracle |") < page.index("**1 view, attraction 0.5**")


def test_given_settings_need_no_fold(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    model = replace(tiny_config.model, sigma=0.3, delta=1.5)
    methods = ["GlobalNet", "ERPCNet"]
    rows = list(run_ablation(replace(tiny_config, model=model), replace(dataset, folds=()), [0], methods))
    assert [row["method"] for row in rows] == methods
    assert {(row["sigma"], row["delta"], row["protocol"]) for row in rows} == {(0.3, 1.5, "fixed")}


def test_a_peer_chooses_on_test_and_says_so(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    evaluation = replace(tiny_config.evaluation, protocol="peer")
    (row,) = run_ablation(replace(tiny_config, evaluation=evaluation), replace(dataset, folds=()), [0], ["GlobalNet"])
    assert row["protocol"] == "peer"
    assert row["h"] == pytest.approx(row["h_peer"])


def test_an_unknown_method_is_refused_by_name(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    with pytest.raises(InputError, match="no method 'GloblNet'"):
        list(run_ablation(tiny_config, dataset, [0], ["GloblNet"]))


@pytest.mark.parametrize(("dataset", "sigma"), [("CUB", 0.5), ("SUN", 0.7), ("aPY", 1.1), ("AwA2", 0.5), ("mine", 1.1)])
def test_the_literal_policy_stops_where_the_paper_does(tiny_config: Config, dataset: str, sigma: float) -> None:
    assert literal(tiny_config, dataset).model.sigma == sigma


def test_the_oracle_looks_first_where_the_true_class_gains_most(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    shop = open_workshop(tiny_config, dataset)
    network = train_localities(shop, dataset, Log())
    (table,) = build_test_tables(network, replace(dataset, test_seen=dataset.test_seen[:0]), shop.feed, 32).values()
    phi = torch.from_numpy(dataset.unit_attributes[dataset.unseen])
    classes, labels = Classes(phi), torch.from_numpy(np.searchsorted(dataset.unseen, dataset.labels))
    own = labels[table.rows]

    @torch.inference_mode()
    def first_chance(order: Order) -> torch.Tensor:
        found = walk(network, table.take(torch.arange(len(table))), order)
        return logits_by_step(network, found, classes)[:, 1].softmax(dim=1)[torch.arange(len(table)), own]

    best = first_chance(OracleOrder(network, labels, classes))
    each = torch.stack([first_chance(FixedOrder(torch.arange(16).roll(-cell))) for cell in range(16)])
    torch.testing.assert_close(best, each.amax(dim=0), atol=1e-5, rtol=1e-4)
    assert (best > each.amin(dim=0) + 1e-4).any()
