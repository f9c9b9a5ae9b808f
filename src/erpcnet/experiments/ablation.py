"""The ablation: GlobalNet, PCNet, RPCNet and ERPCNet, and the orders a learned policy has to beat.

Per seed, GlobalNet is trained alone, and Stage I once for the other three: the same seed gives them the same
Stage I weights, whichever of them is trained. Where the global subnet learns separately (`stage1.separate`), their
Stage I holds GlobalNet's too, and once is enough. Each is trained twice, without the validation classes (to choose
sigma and delta, unless both are given) and with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from erpcnet.config import Config, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.settings import TestViews
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import (
    EvaluationWalks,
    build_test_tables,
    choose_settings,
    measure,
    seen_unseen_curve,
    walk_tables,
)
from erpcnet.experiments.oracle import OracleOrder
from erpcnet.experiments.parts import hits, part_places
from erpcnet.model import ERPCNet, Variant
from erpcnet.model.scoring import Protocol
from erpcnet.model.walk import EntropyOrder, FixedOrder, Order, RandomOrder, usual_order
from erpcnet.pipeline import Workshop, open_workshop, prepare, train_localities
from erpcnet.presets import list_presets
from erpcnet.progress import console
from erpcnet.training import LocalityTable, Log, TableSource, policy_table, train_stage2

METHODS = (
    "GlobalNet",
    "PCNet",
    "centre first",
    "highest beta first",
    "RPCNet, literal",
    "ERPCNet, literal",
    "RPCNet",
    "ERPCNet",
    "oracle",
)


@dataclass(frozen=True)
class Trained:
    """A network, the localities of its test images, and those that its policy learns on (plain views first)."""

    network: ERPCNet
    dataset: ZeroShotDataset
    tables: dict[str, LocalityTable]
    training: LocalityTable | None
    images_per_second: float
    """Of Stage I."""

    def walk(self, order: Order) -> EvaluationWalks:
        return walk_tables(self.network, self.dataset, self.tables, order)


class Pair(NamedTuple):
    """A network that never saw the validation classes, where there is something to choose, and the one to measure."""

    fold: Trained | None
    final: Trained

    def each(self, change: Callable[[Trained], Trained]) -> Pair:
        """The same change to both."""
        return Pair(None if self.fold is None else change(self.fold), change(self.final))


def literal(config: Config, dataset: str) -> Config:
    """The paper's policy and reward, to the letter, on the same Stage I; sigma is what it gives for the dataset.

    Of a dataset that the paper does not have, its largest.
    """
    papers = f"{dataset.lower()}-paper"
    sigma = load_config(papers).model.sigma if papers in list_presets() else 1.1
    stage2 = replace(config.stage2, batch_size=256, lr=3e-4, temperature=1.0, ending="paper", advantages="raw", views=1)
    policy = replace(config.model.policy, sees_cells=False, shared_encoder=False)
    return replace(config, stage2=stage2, model=replace(config.model, policy=policy, sigma=sigma))


def check_methods(methods: Sequence[str]) -> None:
    """Refuse a method that there is not."""
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise InputError(f"there is no method '{min(unknown)}'; the methods are {', '.join(METHODS)}.")


def run_ablation(
    config: Config, dataset: ZeroShotDataset, seeds: Sequence[int], methods: Sequence[str] = METHODS
) -> Iterator[dict[str, Any]]:
    """One row per seed and method."""
    check_methods(methods)
    for seed in seeds:
        console.print(f"seed {seed}")
        shop = open_workshop(replace(config, seed=seed), dataset)
        pair = _stage1(shop, "pcnet") if set(methods) - {"GlobalNet"} else None
        if "GlobalNet" in methods:
            yield from _rows(shop, "GlobalNet", _globalnet(shop, pair), lambda _: RandomOrder(0))
        if pair is not None:
            yield from _localities(shop, pair, methods)


def _stage1(shop: Workshop, variant: Variant) -> Pair:
    """Stage I without the validation classes, if anything is to be chosen on them, and with them."""
    shop = replace(shop, config=replace(shop.config, variant=variant))
    config = shop.config
    choose = config.evaluation.protocol == "validation" and None in (config.model.sigma, config.model.delta)
    held_out = shop.dataset.fold(config.evaluation.fold, seed=config.seed) if choose else None
    return Pair(None if held_out is None else _train(shop, held_out), _train(shop, shop.dataset))


def _train(shop: Workshop, dataset: ZeroShotDataset) -> Trained:
    config = shop.config
    started = time.perf_counter()
    network = train_localities(shop, dataset, Log())
    passes = config.stage1.passes(shop.feed.batches(len(dataset.train), config.stage1.batch_size))
    rate = passes * len(dataset.train) / (time.perf_counter() - started)
    tables = build_test_tables(network, dataset, shop.feed, config.evaluation.batch_size)
    training = policy_table(network, dataset, shop.feed, config.stage2, config.seed) if network.steps else None
    return Trained(network, dataset, tables, training, rate)


def _localities(shop: Workshop, pair: Pair, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    seed = shop.config.seed
    orders: dict[str, Callable[[Trained], Order]] = {
        "PCNet": lambda _: RandomOrder(seed),
        "centre first": lambda trained: FixedOrder(trained.network.grid.centre_first()),
        "highest beta first": lambda _: EntropyOrder(),
    }
    policies: dict[str, tuple[Variant, Config]] = {
        "RPCNet, literal": ("rpcnet", literal(shop.config, shop.dataset.name)),
        "ERPCNet, literal": ("erpcnet", literal(shop.config, shop.dataset.name)),
        "RPCNet": ("rpcnet", shop.config),
        "ERPCNet": ("erpcnet", shop.config),
    }
    for name in methods:
        if name in orders:
            yield from _rows(shop, name, pair, orders[name])
        elif name in policies:
            variant, config = policies[name]
            taught = pair.each(partial(_with_policy, replace(shop, config=replace(config, variant=variant))))
            yield from _rows(shop, name, taught, lambda trained: usual_order(trained.network, seed))
        elif name == "oracle":
            # It knows the labels of the unseen classes' images alone, and takes all T steps.
            unseen = replace(pair.final, tables={"unseen": pair.final.tables["unseen"]})
            yield from _rows(shop, name, Pair(None, unseen), _oracle)


def _globalnet(shop: Workshop, pcnet: Pair | None) -> Pair:
    """GlobalNet trained alone, or, if it comes to the same, the global subnet of a PCNet that is there already."""
    if pcnet is None or not shop.config.stage1.separate:
        return _stage1(shop, "globalnet")
    return pcnet.each(lambda trained: replace(trained, network=_as_variant(shop, trained, "globalnet")))


def _as_variant(shop: Workshop, trained: Trained, variant: Variant) -> ERPCNet:
    """Another variant with the same Stage I; what only that one has is drawn from the seed."""
    config = shop.config
    torch.manual_seed(config.seed)
    model = replace(config.model, backbone=replace(config.model.backbone, weights="none"))
    network = ERPCNet(model, len(trained.dataset.attribute_names), config.data.image_size, variant)
    missing = network.load_state_dict(trained.network.state_dict(), strict=False).missing_keys
    assert all(name.startswith("policy.") for name in missing)
    return prepare(network.to(shop.accelerator.device), config).eval()


def _with_policy(shop: Workshop, trained: Trained) -> Trained:
    """The same Stage I with a policy of its own, trained."""
    config = shop.config
    network = _as_variant(shop, trained, config.variant)
    assert trained.training is not None
    train_stage2(
        network,
        TableSource(trained.training, trained.dataset, config.stage2.views),
        config.stage2,
        seed=config.seed,
        log=Log(),
    )
    return replace(trained, network=network)


def _with_attraction(share: float, trained: Trained) -> Trained:
    """The same, with another share of attraction taken off."""
    return replace(trained, network=trained.network.with_attraction(share))


def _oracle(trained: Trained) -> Order:
    """Knows the label of every test image of unseen classes; images of seen classes are not walked by it."""
    dataset, device = trained.dataset, trained.tables["unseen"].rows.device
    phi = torch.from_numpy(dataset.unit_attributes[dataset.unseen]).to(device)
    classes = trained.network.classes(phi, torch.zeros(len(phi), dtype=torch.bool, device=device))
    labels = torch.from_numpy(np.searchsorted(dataset.unseen, dataset.labels)).to(device)  # of seen classes: nonsense
    return OracleOrder(trained.network, labels, classes)


def _rows(shop: Workshop, name: str, pair: Pair, order: Callable[[Trained], Order]) -> Iterator[dict[str, Any]]:
    """The figures of one method; where images have several views at test, those of fewer of them too, and where
    attraction is taken off, those without that.
    """
    for share in sorted({0.0, shop.config.model.attraction}):
        tested = pair.each(partial(_with_attraction, share))
        fold, final = (None if one is None else one.walk(order(one)) for one in tested)
        assert final is not None
        for views in (count for count in get_args(TestViews) if count <= final.views):
            yield _row(shop, name, pair.final, None if fold is None else fold.first(views), final.first(views))


def _row(
    shop: Workshop, name: str, final: Trained, chosen_on: EvaluationWalks | None, walks: EvaluationWalks
) -> dict[str, Any]:
    """sigma and delta from the fold's walks, or as given; figures from the test images."""
    seed, model, stop_loss = shop.config.seed, shop.config.model, shop.config.evaluation.stop_loss
    if chosen_on is not None:
        settings = choose_settings(chosen_on, model.sigma, model.delta, stop_loss, "validation")
    else:
        protocol: Protocol = "peer" if None in (model.sigma, model.delta) else "fixed"
        settings = choose_settings(walks, model.sigma, model.delta, stop_loss, protocol)
    metrics = measure(walks, settings, seed).to_json()
    by_step, _, _ = (metrics.pop(name) for name in ("t1_by_step", "temperature", "temperature_all"))  # lists
    if walks.seen is not None:
        # What choosing delta on the test images would have given: how far the chosen one is from the best.
        metrics["h_peer"] = seen_unseen_curve(walks, settings.sigma).best()[1]
    row = {
        "method": name,
        **_circumstances(shop, final),
        **metrics,
        **{f"t1_step{step}": value for step, value in enumerate(by_step, start=1)},
    }
    if "parts" in final.dataset.extras and final.network.steps:
        places = part_places(final.dataset, final.dataset.test_unseen, shop.feed.preprocessing.crop_share)
        cells = walks.first(1).unseen.cells.cpu()  # parts lie elsewhere in the other views
        found = hits(cells, places, final.network.grid).nanmean(dim=0)
        row |= {f"hit_step{step}": float(value) for step, value in enumerate(found, start=1)}
    tested = "" if walks.views == 1 else f"  {walks.views} views"
    tested += f"  attraction {metrics['attraction']:g}" if metrics["attraction"] else ""
    console.print(f"  {name:20s} T1 {100 * metrics['t1']:.1f}  steps {metrics['mean_steps']:.2f}{tested}")
    return row


def _circumstances(shop: Workshop, trained: Trained) -> dict[str, Any]:
    """What one has to know to place a row beside another."""
    config, device = shop.config, shop.accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return {
        "backbone": config.model.backbone.name,
        "input": config.data.image_size,
        "epochs": config.stage1.epochs,
        "settings": config.fingerprint(),
        "images_per_second": trained.images_per_second,
        "device": name,
    }
