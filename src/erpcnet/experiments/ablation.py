"""The ablation: GlobalNet, PCNet, RPCNet and ERPCNet, and the orders a learned policy has to beat.

Per seed, GlobalNet is trained alone, and Stage I once for the other three: the same seed gives them the same
Stage I weights, whichever of them is trained. Each is trained twice, without the validation classes (to choose
sigma and delta) and with them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.protocol import (
    EvaluationWalks,
    Settings,
    build_test_tables,
    choose_settings,
    measure,
    usual_order,
    walk_tables,
)
from erpcnet.experiments.oracle import OracleOrder
from erpcnet.experiments.parts import hits, part_places
from erpcnet.model import ERPCNet, Variant
from erpcnet.model.walk import EntropyOrder, FixedOrder, Order, RandomOrder
from erpcnet.pipeline import Workshop, open_workshop, set_precision, train_localities
from erpcnet.progress import console
from erpcnet.training import LocalityTable, Log, policy_table, train_stage2


@dataclass(frozen=True)
class Trained:
    """A network, the localities of its test images, and those that its policy learns on (plain views first)."""

    network: ERPCNet
    dataset: ZeroShotDataset
    tables: dict[str, LocalityTable]
    training: LocalityTable | None = None

    def walk(self, order: Order) -> EvaluationWalks:
        return walk_tables(self.network, self.dataset, self.tables, order)


def literal(config: Config) -> Config:
    """The paper's policy and reward, to the letter, on the same Stage I."""
    stage2 = replace(config.stage2, temperature=1.0, ending="paper", advantages="raw", views=1)
    policy = replace(config.model.policy, sees_cells=False)
    return replace(config, stage2=stage2, model=replace(config.model, policy=policy, sigma=1.1))


def run_ablation(config: Config, dataset: ZeroShotDataset, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One row per seed and method."""
    for seed in seeds:
        console.print(f"seed {seed}")
        shop = open_workshop(replace(config, seed=seed), dataset)
        yield from _globalnet(shop)
        yield from _localities(shop)


def _stage1(shop: Workshop, variant: Variant) -> tuple[Trained, Trained]:
    """Stage I without the validation classes, and with them."""
    shop = replace(shop, config=replace(shop.config, variant=variant))
    fold = shop.dataset.fold(shop.config.evaluation.fold, seed=shop.config.seed)
    return _train(shop, fold), _train(shop, shop.dataset)


def _train(shop: Workshop, dataset: ZeroShotDataset) -> Trained:
    config = shop.config
    network = train_localities(shop, dataset, Log())
    tables = build_test_tables(network, dataset, shop.feed, config.evaluation.batch_size)
    training = policy_table(network, dataset, shop.feed, config.stage2, config.seed) if network.steps else None
    return Trained(network, dataset, tables, training)


def _globalnet(shop: Workshop) -> Iterator[dict[str, Any]]:
    fold, final = _stage1(shop, "globalnet")
    yield _row(shop, "GlobalNet", fold, final, RandomOrder(0), RandomOrder(0))


def _localities(shop: Workshop) -> Iterator[dict[str, Any]]:
    fold, final = _stage1(shop, "pcnet")
    seed = shop.config.seed
    yield _row(shop, "PCNet", fold, final, RandomOrder(seed), RandomOrder(seed))
    centre = FixedOrder(final.network.grid.centre_first())
    yield _row(shop, "centre first", fold, final, centre, centre)
    yield _row(shop, "highest beta first", fold, final, EntropyOrder(), EntropyOrder())
    methods: tuple[tuple[str, Variant, Config], ...] = (
        ("RPCNet, literal", "rpcnet", literal(shop.config)),
        ("ERPCNet, literal", "erpcnet", literal(shop.config)),
        ("RPCNet", "rpcnet", shop.config),
        ("ERPCNet", "erpcnet", shop.config),
    )
    for name, variant, config in methods:
        own = replace(shop, config=replace(config, variant=variant))
        pair = [_with_policy(own, trained) for trained in (fold, final)]
        orders = [usual_order(trained.network, seed) for trained in pair]
        yield _row(own, name, pair[0], pair[1], orders[0], orders[1])
    yield _row(shop, "oracle", fold, final, None, _oracle(final))


def _with_policy(shop: Workshop, trained: Trained) -> Trained:
    """The same Stage I with a policy of its own, trained."""
    config, stage1 = shop.config, trained.network
    torch.manual_seed(config.seed)
    model = replace(config.model, backbone=replace(config.model.backbone, weights="none"))
    network = ERPCNet(model, len(trained.dataset.attribute_names), config.data.image_size, config.variant)
    missing = network.load_state_dict(stage1.state_dict(), strict=False).missing_keys
    assert all(name.startswith("policy.") for name in missing)
    network = set_precision(network.to(shop.accelerator.device), config).eval()
    assert trained.training is not None
    train_stage2(
        network,
        trained.dataset,
        trained.training,
        config.stage2,
        accelerator=shop.accelerator,
        seed=config.seed,
        log=Log(),
    )
    return replace(trained, network=network)


def _oracle(trained: Trained) -> Order:
    """Knows the label of every test image of unseen classes; images of seen classes are not walked by it."""
    dataset, device = trained.dataset, trained.tables["unseen"].rows.device
    phi = torch.from_numpy(dataset.unit_attributes[dataset.unseen]).to(device)
    place = {int(label): number for number, label in enumerate(dataset.unseen)}
    labels = torch.tensor([place[int(dataset.labels[row])] for row in dataset.test_unseen], device=device)
    return OracleOrder(trained.network, labels, phi)


def _row(
    shop: Workshop, name: str, fold: Trained, final: Trained, order: Order | None, final_order: Order
) -> dict[str, Any]:
    """sigma and delta from the fold, figures from the test images.

    Without an order for the fold, as the oracle has none, images of unseen classes alone are walked, all T steps.
    """
    seed = shop.config.seed
    if order is None:
        final = replace(final, tables={"unseen": final.tables["unseen"]})
        settings = Settings(float("inf"), 0.0, "fixed")
    else:
        settings = choose_settings(fold.walk(order), None, None, "validation")
    walks = final.walk(final_order)
    metrics = measure(walks, settings, seed).to_json()
    by_step = metrics.pop("t1_by_step")
    row = {
        "method": name,
        **metrics,
        **{f"t1_step{step}": value for step, value in enumerate(by_step, start=1)},
    }
    if "parts" in final.dataset.extras and final.network.steps:
        places = part_places(final.dataset, final.dataset.test_unseen, shop.config.data.centre)
        found = hits(walks.unseen.cells.cpu(), places, final.network.grid).float().mean(dim=0)
        row |= {f"hit_step{step}": float(value) for step, value in enumerate(found, start=1)}
    console.print(f"  {name:20s} T1 {100 * metrics['t1']:.1f}  steps {metrics['mean_steps']:.2f}")
    return row


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A CSV file with every column that any row has."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
