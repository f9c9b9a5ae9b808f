from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.experiments.ablation import run_ablation, write_rows
from erpcnet.experiments.parts import distinguishing_parts, hits
from erpcnet.experiments.report import ablation_tables, read_rows
from erpcnet.model import Grid
from erpcnet.pipeline import open_workshop, train_localities
from erpcnet.training import Log


def test_an_ablation_has_every_method_and_a_page(tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path) -> None:
    rows = list(run_ablation(tiny_config, dataset, seeds=[0, 1]))
    methods = ["GlobalNet", "PCNet", "centre first", "highest beta first", "RPCNet, literal", "ERPCNet, literal"]
    methods += ["RPCNet", "ERPCNet", "oracle"]
    assert [row["method"] for row in rows] == methods * 2
    for row in rows:
        if row["method"] != "GlobalNet":
            seen = [row[f"hit_step{step}"] for step in range(1, 7)]
            assert seen == sorted(seen)
    # Knowing the label, a first look cannot be worse than any other order's.
    for seed in (0, 1):
        own = {row["method"]: row for row in rows if row["seed"] == seed}
        assert own["oracle"]["t1_step1"] >= max(own[name]["t1_step1"] for name in methods[1:-1])
    write_rows(tmp_path / "rows.csv", rows)
    page = ablation_tables(read_rows(tmp_path / "rows.csv"))
    assert page.count("\n| ERPCNet |") == 3
    assert "±" in page


@pytest.mark.parametrize("variant", ["rpcnet", "erpcnet"])
def test_variants_share_stage_one_to_the_bit(tiny_config: Config, dataset: ZeroShotDataset, variant: str) -> None:
    shop = open_workshop(tiny_config, dataset)
    plain = train_localities(replace(shop, config=replace(tiny_config, variant="pcnet")), dataset, Log()).state_dict()
    other = train_localities(replace(shop, config=replace(tiny_config, variant=variant)), dataset, Log()).state_dict()
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_hits_are_windows_that_hold_the_place() -> None:
    grid = Grid(14, 14, window=5, stride=3)
    cells = torch.tensor([[0, 5, 15], [3, 0, 12]])
    found = hits(cells, torch.tensor([[0.5, 0.5], [0.01, 0.01]]), grid)
    assert found.tolist() == [[False, True, True], [False, True, True]]


def test_siblings_are_told_apart_by_the_part_they_differ_in(dataset: ZeroShotDataset) -> None:
    parts = distinguishing_parts(dataset)
    for first, second in zip(dataset.unseen[0::2], dataset.unseen[1::2], strict=True):  # two siblings a family
        assert parts[int(first)] == parts[int(second)]
