"""T1 and H after every epoch, read from TensorBoard's files, against slow references."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partialmethod
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

import erpcnet.training.runs
from erpcnet.config import Config, Variant
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.operating_point import choose_on_test
from erpcnet.evaluation.protocol import measure
from erpcnet.model import ERPCNet
from erpcnet.training import Context, Log, open_context, validation
from erpcnet.training.context import create_network
from erpcnet.training.pipeline import rollout_test, run_stage1, run_stage2, train_network
from erpcnet.training.runs import train_run
from erpcnet.training.stage1 import Stage1Trainer
from erpcnet.training.validation import Validation, spread, with_few_test_images
from trust import processes as campaign
from trust.cases import draw_tiny

Points = dict[str, list[tuple[int, float]]]


def _points(folder: Path) -> Points:
    """Steps and values of every scalar in the event files of a folder, as often as they stand there."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def _of_validation(points: Points) -> Points:
    return {tag: found for tag, found in points.items() if "/validation/" in tag}


def _steps(found: list[tuple[int, float]]) -> list[int]:
    return [step for step, _ in found]


def _longer(config: Config, stage1: int, stage2: int, **settings: Any) -> Config:
    return replace(
        config,
        stage1=replace(config.stage1, epochs=stage1, **settings),
        stage2=replace(config.stage2, epochs=stage2),
    )


@torch.no_grad()
def _slowly(network: ERPCNet, context: Context, dataset: ZeroShotDataset) -> dict[str, float]:
    """T1 and the best H of the glance: image by image, class by class, delta by delta."""
    network = copy.deepcopy(network).eval()

    def logits(row: int, classes: list[int]) -> dict[int, float]:
        images = next(context.loader.centre_crops(np.array([row]), 1)).images
        a_g = network.glance(images).a_g
        phi = torch.from_numpy(dataset.unit_attributes)
        return {one: float(network.global_compatibility(a_g, phi[one : one + 1])) for one in classes}

    def mean_over_classes(right: list[tuple[int, bool]]) -> float:
        own = {label: [hit for other, hit in right if other == label] for label, _ in right}
        return float(np.mean([np.mean(hits) for hits in own.values()]))

    seen, unseen = dataset.seen.tolist(), dataset.unseen.tolist()
    scores = {row: logits(row, seen + unseen) for row in (*dataset.test_seen.tolist(), *dataset.test_unseen.tolist())}
    labels = dataset.labels.tolist()
    best = {row: (max(seen, key=own.__getitem__), max(unseen, key=own.__getitem__)) for row, own in scores.items()}
    t1 = mean_over_classes([(labels[row], best[row][1] == labels[row]) for row in dataset.test_unseen.tolist()])
    gaps = sorted(own[best[row][0]] - own[best[row][1]] for row, own in scores.items())
    found = []
    for delta in (0.0, *((a + b) / 2 for a, b in pairwise(gaps)), gaps[-1] + 1):
        if delta < 0:
            continue
        answers = {row: best[row][own[best[row][0]] - own[best[row][1]] < delta] for row, own in scores.items()}
        u, s = (
            mean_over_classes([(labels[row], answers[row] == labels[row]) for row in rows.tolist()])
            for rows in (dataset.test_unseen, dataset.test_seen)
        )
        found.append(2 * u * s / (u + s) if u + s else 0.0)
    return {"t1": t1, "h": max(found)}


@pytest.fixture
def every_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """All validation images are looked at: of the few of a tiny dataset most are wrong."""
    monkeypatch.setattr(validation, "SHARE", 100.0)
    monkeypatch.setattr(validation, "HARDNET_SHARE", 100.0)


def test_every_epoch_has_its_points(tiny_config: Config, creatures: Path, tmp_path: Path) -> None:
    config = replace(_longer(tiny_config, 3, 2), evaluation=replace(tiny_config.evaluation, folds=2))
    train_run(config, creatures, tmp_path / "run")
    points = _points(tmp_path / "run" / "logs" / "validation")
    names = {
        f"fold{fold}/stage{stage}/validation/{name}" for fold in (0, 1) for stage in (1, 2) for name in ("t1", "h")
    }
    assert _of_validation(points).keys() == names
    for fold in ("fold0", "fold1"):
        for tag in ("stage1/validation/t1", "stage1/validation/h", "stage1/loss/total", "learning_rate/stage1"):
            assert _steps(points[f"{fold}/{tag}"]) == [1, 2, 3]
        for tag in ("stage2/validation/t1", "stage2/validation/h", "stage2/mean_return", "learning_rate/stage2"):
            assert _steps(points[f"{fold}/{tag}"]) == [1, 2]
        assert points[f"{fold}/learning_rate/stage2"][0][1] == pytest.approx(config.stage2.lr)
    assert all(0 <= value <= 1 for found in _of_validation(points).values() for _, value in found)
    final = _points(tmp_path / "run" / "logs")
    assert _of_validation(final) == {}  # no class is held out of it
    assert _steps(final["learning_rate/stage2"]) == [1, 2]
    assert {"stage1/loss/total", "test/t1"} <= final.keys()


STAGE1: list[dict[str, Any]] = [{}, {"ema_decay": 0.0}, {"freeze_backbone": True, "lr": 0.02}]


@pytest.mark.parametrize("settings", STAGE1)
@pytest.mark.parametrize("hubness", [0.0, 0.5])
def test_the_last_glances_are_the_networks(
    tiny_config: Config,
    dataset: ZeroShotDataset,
    tmp_path: Path,
    every_image: None,
    settings: dict[str, Any],
    hubness: float,
) -> None:
    """Of a network that has localities too; its hubness correction is left out."""
    config = _longer(replace(tiny_config, model=replace(tiny_config.model, hubness=hubness)), 12, 1, **settings)
    context, fold = open_context(config, dataset), dataset.validation(1)[0]
    checked = Validation(context, fold)
    assert sorted(checked.dataset.test_seen) == sorted(fold.test_seen)
    assert sorted(checked.dataset.test_unseen) == sorted(fold.test_unseen)
    log = Log(tmp_path / "logs")
    network = run_stage1(context, fold, log, validation=checked)
    log.close()
    expected, found = _slowly(network, context, checked.dataset), _points(tmp_path / "logs")
    assert expected["t1"] > 0
    assert expected["h"] > 0
    for name, value in expected.items():
        assert _steps(found[f"stage1/validation/{name}"]) == list(range(1, 13))
        assert found[f"stage1/validation/{name}"][-1][1] == pytest.approx(value)


@pytest.mark.parametrize("settings", STAGE1)
def test_glances_between_are_of_averaged_weights(
    tiny_config: Config, dataset: ZeroShotDataset, every_image: None, settings: dict[str, Any]
) -> None:
    config = _longer(tiny_config, 12, 1, **settings)
    context, fold = open_context(config, dataset), dataset.validation(1)[0]
    trainer = Stage1Trainer(context, create_network(config, len(dataset.attribute_names)), fold)
    checked, found = Validation(context, fold), []
    for _ in range(8):
        trainer.epoch(lambda: None)
        expected = copy.deepcopy(trainer._network)  # with the statistics of what was trained
        if trainer._ema is not None:
            for own, averaged in zip(expected.parameters(), trainer._ema.network.parameters(), strict=True):
                own.data.copy_(averaged)
        found.append(trainer.validate(checked))
        assert found[-1] == pytest.approx(_slowly(expected, context, checked.dataset))
    assert len({one["t1"] for one in found}) > 1


@pytest.mark.parametrize(("variant", "frozen"), [("erpcnet", False), ("erpcnet", True), ("hardnet", False)])
@pytest.mark.parametrize("sigma", [None, 0.4])
def test_the_policys_points_are_those_of_rollouts(
    tiny_config: Config,
    dataset: ZeroShotDataset,
    tmp_path: Path,
    every_image: None,
    variant: Variant,
    frozen: bool,
    sigma: float | None,
) -> None:
    config = _longer(replace(tiny_config, variant=variant), 6, 2, freeze_backbone=frozen)
    config = replace(config, model=replace(config.model, sigma=sigma))
    context, fold = open_context(config, dataset), dataset.validation(1)[0]
    log, checked = Log(tmp_path / "logs"), Validation(context, fold)
    network = run_stage1(context, fold, Log())
    run_stage2(context, network, fold, log, validation=checked)
    log.close()
    rollouts = rollout_test(context, network, checked.dataset)
    point = choose_on_test(rollouts, math.inf if sigma is None else sigma, None, stop_loss=0.0)
    expected, found = measure(rollouts, point, seed=0), _points(tmp_path / "logs")
    assert expected.h is not None
    assert expected.t1 > 0
    assert found["stage2/validation/t1"][-1] == (2, pytest.approx(expected.t1))
    assert found["stage2/validation/h"][-1] == (2, pytest.approx(expected.h))


TRAININGS: list[tuple[Variant, dict[str, Any]]] = [
    ("erpcnet", {"mixup": 0.3}),
    ("erpcnet", {"freeze_norms": True, "ema_decay": 0.0}),
    ("erpcnet", {"freeze_backbone": True}),
    ("hardnet", {}),
    ("globalnet", {}),
]


@pytest.mark.parametrize(("variant", "settings"), TRAININGS)
def test_weights_are_those_without_the_log(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, variant: Variant, settings: dict[str, Any]
) -> None:
    """To the bit, with all that is random: dropout, swapped e_g, cells and crops."""
    config = replace(tiny_config, variant=variant, model=replace(tiny_config.model, dropout=0.3, hubness=0.3))
    context, fold = open_context(_longer(config, 3, 3, **settings), dataset), dataset.validation(1)[0]
    plain = train_network(context, fold, Log())
    expected, drawn = copy.deepcopy(plain.state_dict()), torch.get_rng_state()
    log = Log(tmp_path / "logs")
    watched = train_network(context, fold, log, validation=Validation(context, fold))
    log.close()
    assert _steps(_points(tmp_path / "logs")["stage1/validation/t1"]) == [1, 2, 3]
    found = watched.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not watched.training


@pytest.mark.parametrize("settings", STAGE1)
def test_what_is_trained_stays_as_it_is(
    tiny_config: Config, dataset: ZeroShotDataset, settings: dict[str, Any]
) -> None:
    config = _longer(tiny_config, 4, 1, freeze_norms=True, **settings)
    context, fold = open_context(config, dataset), dataset.validation(1)[0]
    trainer = Stage1Trainer(context, create_network(config, len(dataset.attribute_names)), fold)
    checked = Validation(context, fold)
    trainer.epoch(lambda: None)

    def modes() -> list[bool]:
        networks = [trainer._network, *([] if trainer._ema is None else [trainer._ema.network])]
        return [module.training for network in networks for module in network.modules()]

    before, was = copy.deepcopy(trainer.state_dict()), modes()
    assert len(set(was)) == 2  # the norms that are frozen, and all others
    trainer.validate(checked)
    assert modes() == was
    after = trainer.state_dict()
    for part in ("network", *(["ema"] if trainer._ema is not None else [])):
        states = [state[part] if part == "network" else state[part]["network"] for state in (before, after)]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(torch.equal(*both) for both in zip(before["torch_random"], after["torch_random"], strict=True))
    assert torch.equal(before["random"]["crops"], after["random"]["crops"])


class _Breaking(Log):
    """Breaks off once it has written a point."""

    place: tuple[str, int] = ("", 0)

    def scalars(self, group: str, values: dict[str, float], step: int) -> None:
        super().scalars(group, values, step)
        if (f"{self._within}{group}", step) == self.place:
            raise KeyboardInterrupt


@pytest.mark.parametrize("minutes", [0.0, 5.0])
def test_a_resumed_run_writes_points_once(
    tiny_config: Config, creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    """With a checkpoint after every epoch, and with none, so that all is done again."""
    config = replace(_longer(tiny_config, 3, 3), checkpoint_minutes=minutes)
    train_run(config, creatures, tmp_path / "whole")
    for place in [("fold0/stage1/validation", 2), ("fold0/stage1/validation", 3), ("fold0/stage2/validation", 2)]:
        monkeypatch.setattr(_Breaking, "place", place)
        with monkeypatch.context() as breaking:
            breaking.setattr(erpcnet.training.runs, "Log", _Breaking)
            with pytest.raises(KeyboardInterrupt):
                train_run(config, creatures, tmp_path / "parts")
    train_run(config, creatures, tmp_path / "parts")
    for folder in ("validation", ""):
        whole, parts = (_points(tmp_path / name / "logs" / folder) for name in ("whole", "parts"))
        assert parts == whole
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (
        tmp_path / "parts" / "model.safetensors"
    ).read_bytes()


def test_a_file_cut_off_is_written_on(tmp_path: Path) -> None:
    """What a process left that was killed while it wrote."""
    log = Log(tmp_path)
    for step in (1, 2, 3):
        log.scalars("stage1/validation", {"t1": step / 10}, step)
    log.close()
    (file,) = tmp_path.glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:-5])
    log = Log(tmp_path)
    for step in (2, 3, 4):
        log.scalars("stage1/validation", {"t1": step / 10}, step)
    log.close()
    assert _points(tmp_path)["stage1/validation/t1"] == [(step, pytest.approx(step / 10)) for step in (1, 2, 3, 4)]


def test_points_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from erpcnet.training import Log; "
        "Log(Path(sys.argv[1])).scalars('stage1/validation', {'t1': 0.5}, 1); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 9
    assert _points(tmp_path) == {"stage1/validation/t1": [(1, 0.5)]}


@pytest.mark.slow
def test_of_two_processes_one_writes(tmp_path: Path) -> None:
    """HardNet, which each rolls out a part of; for ERPCNet see test_processes.py."""
    data, out = draw_tiny(tmp_path / "creatures"), tmp_path / "run"
    words = campaign.words_of(data, out, "--variant", "hardnet", "--stage1.epochs", "3", "--stage2.epochs", "2")
    told = campaign.finish(campaign.launch(2, words))
    assert told.code == 0, told.said
    assert len(list((out / "logs" / "validation").glob("*tfevents*"))) == 1
    points = _points(out / "logs" / "validation")
    for name in ("t1", "h"):
        assert _steps(points[f"fold0/stage1/validation/{name}"]) == [1, 2, 3]
        assert _steps(points[f"fold0/stage2/validation/{name}"]) == [1, 2]


def test_validation_images_are_not_compiled_for(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their batches have other sizes than those of training, and a new size takes a minute."""
    compiled: list[object] = []

    def backend(module: Any, _inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    monkeypatch.setattr(ERPCNet, "compile_convolutions", partialmethod(ERPCNet.compile_convolutions, backend))
    config = replace(tiny_config, compile=True)
    context, fold = open_context(config, dataset), dataset.validation(1)[0]
    network, checked = create_network(config, len(dataset.attribute_names)), Validation(context, fold)
    checked.of_glances(network)
    checked.of_policy(network)()
    assert compiled == []
    network.eval()
    with torch.no_grad():
        network.glance(torch.rand(2, 3, 64, 64))
    assert compiled


def test_images_are_spread_over_classes() -> None:
    labels = np.repeat(np.arange(5), [10, 2, 10, 7, 1])
    rows = np.arange(len(labels))[::-1].copy()

    def taken(count: int) -> dict[int, int]:
        return dict(Counter(labels[spread(rows, labels, count)].tolist()))

    assert taken(3) == {0: 1, 2: 1, 4: 1}
    assert taken(5) == taken(8) == dict.fromkeys(range(5), 1)
    assert taken(9) == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1}
    assert taken(100) == {0: 10, 1: 2, 2: 10, 3: 7, 4: 1}
    own = spread(rows, labels, 9)
    assert set(own) <= set(rows)
    assert len(set(own)) == 9
    assert own[labels[own] == 0].tolist() == [2, 7]  # the middles of both halves
    assert spread(rows[:0], labels, 3).tolist() == []


def test_few_images_but_every_validation_class(dataset: ZeroShotDataset) -> None:
    fold = dataset.validation(1)[0]
    few = with_few_test_images(fold, 1)
    assert few.unseen.tolist() == fold.unseen.tolist()
    assert len(few.test_unseen) == len(fold.unseen)
    assert len(few.test_seen) == 1
    assert set(few.test_seen) <= set(fold.test_seen)
    assert few.train.tolist() == fold.train.tolist()
    none = with_few_test_images(replace(fold, test_seen=fold.test_seen[:0]), 8)
    assert (len(none.test_seen), len(none.test_unseen)) == (0, 4)


def test_without_seen_images_there_is_no_h(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    context, fold = open_context(tiny_config, dataset), dataset.validation(1)[0]
    network = create_network(tiny_config, len(dataset.attribute_names))
    checked = Validation(context, replace(fold, test_seen=fold.test_seen[:0]))
    assert checked.of_glances(network).keys() == checked.of_policy(network)().keys() == {"t1"}
