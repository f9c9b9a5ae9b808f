from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import erpcnet.training.runs
from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.errors import InputError
from erpcnet.training import (
    Checkpoint,
    Checkpoints,
    DirectSource,
    Log,
    TableSource,
    checkpoint,
    open_context,
    policy_table,
    train_stage2,
)
from erpcnet.training.pipeline import run_stage1, run_stage2, train_network
from erpcnet.training.resume import Unfinished
from erpcnet.training.runs import train_run


class Interrupted(Log):
    """Breaks off where it is told of an epoch of a stage."""

    def __init__(self, group: str, epoch: int) -> None:
        super().__init__()
        self._where = group, epoch

    def scalars(self, group: str, values: dict[str, float], step: int) -> None:
        if (group, step) == self._where:
            raise KeyboardInterrupt


def _note(told: list[int], group: str, step: int) -> None:
    """The epochs of Stage I whose losses are logged."""
    if group == "stage1/loss":
        told.append(step)


def _interrupt() -> None:
    raise KeyboardInterrupt


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


STAGE1: list[dict[str, Any]] = [
    {"mixup": 0.3},
    {"schedule": "onecycle", "optimizer": "adamw", "ema_decay": 0.0},
    {"schedule": "step", "step_epochs": 1, "freeze_norms": True, "detach_global": True},
]


@pytest.mark.parametrize("stage1", STAGE1)
def test_stage_1_resumes_to_the_bit(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, stage1: dict[str, Any]
) -> None:
    # Dropout, swapped e_g and cells in random order: all that is random.
    config = replace(
        tiny_config,
        model=replace(tiny_config.model, dropout=0.3),
        stage1=replace(tiny_config.stage1, epochs=4, **stage1),
    )
    context = open_context(config, dataset)
    expected = run_stage1(context, dataset, Log()).state_dict()
    path = tmp_path / "stage1.pt"
    with pytest.raises(KeyboardInterrupt):
        run_stage1(context, dataset, Interrupted("stage1/loss", 3), Checkpoint(path, every=0))
    told: list[int] = []
    log = Log()
    log.scalars = lambda group, values, step: _note(told, group, step)  # type: ignore[method-assign]
    torch.manual_seed(99)  # another process, which has drawn other things
    assert_same(run_stage1(context, dataset, log, Checkpoint(path, every=0)).state_dict(), expected)
    assert told == [3, 4]
    # What is finished is not done again.
    again = run_stage1(context, dataset, Interrupted("stage1/loss", 1), Checkpoint(path))
    assert_same(again.state_dict(), expected)
    assert not again.training


@pytest.mark.parametrize("kind", ["table", "direct"])
def test_stage_2_resumes_to_the_bit(tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, kind: str) -> None:
    settings = replace(tiny_config.stage2, epochs=4)
    context = open_context(replace(tiny_config, stage2=settings), dataset)
    network = run_stage1(context, dataset, Log())
    assert network.policy is not None

    def run(log: Log, checkpoint: Checkpoint) -> None:
        source = (
            DirectSource(network, dataset, context.loader, settings, seed=0)
            if kind == "direct"
            else TableSource(policy_table(network, dataset, context.loader, settings, seed=0), dataset, settings.crops)
        )
        train_stage2(network, source, settings, seed=0, log=log, checkpoint=checkpoint)

    start = {name: value.clone() for name, value in network.policy.state_dict().items()}
    run(Log(), Checkpoint())
    expected = {name: value.clone() for name, value in network.policy.state_dict().items()}
    path = tmp_path / "stage2.pt"
    network.policy.load_state_dict(start)
    with pytest.raises(KeyboardInterrupt):
        run(Interrupted("stage2", 3), Checkpoint(path, every=0))
    network.policy.load_state_dict(start)
    run(Log(), Checkpoint(path, every=0))
    assert_same(network.policy.state_dict(), expected)


def test_a_finished_stage_2_is_not_done_again(tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path) -> None:
    context = open_context(tiny_config, dataset)
    network = run_stage1(context, dataset, Log())
    assert network.policy is not None
    start = {name: value.clone() for name, value in network.policy.state_dict().items()}
    path = tmp_path / "stage2.pt"
    run_stage2(context, network, dataset, Log(), Checkpoint(path))
    expected = {name: value.clone() for name, value in network.policy.state_dict().items()}
    network.policy.load_state_dict(start)
    run_stage2(context, network, dataset, Interrupted("stage2", 1), Checkpoint(path))
    assert_same(network.policy.state_dict(), expected)


def test_an_interrupted_run_ends_as_one_that_is_not(
    tiny_config: Config, creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = replace(tiny_config.evaluation, folds=2)
    stage1 = replace(tiny_config.stage1, epochs=2)
    config = replace(tiny_config, checkpoint_minutes=0.0, stage1=stage1, evaluation=evaluation)
    seldom = replace(config, checkpoint_minutes=5.0)
    whole = train_run(seldom, creatures, tmp_path / "whole")
    out = tmp_path / "parts"
    # Of the trainings without each fold's validation classes, and of the final one.
    places = [("stage1/loss", 2), ("stage2", 2)] * 3 + [("test", 0)]
    for place, settled in zip(places, (False, False, False, False, True, True, True), strict=True):
        monkeypatch.setattr(erpcnet.training.runs, "Log", lambda _folder, place=place: Interrupted(*place))
        with pytest.raises(KeyboardInterrupt):
            train_run(config, creatures, out)
        assert (out / "unfinished" / "operating_point.json").exists() == settled
        assert not (out / "model.safetensors").exists()
    monkeypatch.undo()
    monkeypatch.setattr(erpcnet.training.runs, "draw_examples", lambda *_: _interrupt())
    with pytest.raises(KeyboardInterrupt):
        train_run(config, creatures, out)
    assert (out / "model.safetensors").exists()  # but the run is not whole
    monkeypatch.undo()
    with pytest.raises(InputError, match="unfinished run with another seed"):
        train_run(replace(config, seed=5), creatures, out)
    dataset = read_dataset(creatures)
    for other in (
        replace(dataset, train=dataset.train[1:]),
        replace(dataset, attributes=dataset.attributes + 1),
        replace(dataset, image_paths=(*dataset.image_paths[1:], dataset.image_paths[0])),
        replace(dataset, folds=dataset.folds[1:]),
    ):
        with pytest.raises(InputError, match="unfinished run with other data"):
            Unfinished(out, config, other)
    with pytest.raises(InputError, match="unfinished run with other settings"):
        train_run(replace(config, stage1=replace(config.stage1, lr=1e-4)), creatures, out)
    assert train_run(seldom, creatures, out) == whole
    assert not (out / "unfinished").exists()
    with pytest.raises(InputError, match="holds a run already"):
        train_run(config, creatures, out)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", out)]
    assert weights[0] == weights[1]


def test_checkpoints_are_written_every_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    kept = Checkpoint(tmp_path / "deep" / "stage1.pt", every=60)
    module = torch.nn.Linear(2, 2)
    found = []
    for epoch in range(1, 8):
        now += 25
        kept.save(module, epoch)
        found.append(Checkpoint(tmp_path / "deep" / "stage1.pt").resume(module))
    assert found == [0, 0, 3, 3, 3, 6, 6]
    silent = Checkpoint(tmp_path / "other.pt", every=0, writes=False)
    silent.save(module, 1)
    silent.finish(module)
    Checkpoint().finish(module)
    assert sorted(path.name for path in tmp_path.rglob("*.p*")) == ["stage1.previous.pt", "stage1.pt"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _other(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 not really")


@pytest.mark.parametrize("damage", [_cut, _flip, _empty, _other])
@pytest.mark.parametrize("both", [False, True])
def test_a_damaged_checkpoint_is_set_aside(
    tiny_config: Config,
    dataset: ZeroShotDataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    both: bool,
) -> None:
    """The one before it is used, or else the stage starts again; the outcome is the same to the bit."""
    config = replace(tiny_config, stage1=replace(tiny_config.stage1, epochs=4))
    context = open_context(config, dataset)
    expected = run_stage1(context, dataset, Log()).state_dict()
    path = tmp_path / "stage1.pt"
    with pytest.raises(KeyboardInterrupt):
        run_stage1(context, dataset, Interrupted("stage1/loss", 4), Checkpoint(path, every=0))
    assert checkpoint._read(path)["epochs"] == 3
    assert checkpoint._read(tmp_path / "stage1.previous.pt")["epochs"] == 2
    damage(path)
    if both:
        damage(tmp_path / "stage1.previous.pt")
    told: list[int] = []
    log = Log()
    log.scalars = lambda group, values, step: _note(told, group, step)  # type: ignore[method-assign]
    assert_same(run_stage1(context, dataset, log, Checkpoint(path, every=0)).state_dict(), expected)
    assert told == ([1, 2, 3, 4] if both else [3, 4])
    assert capsys.readouterr().err.count("set aside") == 1 + both
    assert (tmp_path / "stage1.damaged").is_file()


def test_a_damaged_outcome_is_made_again(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = open_context(tiny_config, dataset)
    expected = train_network(context, dataset, Log(), Checkpoints(tmp_path)).state_dict()
    _flip(tmp_path / "stage2.pt")
    assert_same(train_network(context, dataset, Log(), Checkpoints(tmp_path)).state_dict(), expected)
    assert "stage2.pt is damaged" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.slow
def test_a_killed_command_is_resumed(creatures: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "erpcnet", "train", "--config", "creatures", "--dataset", str(creatures)),
        *("--out", str(tmp_path / "run"), "--checkpoint_minutes", "0", "--data.image_size", "64"),
        *("--stage1.epochs", "60", "--stage1.batch_size", "16", "--variant", "globalnet"),
        *("--model.sigma", "1", "--model.delta", "0.5"),
    ]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=hidden)
    kept = tmp_path / "run" / "unfinished" / "final" / "stage1.pt"
    deadline = time.monotonic() + 300
    while not kept.exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    done = checkpoint._read(kept)["epochs"]
    assert 1 <= done < 60
    second = subprocess.run(command, env=hidden, capture_output=True, text=True, check=True)
    assert "holds an unfinished run; resuming it" in " ".join(second.stderr.split())
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["protocol"] == "fixed"


def test_a_run_killed_in_its_last_cleaning_is_whole(
    tiny_config: Config, creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    config = replace(tiny_config, variant="globalnet")
    with monkeypatch.context() as dying:
        plain = shutil.rmtree

        def rmtree(path: Path, *more: object, **named: object) -> None:
            if Path(path).name == ".unfinished-done" and Path(path).exists():
                _interrupt()
            plain(path, *more, **named)  # type: ignore[arg-type]

        dying.setattr(shutil, "rmtree", rmtree)
        with pytest.raises(KeyboardInterrupt):
            train_run(config, creatures, out)
    assert (out / ".unfinished-done").is_dir()
    weights = (out / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="holds a run already"):
        train_run(replace(config, seed=5), creatures, out)  # another one
    metrics = train_run(config, creatures, out)
    assert json.loads(json.dumps(metrics.to_json())) == {
        name: value for name, value in json.loads((out / "metrics.json").read_text()).items() if name != "data"
    }
    assert (out / "model.safetensors").read_bytes() == weights
    assert not (out / ".unfinished-done").exists()
    with pytest.raises(InputError, match="holds a run already"):
        train_run(config, creatures, out)
