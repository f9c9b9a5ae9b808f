"""What ends a training, or changes how it is done: losses that are no numbers, and memory that does not suffice."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import small_network
from erpcnet.cli import main
from erpcnet.config import BackboneSettings, Config, JointSettings, ModelSettings, PolicySettings, Variant, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.local_subnets import WindowSubnet
from erpcnet.training import Checkpoint, Context, Log, memory_saving, open_context, stage1
from erpcnet.training import stage2 as erpcnet_stage2
from erpcnet.training.checkpoint import _read
from erpcnet.training.context import create_network
from erpcnet.training.gradient_step import gradient_step
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.memory_saving import MemorySavingStep, check_memory, convolution_blocks, whole_batches
from erpcnet.training.pipeline import run_stage1, run_stage2
from erpcnet.training.stage1 import Stage1Trainer
from erpcnet.training.stage1_sources import ImageSource, RandomStreams, Share, Stage1Batch


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def _poison(monkeypatch: pytest.MonkeyPatch, at: int) -> list[Tensor]:
    """Of the batches of all epochs, one has a picture that is no numbers; returns the rows of all."""
    plain, seen = ImageSource.epoch, list[Tensor]()

    def epoch(self: ImageSource, random: RandomStreams, share: Share) -> Any:
        for batch in plain(self, random, share):
            seen.append(batch.rows)
            shown = batch.shown.clone()
            if len(seen) == at:
                shown[1] = float("nan")
            yield Stage1Batch(shown, batch.localities, batch.rows)

    monkeypatch.setattr(ImageSource, "epoch", epoch)
    return seen


def _context(config: Config, dataset: ZeroShotDataset, variant: Variant = "globalnet", **settings: Any) -> Context:
    return open_context(replace(config, variant=variant, stage1=replace(config.stage1, **settings)), dataset)


def test_a_nan_loss_names_its_batch_and_keeps_the_checkpoint(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _context(tiny_config, dataset, epochs=4)
    expected = run_stage1(context, dataset, Log()).state_dict()
    batches = len(dataset.train) // 16
    path = tmp_path / "stage1.pt"
    with monkeypatch.context() as poisoned:
        seen = _poison(poisoned, at=3 * batches + 1)
        with pytest.raises(InputError) as raised:
            run_stage1(context, dataset, Log(), Checkpoint(path, every=0))
    assert len(seen) == 3 * batches + 1  # no step is taken after it
    names = ", ".join(dataset.image_paths[row] for row in seen[-1][:3].tolist())
    assert str(raised.value) == (
        f"Stage I, epoch 4, step 1, with {names} and others in the batch: the training has diverged (total is nan); "
        "lower --stage1.lr and give another --out. Nothing of this epoch is kept; the same command goes on from the "
        "checkpoint before it."
    )
    assert _read(path)["epochs"] == 3
    _same(run_stage1(context, dataset, Log(), Checkpoint(path, every=0)).state_dict(), expected)


def test_a_weight_that_is_no_number_is_never_kept(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of an epoch leaves it: no loss has been computed with it yet."""
    context = _context(tiny_config, dataset, epochs=3)
    expected = run_stage1(context, dataset, Log()).state_dict()
    batches, steps, plain = len(dataset.train) // 16, list[int](), Stage1Trainer._step

    def step(self: Stage1Trainer, batch: Stage1Batch) -> dict[str, Tensor]:
        losses = plain(self, batch)
        steps.append(1)
        if len(steps) == 2 * batches:
            self._network.global_predictor.get_parameter("0.weight").data[0, 0] = float("inf")
        return losses

    path = tmp_path / "stage1.pt"
    with monkeypatch.context() as poisoned:
        poisoned.setattr(Stage1Trainer, "_step", step)
        with pytest.raises(InputError, match=rf"epoch 2, step {batches}, with .*global_predictor\.0\.weight is nan"):
            run_stage1(context, dataset, Log(), Checkpoint(path, every=0))
    assert _read(path)["epochs"] == 1
    _same(run_stage1(context, dataset, Log(), Checkpoint(path, every=0)).state_dict(), expected)


def test_a_gpu_is_asked_seldom(tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loss is looked at every few steps, the step that is named is still the first one that is wrong."""
    context = _context(tiny_config, dataset, batch_size=8)
    batches = len(dataset.train) // 8
    assert batches > 3
    seen = _poison(monkeypatch, at=2)
    monkeypatch.setattr(stage1, "CHECK_EVERY", 3)
    trainer = Stage1Trainer(context, create_network(context.config, len(dataset.attribute_names)), dataset)
    trainer._asks_each_step = False
    with pytest.raises(InputError, match="epoch 1, step 2, with") as raised:
        trainer.epoch(lambda: None)
    assert len(seen) == 3
    assert dataset.image_paths[seen[1][0]] in str(raised.value)


def test_the_command_line_says_it_in_a_sentence(
    creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _poison(monkeypatch, at=1)
    words = ["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(tmp_path / "run")]
    assert main([*words, "--data.image_size", "64", "--stage1.batch_size", "16", "--variant", "globalnet"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("erpcnet: Stage I, epoch 1, step 1, with images/")
    assert not (tmp_path / "run").exists()


def test_stage_2_keeps_no_policy_of_no_numbers(
    tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(tiny_config, dataset)
    network = run_stage1(context, dataset, Log())
    assert network.policy is not None
    start = copy.deepcopy(network.policy.state_dict())
    run_stage2(context, network, dataset, Log())
    expected = copy.deepcopy(network.policy.state_dict())
    network.policy.load_state_dict(start)
    path, trainer = tmp_path / "stage2.pt", erpcnet_stage2.Stage2Trainer
    plain = trainer.epoch
    epochs: list[int] = []

    def epoch(self: erpcnet_stage2.Stage2Trainer) -> dict[str, float]:
        metrics = plain(self)
        epochs.append(1)
        if len(epochs) == 2:
            next(self.policy.parameters()).data[0] = float("nan")
        return metrics

    with monkeypatch.context() as poisoned:
        poisoned.setattr(trainer, "epoch", epoch)
        with pytest.raises(InputError, match=r"Stage II, epoch 2: the training has diverged .*lower --stage2\.lr"):
            run_stage2(context, network, dataset, Log(), Checkpoint(path, every=0))
    assert _read(path)["epochs"] == 1
    network.policy.load_state_dict(start)
    run_stage2(context, network, dataset, Log(), Checkpoint(path, every=0))
    _same(network.policy.state_dict(), expected)


# What is raised where memory does not suffice: of a GPU, of a CPU on Linux and on Windows, and of Python.
EXHAUSTED: dict[str, Exception] = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "linux": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1073741824 bytes."),
    "python": MemoryError(),
}


def _hungry(most: int, error: Exception = EXHAUSTED["gpu"]) -> Callable[..., dict[str, Tensor]]:
    """The losses, where memory suffices for so many images."""
    plain = Stage1Loss.forward

    def forward(self: Stage1Loss, images: Tensor, *rest: Any) -> dict[str, Tensor]:
        if len(images) > most:
            raise error
        return plain(self, images, *rest)

    return forward


NO_DRAWS = JointSettings(global_swap=0.0, global_dropout=0.0)
SPLITS: list[tuple[Variant, dict[str, Any]]] = [("globalnet", {"mixup": 0.3}), ("hardnet", {"detach_global": True})]


@pytest.mark.parametrize(("variant", "settings"), SPLITS)
@pytest.mark.parametrize("most", [8, 3, 1])
def test_a_split_training_ends_as_a_whole_one(
    tiny_config: Config,
    dataset: ZeroShotDataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variant: Variant,
    settings: dict[str, Any],
    most: int,
) -> None:
    """With SGD: Adam's steps would make much of what rounding makes of gradients that are nearly 0."""
    config = replace(tiny_config, model=replace(tiny_config.model, joint=NO_DRAWS))
    sgd = {"freeze_norms": True, "optimizer": "sgd", "lr": 0.05, "schedule": "constant"}
    context = _context(config, dataset, variant, **sgd, **settings)
    start = create_network(context.config, len(dataset.attribute_names)).state_dict()
    whole = run_stage1(context, dataset, Log()).state_dict()
    capsys.readouterr()
    monkeypatch.setattr(Stage1Loss, "forward", _hungry(most))
    split = run_stage1(context, dataset, Log()).state_dict()
    told = [line for line in capsys.readouterr().err.replace("\n", " ").split("out of memory: ") if "parts" in line]
    assert len(told) == {8: 1, 3: 3, 1: 4}[most]
    assert all("--stage1.batch_size" in one and "--data.image_size" in one for one in told)
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, atol=1e-5, rtol=1e-4, msg=name)
    assert not all(torch.allclose(whole[name], value, atol=1e-3) for name, value in start.items())


@pytest.mark.parametrize("variant", ["globalnet", "erpcnet"])
@pytest.mark.parametrize("freeze_norms", [False, True])
def test_a_recomputed_training_ends_as_a_whole_one(
    tiny_config: Config,
    dataset: ZeroShotDataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variant: Variant,
    freeze_norms: bool,
) -> None:
    """Norms that learn, dropout, and images that are swapped: statistics count once, draws are the same."""
    config = replace(tiny_config, model=replace(tiny_config.model, dropout=0.3))
    context = _context(config, dataset, variant, freeze_norms=freeze_norms, epochs=2, ema_decay=0.0)
    whole = run_stage1(context, dataset, Log()).state_dict()
    capsys.readouterr()
    plain, calls, ran = Stage1Loss.losses, list[int](), list[int]()

    def losses(self: Stage1Loss, *rest: Any) -> dict[str, Tensor]:
        found = plain(self, *rest)
        calls.append(1)
        if len(calls) == 2:  # not in the first step, and late: the norms have seen the batch, and all was drawn
            block = convolution_blocks(self.network)[0]
            block.register_forward_pre_hook(lambda *_: ran.append(1))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(Stage1Loss, "losses", losses)
    network = run_stage1(context, dataset, Log())
    recomputed = network.state_dict()
    told = " ".join(capsys.readouterr().err.split())
    assert "computed again on the way back, with the same result, but slower; lower --stage1.batch_size" in told
    steps = 2 * (len(dataset.train) // 16)
    assert len(calls) == steps + 1
    assert len(ran) == steps - 1  # a hook runs before what is computed twice
    assert not any("forward" in vars(module) for module in network.modules())
    for name, value in whole.items():
        torch.testing.assert_close(recomputed[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_every_block_is_computed_again(dataset: ZeroShotDataset) -> None:
    network = small_network("erpcnet", attributes=7).train()
    blocks = convolution_blocks(network)
    assert isinstance(network.local, WindowSubnet)
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    parts = [network.backbone.trunk[1:], network.backbone.last, network.local.partial, network.local.extractor]
    assert all(id(parameter) in inside for part in parts for parameter in part.parameters())
    images, cells = torch.randn(4, 3, 64, 64), torch.arange(4)[:, None].repeat(1, 2)
    twin = copy.deepcopy(network)
    memory_saving.recompute(convolution_blocks(twin))
    kept = [_saved_bytes(one, images, cells) for one in (network, twin)]
    assert kept[1] < 0.5 * kept[0]
    for found, expected in zip(twin.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    _same(dict(twin.named_buffers()), dict(network.named_buffers()))


def _saved_bytes(network: ERPCNet, images: Tensor, cells: Tensor) -> int:
    """What is kept for the way back, which is taken then."""
    seen: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        seen[value.data_ptr()] = value.numel() * value.element_size()
        return value

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        found = network(images, cells)
    (found.a_g.sum() + found.a_j.sum()).backward()
    return sum(seen.values())


def test_what_cannot_be_split_any_further_is_refused(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage1Loss, "forward", _hungry(0))
    context = _context(tiny_config, dataset, freeze_norms=True)
    with pytest.raises(InputError, match=r"out of memory with one image at a time; lower --data\.image_size"):
        run_stage1(context, dataset, Log())


def test_batches_too_large_even_recomputed_are_refused(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage1Loss, "forward", _hungry(8))
    sentence = r"lower --stage1\.batch_size or --data\.image_size \(a batch is not computed in parts, as batch norms"
    with pytest.raises(InputError, match=sentence):
        run_stage1(_context(tiny_config, dataset), dataset, Log())


@pytest.mark.parametrize(
    ("variant", "changes", "frozen", "reason"),
    [
        ("globalnet", {}, ["backbone"], None),
        ("globalnet", {}, [], "batch norms"),
        ("globalnet", {"dropout": 0.1}, ["backbone"], "dropout"),
        ("erpcnet", {}, ["backbone", "local.extractor"], "batch norms"),  # of the partial convolution
        ("erpcnet", {}, ["backbone", "local"], "global_swap"),
        ("erpcnet", {"joint": JointSettings(global_swap=0.0)}, ["backbone", "local"], "global_dropout"),
        ("erpcnet", {"joint": NO_DRAWS}, ["backbone", "local"], None),
        ("hardnet", {"joint": NO_DRAWS}, ["backbone", "local.extractor"], None),
    ],
)
def test_which_batches_can_be_split(
    variant: Variant, changes: dict[str, Any], frozen: list[str], reason: str | None
) -> None:
    settings = ModelSettings(BackboneSettings("small", "none"), policy=PolicySettings(width=16, memory=8), **changes)
    network = ERPCNet(settings, 7, 64, variant)
    unused = [network.get_submodule(name) for name in frozen]
    found = whole_batches(network, unused)
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


def test_norms_of_a_frozen_backbone_do_not_count(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    model = replace(tiny_config.model, joint=NO_DRAWS)
    context = _context(replace(tiny_config, model=model), dataset, "erpcnet", freeze_backbone=True)
    network = create_network(context.config, len(dataset.attribute_names))
    assert stage1._memory_saving(context, network) == (None, [])
    moving = _context(replace(tiny_config, model=model), dataset, "erpcnet", freeze_norms=True)
    assert "batch norms" in str(stage1._memory_saving(moving, network)[0])


@pytest.mark.parametrize("error", EXHAUSTED.values(), ids=EXHAUSTED)
def test_every_way_to_run_out_is_met_alike(
    error: Exception, dataset: ZeroShotDataset, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _context(replace(tiny_config, variant="globalnet"), dataset, freeze_norms=True)
    trainer = Stage1Trainer(context, create_network(context.config, len(dataset.attribute_names)), dataset)
    monkeypatch.setattr(Stage1Loss, "forward", _hungry(5, error))
    trainer.epoch(lambda: None)
    assert trainer._gradients.parts == 4  # of 16 images: 4 each


def test_other_errors_are_not_taken_for_it(
    dataset: ZeroShotDataset, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage1Loss, "forward", _hungry(5, RuntimeError("shapes [1, 2] and [3] do not fit")))
    with pytest.raises(RuntimeError, match="do not fit"):
        run_stage1(_context(tiny_config, dataset, freeze_norms=True), dataset, Log())


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from torch import nn
from erpcnet.training.gradient_step import gradient_step
from erpcnet.training.memory_saving import MemorySavingStep

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, shown, localities, labels, phi):
        return {"total": self.layer(shown).square().mean()}

torch.manual_seed(0)
torch.set_num_threads(1)
objective, images, none = Wide(), torch.randn(32, 3, 128, 128), torch.zeros(32)
objective(images[:1], None, none, none)["total"].backward()
objective.zero_grad()
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 48 * 2**20,) * 2)
step = MemorySavingStep(gradient_step(objective), objective)
loss = step(images, None, none, none)["total"]
gradient = objective.layer.weight.grad.clone()
singly = torch.zeros_like(gradient)
for image in images.split(1):
    objective.zero_grad()
    (objective(image, None, none, none)["total"] / 32).backward()
    singly += objective.layer.weight.grad
torch.testing.assert_close(gradient, singly)
print(step.parts)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_a_cpu_that_has_no_more_memory_is_met() -> None:
    """What torch really raises: 32 images take 34 MiB and their gradient as much, within 48 MiB."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1
    assert "out of memory: from here on batches of 32 images are computed in 2 parts" in done.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"stage1": {"batch_size": 65536}},
            r"--stage1\.batch_size 65536 and --data\.image_size 4096 put 36 images of 4096 x 4096 pixels into memory "
            r"together, which takes 6\.8 GiB at least, and there are 4\.0 GiB; lower one of them",
        ),
        (
            {"stage1": {"batch_size": 8}, "model": {"local": {"zoom": 2}}, "data": {"image_size": 2048}},
            r"--stage2\.rollout_batch_size 256 and --data\.image_size 2048 with --model\.local\.zoom 2 put 36 images",
        ),
        (
            {"stage1": {"freeze_backbone": True}, "evaluation": {"batch_size": 50}},
            r"--evaluation\.batch_size 50 and --data\.image_size 4096 put 50 images",
        ),
        ({"stage1": {"batch_size": 8}, "stage2": {"rollout_batch_size": 8}, "evaluation": {"batch_size": 8}}, None),
        ({"variant": "globalnet", "stage1": {"batch_size": 8}, "evaluation": {"batch_size": 8}}, None),
    ],
)
def test_settings_that_no_memory_holds_are_refused(
    changes: dict[str, Any], sentence: str | None, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(dataset.train) == 36
    config = load_config("creatures", **{"data": {"image_size": 4096}, **changes})
    monkeypatch.setattr(memory_saving, "total_memory", lambda device: 4 * 2**30)
    if sentence is None:
        check_memory(config, dataset)
        return
    with pytest.raises(InputError, match=sentence):
        check_memory(config, dataset)
    monkeypatch.setattr(memory_saving, "total_memory", lambda device: None)  # of a device that does not tell
    check_memory(config, dataset)


def test_processes_share_what_a_batch_takes(dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"batch_size": 1}
    config = load_config("creatures", variant="globalnet", data={"image_size": 4096}, evaluation=small)
    monkeypatch.setattr(memory_saving, "total_memory", lambda device: 4 * 2**30)
    with pytest.raises(InputError, match="put 32 images"):
        check_memory(config, dataset)
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_memory(config, dataset)  # 16 images: 3 GiB


def test_nothing_is_made_for_settings_beyond_memory(
    creatures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_saving, "total_memory", lambda device: 2**20)
    words = ["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(tmp_path / "run")]
    assert main([*words, "--data.image_size", "4000"]) == 2
    assert "--data.image_size 4000 put 36 images" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Couples(nn.Module):
    """A loss over parts of different sizes, which counts how often it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sizes = nn.Linear(4, 3), list[int]()

    def forward(self, shown: Tensor, localities: Tensor | None, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        self.sizes.append(len(shown))
        if len(shown) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        found = self.layer(shown) @ phi.T + (0 if localities is None else localities.sum(dim=1, keepdim=True))
        loss = nn.functional.cross_entropy(found, labels)
        return {"loss": loss, "total": 2 * loss}


@pytest.mark.parametrize("with_localities", [False, True])
def test_parts_count_by_their_share(with_localities: bool) -> None:
    """Five images in parts of 2, 2 and 1, while phi, which has as many rows, stays whole."""
    shown, labels, phi = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 4]), torch.randn(5, 3)
    localities = torch.randn(5, 2) if with_localities else None
    objective = Couples()
    step = MemorySavingStep(gradient_step(objective), objective)
    losses = step(shown, localities, labels, phi)
    assert objective.sizes == [5, 3, 2, 2, 1]
    assert step.parts == 4
    weight = objective.layer.weight.detach().clone().requires_grad_()
    found = (shown @ weight.T + objective.layer.bias) @ phi.T
    expected = nn.functional.cross_entropy(
        found + (0 if localities is None else localities.sum(dim=1, keepdim=True)), labels
    )
    (2 * expected).backward()
    torch.testing.assert_close(losses["loss"], expected.detach())
    torch.testing.assert_close(losses["total"], 2 * expected.detach())
    torch.testing.assert_close(objective.layer.weight.grad, weight.grad)
    objective.sizes.clear()
    step(shown, localities, labels, phi)
    assert objective.sizes == [2, 2, 1]  # nobody tries the whole batch again
