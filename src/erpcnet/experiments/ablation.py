"""The ablation: GlobalNet, PCNet, RPCNet and ERPCNet, and the selection orders that a learned policy has to beat.

Per seed, GlobalNet is trained alone, and Stage I once for the other three: the same seed gives them the same
Stage I weights, whichever of them is trained. Where the global subnet learns from L_g alone
(`stage1.detach_global`), their Stage I holds GlobalNet's too, and once is enough. Each is trained twice, without the
validation classes (to choose sigma and delta, unless both are given) and with them.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from erpcnet.config import Config, TestCrops, Variant, list_presets, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.operating_point import choose_on_test, choose_operating_point
from erpcnet.evaluation.protocol import measure
from erpcnet.evaluation.rollouts import EvaluationRollouts, rollout_tables
from erpcnet.experiments.oracle import OracleOrder
from erpcnet.experiments.parts import hits, part_places
from erpcnet.model import ERPCNet, SelectionOrder
from erpcnet.model.heads import check_joint_kind
from erpcnet.model.locality_tables import LocalityTable
from erpcnet.model.selection import SELECTION_ORDERS, OrderFactory, RandomOrder, default_order
from erpcnet.training.context import Context, open_context, prepare
from erpcnet.training.episode_sources import TableSource
from erpcnet.training.log import Log
from erpcnet.training.pipeline import run_stage1, test_tables, training_table
from erpcnet.training.stage2 import train_stage2
from erpcnet.utils.progress import console

# A trained network and the strength of the hubness correction to an order.
OrderOf = Callable[["Trained", float], SelectionOrder]
LITERAL = ("RPCNet, literal", "ERPCNet, literal")


def list_methods() -> tuple[str, ...]:
    """What can be compared: the paper's networks, every registered selection order (random is PCNet's), the policies
    to the letter of the paper, and the best order there could be.
    """
    orders = [name for name in SELECTION_ORDERS if name != "random"]
    methods = ("GlobalNet", "PCNet", *orders, *LITERAL, "RPCNet", "ERPCNet", "oracle")
    if len(set(methods)) < len(methods):
        raise InputError("a registered selection order has the name of another method; give it one of its own.")
    return methods


@dataclass(frozen=True)
class Trained:
    """A network, the localities of its test images, and those that its policy learns on."""

    network: ERPCNet
    dataset: ZeroShotDataset
    tables: dict[str, LocalityTable]
    training: LocalityTable | None
    images_per_second: float
    """Of Stage I."""

    def rollouts(self, order: SelectionOrder) -> EvaluationRollouts:
        return rollout_tables(self.network, self.dataset, self.tables, order)


class Networks(NamedTuple):
    """Networks that never saw a fold's validation classes, where there is something to choose, and the one to
    measure.
    """

    folds: tuple[Trained, ...]
    final: Trained

    def each(self, change: Callable[[Trained], Trained]) -> Networks:
        """The same change to all."""
        return Networks(tuple(change(fold) for fold in self.folds), change(self.final))


def literal(config: Config, dataset: str) -> Config:
    """The paper's policy and reward, to the letter, on the same Stage I, as the presets `*-paper` have them.

    Of a dataset that the paper does not have, those of aPY, which have the largest sigma.
    """
    name = f"{dataset.lower()}-paper"
    paper = load_config(name if name in list_presets() else "apy-paper")
    stage2 = replace(paper.stage2, epochs=config.stage2.epochs)
    own, letter = config.model.policy, paper.model.policy
    policy = replace(own, sees_cells=letter.sees_cells, shared_encoder=letter.shared_encoder)
    return replace(config, stage2=stage2, model=replace(config.model, policy=policy, sigma=paper.model.sigma))


def check_methods(methods: Sequence[str]) -> None:
    """Refuse a method that there is not."""
    known = list_methods()
    unknown = sorted(set(methods) - set(known))
    if unknown:
        closest = {"random": "PCNet", **{name.lower(): name for name in known}}
        close = difflib.get_close_matches(unknown[0].lower(), closest, n=1)
        hint = f", perhaps '{closest[close[0]]}'" if close else ""
        raise InputError(
            f"there is no method '{unknown[0]}'{hint}; the methods, separated by semicolons, are {'; '.join(known)}."
        )


def run_ablation(
    config: Config, dataset: ZeroShotDataset, seeds: Sequence[int], methods: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Rows for every seed and method; by default all methods."""
    methods = list_methods() if methods is None else methods
    check_methods(methods)
    check_joint_kind(config.model)
    for seed in seeds:
        console.print(f"seed {seed}")
        context = open_context(replace(config, seed=seed), dataset)
        networks = _stage1(context, "pcnet") if set(methods) - {"GlobalNet"} else None
        if "GlobalNet" in methods:
            yield from _rows(
                context, "GlobalNet", _globalnet(context, networks), lambda _trained, _hubness: RandomOrder(0)
            )
        if networks is not None:
            yield from _localities(context, networks, methods)


def _stage1(context: Context, variant: Variant) -> Networks:
    """Stage I without each fold's validation classes, if anything is to be chosen on them, and with all."""
    context = replace(context, config=replace(context.config, variant=variant))
    config = context.config
    choose = config.evaluation.protocol == "validation" and None in (config.model.sigma, config.model.delta)
    held_out = context.dataset.validation(config.evaluation.folds, seed=config.seed) if choose else ()
    return Networks(
        tuple(train_with_tables(context, fold) for fold in held_out), train_with_tables(context, context.dataset)
    )


def train_with_tables(context: Context, dataset: ZeroShotDataset) -> Trained:
    """Stage I, and every locality of the training and the test images once."""
    config = context.config
    started = time.perf_counter()
    network = run_stage1(context, dataset, Log())
    passes = config.stage1.passes(context.loader.batches_per_epoch(len(dataset.train), config.stage1.batch_size))
    rate = passes * len(dataset.train) / (time.perf_counter() - started)
    tables = test_tables(context, network, dataset)
    training = training_table(context, network, dataset) if network.steps else None
    return Trained(network, dataset, tables, training, rate)


def _localities(context: Context, networks: Networks, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    seed = context.config.seed
    orders = {"PCNet" if name == "random" else name: factory for name, factory in SELECTION_ORDERS.items()}
    policies: dict[str, tuple[Variant, Config]] = {
        "RPCNet, literal": ("rpcnet", literal(context.config, context.dataset.name)),
        "ERPCNet, literal": ("erpcnet", literal(context.config, context.dataset.name)),
        "RPCNet": ("rpcnet", context.config),
        "ERPCNet": ("erpcnet", context.config),
    }
    for name in methods:
        if name in orders:
            yield from _rows(context, name, networks, partial(_order_of, orders[name], seed))
        elif name in policies:
            variant, config = policies[name]
            taught = networks.each(partial(_with_policy, replace(context, config=replace(config, variant=variant))))
            yield from _rows(context, name, taught, lambda trained, _: default_order(trained.network, seed))
        elif name == "oracle":
            # It knows the labels of the unseen classes' images alone, and takes all T steps.
            unseen = replace(networks.final, tables={"unseen": networks.final.tables["unseen"]})
            yield from _rows(context, name, Networks((), unseen), _oracle)


def _globalnet(context: Context, pcnet: Networks | None) -> Networks:
    """GlobalNet trained alone, or, if it comes to the same, the global subnet of a PCNet that is there already."""
    if pcnet is None or not context.config.stage1.detach_global:
        return _stage1(context, "globalnet")
    return pcnet.each(lambda trained: replace(trained, network=as_variant(context, trained, "globalnet")))


def as_variant(context: Context, trained: Trained, variant: Variant) -> ERPCNet:
    """Another variant with the same Stage I; what only that one has is drawn from the seed."""
    config = context.config
    torch.manual_seed(config.seed)
    model = replace(config.model, backbone=replace(config.model.backbone, weights="none"))
    network = ERPCNet(model, len(trained.dataset.attribute_names), config.data.image_size, variant)
    missing = network.load_state_dict(trained.network.state_dict(), strict=False).missing_keys
    assert all(name.startswith("policy.") for name in missing)
    return prepare(network.to(context.device), config).eval()


def _with_policy(context: Context, trained: Trained) -> Trained:
    """The same Stage I with a policy of its own, trained."""
    config = context.config
    network = as_variant(context, trained, config.variant)
    assert trained.training is not None
    train_stage2(
        network,
        TableSource(trained.training, trained.dataset, config.stage2.crops),
        config.stage2,
        seed=config.seed,
        log=Log(),
        runtime=context.runtime,
    )
    return replace(trained, network=network)


def _order_of(factory: OrderFactory, seed: int, trained: Trained, _hubness: float) -> SelectionOrder:
    return factory(trained.network, seed)


def _oracle(trained: Trained, hubness: float) -> SelectionOrder:
    """Knows the label of every test image of unseen classes; images of seen classes are not rolled out by it."""
    dataset, device = trained.dataset, trained.tables["unseen"].rows.device
    phi = torch.from_numpy(dataset.unit_attributes[dataset.unseen]).to(device)
    classes = trained.network.classes(phi, torch.zeros(len(phi), dtype=torch.bool, device=device), hubness)
    labels = torch.from_numpy(np.searchsorted(dataset.unseen, dataset.labels)).to(device)  # of seen classes: nonsense
    return OracleOrder(trained.network, labels, classes)


def _rows(context: Context, name: str, networks: Networks, order: OrderOf) -> Iterator[dict[str, Any]]:
    """The figures of one method; with test-time augmentation those of fewer crops too, and with the hubness correction
    those without it.
    """
    for share in sorted({0.0, context.config.model.hubness}):
        *folds, final = (
            replace(one.rollouts(order(one, share)), hubness=share) for one in (*networks.folds, networks.final)
        )
        for crops in (count for count in get_args(TestCrops) if count <= final.crops):
            chosen_on = [fold.first_crops(crops) for fold in folds]
            yield _row(context, name, networks.final, chosen_on, final.first_crops(crops))


def _row(
    context: Context,
    name: str,
    final: Trained,
    chosen_on: Sequence[EvaluationRollouts],
    rollouts: EvaluationRollouts,
) -> dict[str, Any]:
    """The operating point from the folds' rollouts, or as given; figures from the test images."""
    seed, model, stop_loss = context.config.seed, context.config.model, context.config.evaluation.stop_loss
    if chosen_on:
        point = choose_operating_point(chosen_on, model.sigma, model.delta, stop_loss).point
    else:
        point = choose_on_test(rollouts, model.sigma, model.delta, stop_loss)
    metrics = measure(rollouts, point, seed).to_json()
    lists = ("t1_by_step", "temperature", "temperature_all", "plainer", "unseen_classes")
    by_step, *_ = (metrics.pop(name) for name in lists)
    if rollouts.seen is not None:
        # What choosing delta on the test images would have given: how far the chosen one is from the best.
        metrics["h_best"] = seen_unseen_curve(rollouts, point.sigma).best()[1]
    row = {
        "method": name,
        **_circumstances(context, final),
        **metrics,
        **{f"t1_step{step}": value for step, value in enumerate(by_step, start=1)},
    }
    if "parts" in final.dataset.extras and final.network.steps:
        places = part_places(final.dataset, final.dataset.test_unseen, context.loader.preprocessing.crop_share)
        cells = rollouts.unseen.cells[0].cpu()  # parts lie elsewhere in the other crops
        found = hits(cells, places, final.network.grid).nanmean(dim=0)
        row |= {f"hit_step{step}": float(value) for step, value in enumerate(found, start=1)}
    tested = "" if rollouts.crops == 1 else f"  {rollouts.crops} crops"
    tested += f"  hubness {metrics['hubness']:g}" if metrics["hubness"] else ""
    console.print(f"  {name:20s} T1 {100 * metrics['t1']:.1f}  steps {metrics['mean_steps']:.2f}{tested}")
    return row


def _circumstances(context: Context, trained: Trained) -> dict[str, Any]:
    """What one has to know to place a row beside another."""
    config, device = context.config, context.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return {
        "backbone": config.model.backbone.name,
        "input": config.data.image_size,
        "zoom": config.model.local.zoom,
        "joint": config.model.joint.kind,
        "epochs": config.stage1.epochs,
        "settings": config.fingerprint(),
        "images_per_second": trained.images_per_second,
        "device": name,
    }
