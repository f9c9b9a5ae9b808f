"""What a bench times: steps of Stage I, epochs of Stage II, predictions, and how each grows.

Images, attributes and weights are drawn: what is timed depends on shapes alone. Rollouts take all T steps, the most
that early stop can leave; HardNet takes as many. For prediction every network is fused, as `erpcnet.load` does, and on
a GPU each is also captured as a CUDA graph.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from erpcnet.config import BackboneSettings, LocalSettings, ModelSettings, Stage1Settings, Stage2Settings, Variant
from erpcnet.data import Batch
from erpcnet.errors import InputError
from erpcnet.inference import Engine, Execution
from erpcnet.model import ERPCNet
from erpcnet.model.fusion import fuse
from erpcnet.model.localities import DirectLocalities, Localities
from erpcnet.model.locality_tables import LocalityTable, build_table
from erpcnet.training.gradient_step import GradientStep, gradient_step
from erpcnet.training.losses import Stage1Loss
from erpcnet.training.stage1_sources import random_cells
from erpcnet.training.stage2 import Stage2Trainer
from erpcnet.utils.cuda_graphs import WARMUP_RUNS, capture
from erpcnet.utils.runtime import Runtime, autocast_convolutions

ATTRIBUTES, CLASSES = 312, 150  # CUB's
MIN_REPEATS = 4  # quartiles of fewer say nothing

Stepper = Callable[[nn.Module], GradientStep]


@dataclass(frozen=True)
class BenchSettings:
    """What is measured: images of `image_size`, batches for Stage I and for prediction, images for Stage II; with
    `zoom` localities of ours are read again from images so many times larger.

    How Stage II grows is measured around `grown_images`.
    """

    backbone: str = "small"
    image_size: int = 112
    zoom: int = 1
    stage1_batches: tuple[int, ...] = (32,)
    batches: tuple[int, ...] = (1, 8, 32)
    stage2_images: int = 64
    grown_images: int = 64
    growth: bool = True
    repeats: int = 5
    device: str = "cpu"
    precision: torch.dtype | None = None

    @property
    def runtime(self) -> Runtime:
        return Runtime(self.precision)

    def __post_init__(self) -> None:
        sizes = (*self.batches, *self.stage1_batches, self.stage2_images)
        empty = not self.batches or not self.stage1_batches or min(sizes) < 1 or self.grown_images < 4
        if self.repeats < MIN_REPEATS or empty:
            raise InputError(
                f"a bench needs at least {MIN_REPEATS} repeats, for its quartiles, and batches of 1 image or more."
            )


CPU = BenchSettings()
GPU = BenchSettings(
    backbone="resnet50",
    image_size=224,
    stage1_batches=(64, 256),
    batches=(1, 8, 64, 256),
    stage2_images=4096,
    grown_images=1024,
    repeats=10,
    device="cuda",
    precision=torch.bfloat16,
)


@dataclass
class Case:
    """Something to time: `run` handles `images` images; `grown` says what differs from the usual settings."""

    group: str
    name: str
    batch: int
    images: int
    run: Callable[[], object]
    macs: float | None = None  # per image, forward
    grown: str = ""
    warming: int = 1  # runs before it is timed
    seconds: list[float] = field(default_factory=list)
    memory: float | None = None

    def warm(self) -> None:
        for _ in range(self.warming):
            self.run()

    def row(self) -> dict[str, Any]:
        """Medians per image, and the spread of the middle half."""
        quarter, middle, three = statistics.quantiles(self.seconds, n=4)
        return {
            "group": self.group,
            "name": self.name,
            "grown": self.grown,
            "batch": self.batch,
            "ms_per_image": 1000 * middle / self.images,
            "spread": (three - quarter) / middle,
            "gmac_per_image": None if self.macs is None else self.macs / 1e9,
            "peak_mib": self.memory,
        }


def all_cases(settings: BenchSettings) -> list[Case]:
    """Everything that these settings ask for."""
    cases = [*_stage1(settings), *_stage2(settings), *_inference(settings)]
    return cases + (_growth(settings) if settings.growth else [])


def _stage1(settings: BenchSettings) -> list[Case]:
    cases = []
    stepper = _stepper(settings)
    for size in settings.stage1_batches:
        cases += _bare_steps(_images(size, settings), settings, stepper)
        cases += [
            _stage1_step(variant, drawn_network(variant, settings), size, settings, stepper)
            for variant in ("globalnet", "pcnet", "hardnet")
        ]
    return cases


def _warming(settings: BenchSettings) -> int:
    """Runs after which what is captured on a GPU is replayed."""
    return WARMUP_RUNS + 1 if settings.device == "cuda" else 1


def _stepper(settings: BenchSettings) -> Stepper:
    """How training takes the gradients of an objective; steps that are timed by turns share their memory."""
    if settings.device != "cuda":
        return gradient_step
    return partial(gradient_step, graph_device=torch.device("cuda"), pool=torch.cuda.graph_pool_handle())


class _Bare(nn.Module):
    """The backbone alone, as an objective."""

    def __init__(self, network: ERPCNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        with autocast_convolutions(images):
            return {"total": self.network.backbone(images).mean()}


def _bare_steps(images: Tensor, settings: BenchSettings, stepper: Stepper) -> list[Case]:
    """The backbone forwards and backwards, as every step of Stage I is run; on a GPU also as it comes."""
    size = len(images)
    cases = []
    ways: dict[str, Stepper] = {"backbone": stepper}
    if images.is_cuda:
        ways["backbone, as it comes"] = gradient_step
    for name, how in ways.items():
        bare = _Bare(drawn_network("globalnet", settings).train())
        macs = count_macs(bare.network.backbone, images) / size
        warming = _warming(settings) if how is stepper else 1
        cases.append(Case("stage I", name, size, size, partial(how(bare), images), macs, warming=warming))
    return cases


def _stage1_step(
    name: str, network: ERPCNet, size: int, settings: BenchSettings, stepper: Stepper, grown: str = ""
) -> Case:
    images, phi = _images(size, settings, network.zoom), _phi(settings)
    labels = torch.randint(CLASSES, (size,), device=settings.device)
    objective = Stage1Loss(network.train(), Stage1Settings())
    optimizer = torch.optim.SGD(network.stage1_parameters(), lr=1e-4, momentum=0.9)
    cells = _cells(network, size, settings) if network.steps else None
    gradients = stepper(objective)

    def step() -> None:
        gradients(images, cells, labels, phi)
        optimizer.step()

    macs = count_macs(lambda: network(images, cells)) / size
    return Case("stage I", name, size, size, step, macs, grown, _warming(settings))


class _Drawn:
    """A source of drawn images; see `erpcnet.training.episode_sources.EpisodeSource`."""

    crops, generator, reload = 1, None, None

    def __init__(
        self,
        images: int,
        batch_size: int,
        settings: BenchSettings,
        take: Callable[[Tensor], Localities],
        is_lookup: bool = False,
    ) -> None:
        self.images, self.batch_size, self._take, self.is_lookup = images, batch_size, take, is_lookup
        self.phi = _phi(settings)
        self.labels = torch.randint(CLASSES, (images,), device=settings.device)

    def take(self, crop: Tensor, images: Tensor) -> Localities:
        return self._take(images)


def _stage2(settings: BenchSettings) -> list[Case]:
    count, once = settings.stage2_images, min(settings.stage2_images, Stage2Settings().rollout_batch_size)
    ours, hard = drawn_network("erpcnet", settings), drawn_network("hardnet", settings)
    images, patched = (_images(count, settings, network.zoom) for network in (ours, hard))
    batches = [Batch(images[rows], rows) for rows in torch.arange(count).split(once)]

    def build() -> Any:
        return build_table(ours, [batches], (1, count))

    sources = {
        "tables": (ours, _Drawn(count, count, settings, partial(_take, build()), is_lookup=True)),
        "direct": (ours, _Drawn(count, once, settings, lambda rows: DirectLocalities(ours, images[rows]))),
        "hardnet": (hard, _Drawn(count, once, settings, lambda rows: DirectLocalities(hard, patched[rows]))),
    }
    cases = [_stage2_epoch(name, network, source, settings) for name, (network, source) in sources.items()]
    return [*cases, Case("stage II", "building tables", count, count, build)]


def _stage2_epoch(
    name: str,
    network: ERPCNet,
    source: _Drawn,
    settings: BenchSettings,
    grown: str = "",
    minibatch_size: int | None = None,
) -> Case:
    usual = Stage2Settings(crops=1)
    own = replace(usual, minibatch_size=minibatch_size or usual.minibatch_size)
    trainer = Stage2Trainer(network, source, own, seed=0, runtime=settings.runtime)
    warming = _warming(settings) if source.is_lookup else 1
    return Case("stage II", name, source.images, source.images, trainer.epoch, grown=grown, warming=warming)


def _inference(settings: BenchSettings) -> list[Case]:
    ours, hard, bare = (drawn_network(variant, settings) for variant in ("erpcnet", "hardnet", "globalnet"))
    runtime = settings.runtime
    ways: list[tuple[str, _Twins, Execution]] = [
        ("sequential", _Twins(ours, runtime), "sequential"),
        ("parallel", _Twins(ours, runtime), "parallel"),
        ("hardnet", _Twins(hard, runtime), "sequential"),
    ]
    if settings.device == "cuda":
        ways += [
            ("graph", _Twins(ours, runtime), "parallel_graph"),
            ("sequential graph", _Twins(ours, runtime), "sequential_graph"),
            ("hardnet, graph", _Twins(hard, runtime), "sequential_graph"),
        ]
    fused = fuse(copy.deepcopy(bare), settings.precision)
    usual = bare.backbone.to(settings.precision)
    cases = []
    for size in settings.batches:
        images = _images(size, settings)
        finer = images if settings.zoom == 1 else _images(size, settings, settings.zoom)
        glance, embedding = _glance(fused, images), _embedding(usual, images.to(settings.precision))
        cases.append(Case("inference", "backbone", size, size, embedding, count_macs(embedding) / size))
        cases.append(Case("inference", "backbone, fused", size, size, glance))
        if settings.device == "cuda":
            cases.append(Case("inference", "backbone, graph", size, size, capture(glance, images.device)[0].replay))
        cases += [twins.case(name, way, finer if twins.zoom > 1 else images) for name, twins, way in ways]
    return cases


class _Twins:
    """A network and its fused twin: the latter is timed, the former says how much it computes.

    What fused convolutions and replayed graphs compute cannot be counted.
    """

    def __init__(self, network: ERPCNet, runtime: Runtime) -> None:
        self._network, self._fused = network, fuse(copy.deepcopy(network), runtime.precision)
        self._runtime, self.zoom = runtime, network.zoom

    def case(self, name: str, way: Execution, images: Tensor, grown: str = "") -> Case:
        engine, counted = (Engine(one, way, runtime=self._runtime) for one in (self._fused, self._network))
        size = len(images)
        macs = None if way.endswith("graph") else count_macs(lambda: counted.rollout(images[None])) / size
        return Case("inference", name, size, size, lambda: engine.rollout(images[None]), macs, grown)


def _glance(network: ERPCNet, images: Tensor) -> Callable[[], object]:
    @torch.inference_mode()
    def run() -> object:
        return network.glance(images)

    return run


def _embedding(backbone: nn.Module, images: Tensor) -> Callable[[], object]:
    @torch.inference_mode()
    def run() -> object:
        return backbone(images).mean(dim=(2, 3))

    return run


def _growth(settings: BenchSettings) -> list[Case]:
    """How a step, an epoch and a prediction grow with T, with the cells of the grid, and with the number of images."""
    cases: list[Case] = []
    stepper = _stepper(settings)
    for steps, stride in ((1, 3), (3, 3), (12, 3), (6, 4), (6, 2)):
        local = LocalSettings(stride=stride, zoom=settings.zoom)
        network = drawn_network("erpcnet", settings, local, steps)
        grown = f"T = {steps}" if stride == 3 else f"{network.grid.cells} cells"
        looking = drawn_network("pcnet", settings, local, steps)
        cases.append(_stage1_step("pcnet", looking, settings.stage1_batches[0], settings, stepper, grown))
        cases.append(_table_epoch(network, settings, settings.grown_images, grown))
        images = _images(max(settings.batches), settings, network.zoom)
        cases += [_Twins(network, settings.runtime).case(way, way, images, grown) for way in ("sequential", "parallel")]
    network = drawn_network("erpcnet", settings)
    for count in (settings.grown_images // 4, settings.grown_images * 4):
        cases.append(_table_epoch(network, settings, count, f"{count} images"))
    small = settings.grown_images // 4
    return [*cases, _table_epoch(network, settings, settings.grown_images * 4, f"minibatches of {small}", small)]


def _table_epoch(
    network: ERPCNet, settings: BenchSettings, count: int, grown: str, minibatch_size: int | None = None
) -> Case:
    """An epoch of Stage II on a table of `count` images, of which a few are computed and the others copies."""
    images = _images(min(count, 64), settings, network.zoom)
    table = build_table(network.eval(), [[Batch(images, torch.arange(len(images)))]], (1, len(images)))
    source = _Drawn(count, count, settings, lambda rows: _take(table, rows % len(table)), is_lookup=True)
    return _stage2_epoch("tables", network, source, settings, grown, minibatch_size)


def _take(table: LocalityTable, images: Tensor) -> Localities:
    return table.take(torch.zeros_like(images), images)


def drawn_network(variant: str, settings: BenchSettings, local: LocalSettings | None = None, steps: int = 6) -> ERPCNet:
    """A network of the bench's backbone, its weights drawn."""
    torch.manual_seed(0)
    backbone = BackboneSettings(settings.backbone, "none")
    usual = LocalSettings(zoom=1 if variant in ("globalnet", "hardnet") else settings.zoom)
    model = ModelSettings(backbone=backbone, local=local or usual, steps=steps)
    if settings.backbone == "small":
        model = replace(model, policy=replace(model.policy, width=256, memory=64))
    checked: Variant = variant  # type: ignore[assignment]
    network = ERPCNet(model, ATTRIBUTES, settings.image_size, checked).eval()
    return network.to(settings.device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def _images(count: int, settings: BenchSettings, zoom: int = 1) -> Tensor:
    side = zoom * settings.image_size
    drawn = torch.randn(count, 3, side, side, device=settings.device)
    return drawn.contiguous(memory_format=torch.channels_last)


def _phi(settings: BenchSettings) -> Tensor:
    return torch.nn.functional.normalize(torch.rand(CLASSES, ATTRIBUTES, device=settings.device), dim=1)


def _cells(network: ERPCNet, count: int, settings: BenchSettings) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return random_cells(count, network.grid.cells, network.steps, generator).to(settings.device)


def count_macs(run: Callable[..., object], *arguments: Tensor) -> float:
    """Multiplications and additions in pairs, of convolutions and matrix products."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run(*arguments)
    return counter.get_total_flops() / 2
