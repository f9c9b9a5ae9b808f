"""A run: the folder that training leaves, and that everything later starts from.

config.yaml          every setting, as `--config` takes it
model.safetensors    weights, classes with their attributes, sigma and delta: all that prediction needs
metrics.json         the figures on the test images
logs/                TensorBoard
localities.png       where the network looked on six test images of unseen classes
analysis/            what `erpcnet analyse` wrote, if it was asked to
unfinished/          what training goes on from if it was interrupted; gone once the run is whole
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate.utils import broadcast_object_list
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save

from erpcnet.config import Config, config_parser, to_config
from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.data.images import load_image
from erpcnet.data.settings import TestViews
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import Metrics, Settings
from erpcnet.inference import ClassTable, Execution, Recogniser
from erpcnet.inference.recogniser import Recognition
from erpcnet.model import ERPCNet
from erpcnet.model.fusion import freeze
from erpcnet.pipeline import Workshop, evaluate, open_workshop, prepare, select_settings, train_network
from erpcnet.progress import console
from erpcnet.training import Checkpoints, Log

TABLE = "class_attributes"  # beside the weights in model.safetensors
EXAMPLES_EACH = 8  # images looked at for each one that is drawn


def train_run(config: Config, data: str | Path, out: str | Path) -> Metrics:
    """Train and evaluate, and leave a run in `out`; an unfinished one there is gone on with."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out takes a folder for the run.")
    if (out / "model.safetensors").exists() and not (out / "unfinished").exists():
        raise InputError(f"{out} holds a run already; give another --out or remove it.")
    dataset = read_dataset(data)
    shop = open_workshop(config, dataset)
    main = shop.accelerator.is_main_process
    unfinished = Unfinished(out / "unfinished", config, dataset, main)
    if main:
        (out / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    log = Log(out / "logs" / "validation" if main else None)
    (chosen,) = broadcast_object_list([unfinished.settings()])  # every process goes on with the first one's
    if chosen is None:
        (chosen,) = broadcast_object_list([select_settings(shop, log, unfinished.checkpoints("validation"))])
        unfinished.keep(chosen)
    log.close()
    if chosen is not None and chosen.protocol == "validation":
        console.print(f"sigma {chosen.sigma:g}, delta {chosen.delta:.3f}; training on all seen classes")
    log = Log(out / "logs" if main else None)
    network = train_network(shop, dataset, log, unfinished.checkpoints("final"))
    metrics, settings = evaluate(shop, network, chosen)
    log.scalars("test", {name: v for name, v in metrics.to_json().items() if isinstance(v, float)}, 0)
    log.close()
    if main:
        save_model(out / "model.safetensors", network, dataset, config, settings)
        told = {**metrics.to_json(), "data": str(Path(data).resolve())}
        (out / "metrics.json").write_text(json.dumps(told, indent=2) + "\n")
        draw_examples(load(out), dataset, out / "localities.png")
        unfinished.remove()
    shop.accelerator.wait_for_everyone()
    return metrics


class Unfinished:
    """The folder in which a run keeps how far it is, so that the same command goes on after an interruption."""

    def __init__(self, folder: Path, config: Config, dataset: ZeroShotDataset, writes: bool) -> None:
        self._folder, self._every, self._writes = folder, 60 * config.checkpoint_minutes, writes
        of = {
            "another variant": config.variant,
            "another seed": config.seed,
            "other settings": config.fingerprint(),
            "other data": dataset.fingerprint(),
        }
        kept = self._read("of.json")
        if kept is not None and kept != of:
            other = next(name for name in of if kept.get(name) != of[name])
            raise InputError(f"{folder.parent} holds an unfinished run with {other}; give another --out or remove it.")
        if kept is not None:
            console.print(f"{folder.parent} holds an unfinished run; going on with it")
        elif writes:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "of.json").write_text(json.dumps(of))

    def checkpoints(self, training: str) -> Checkpoints:
        """Of one of the trainings of a run."""
        return Checkpoints(self._folder / training, self._every, self._writes)

    def settings(self) -> Settings | None:
        """sigma and delta, if they are chosen."""
        kept = self._read("settings.json")
        return None if kept is None else Settings(**kept)

    def keep(self, settings: Settings | None) -> None:
        """Write what was chosen, if it was chosen by training."""
        if self._writes and settings is not None:
            (self._folder / "settings.json").write_text(json.dumps(asdict(settings)))

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        if not path.is_file():
            return None
        kept: dict[str, Any] = json.loads(path.read_text())
        return kept


def evaluate_run(run: str | Path, data: str | Path, test_views: TestViews | None = None) -> Metrics:
    """Evaluate a run's network again, with the sigma and delta that it was saved with, in its own number of views or
    in another."""
    shop, network, settings = reopen(run, data, test_views)
    return evaluate(shop, network, settings)[0]


def reopen(
    run: str | Path, data: str | Path, test_views: TestViews | None = None
) -> tuple[Workshop, ERPCNet, Settings]:
    """A run's network and settings, and what it takes to walk over the images of a dataset with it."""
    config, network, settings, classes = _read_model(Path(run) / "model.safetensors")
    dataset = read_dataset(data)
    if dataset.attribute_names != classes.attribute_names:
        raise InputError(f"{data} has other attributes than the dataset that {run} was trained on.")
    return open_workshop(_with_views(config, test_views), dataset), network, settings


def dataset_of(run: str | Path) -> Path:
    """The folder of the dataset that a run was trained on, as it was given then."""
    path = Path(run) / "metrics.json"
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder that `erpcnet train --out` made.")
    try:
        return Path(json.loads(path.read_text())["data"])
    except (ValueError, KeyError):
        raise InputError(f"{path} does not say which dataset it is of; give --data.") from None


def draw_examples(recogniser: Recogniser, dataset: ZeroShotDataset, out: Path, count: int = 6) -> None:
    """Test images of unseen classes, from the first class to the last: of every few, the one whose walk is nearest to
    half of T steps, as the shortest and the longest show little."""
    from erpcnet.inference.explain import draw_localities  # matplotlib is slow to import

    order = np.argsort(dataset.labels[dataset.test_unseen], kind="stable")
    spread = np.unique(np.linspace(0, len(order) - 1, count * EXAMPLES_EACH).astype(int))
    rows = dataset.test_unseen[order[spread]]
    shown = [_example(recogniser, dataset, few) for few in np.array_split(rows, count) if len(few)]
    pictures, found, truths = zip(*shown, strict=True)
    draw_localities(pictures, found, truths, out)


def _example(
    recogniser: Recogniser, dataset: ZeroShotDataset, rows: np.ndarray
) -> tuple[Image.Image, Recognition, str]:
    """One of these images with what was seen in it, and its class."""
    pictures = [picture_of(dataset, row) for row in rows]
    found = recogniser.predict(pictures)
    half = recogniser.network.steps / 2
    best = min(range(len(rows)), key=lambda place: abs(found[place].steps - half))
    return pictures[best], found[best], dataset.classes[dataset.labels[rows[best]]]


def example_pictures(run: str | Path, data: str | Path | None = None, count: int = 12) -> list[Image.Image]:
    """Some test images of unseen classes of a dataset: the one that a run was trained on, if it is still there."""
    try:
        dataset = read_dataset(data or dataset_of(run))
    except InputError:
        if data is not None:
            raise
        return []
    spread = np.unique(np.linspace(0, len(dataset.test_unseen) - 1, count).astype(int))
    return [picture_of(dataset, row) for row in dataset.test_unseen[spread]]


def picture_of(dataset: ZeroShotDataset, row: int) -> Image.Image:
    """The picture of one instance."""
    return load_image(dataset.root / dataset.image_paths[row], None if dataset.boxes is None else dataset.boxes[row])


def save_model(path: Path, network: ERPCNet, dataset: ZeroShotDataset, config: Config, settings: Settings) -> None:
    """Everything that prediction needs, in one file."""
    state = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    state[TABLE] = torch.from_numpy(dataset.attributes)
    about = {
        "config": config.to_yaml(),
        "sigma": settings.sigma,
        "delta": settings.delta,
        "protocol": settings.protocol,
        "classes": list(dataset.classes),
        "seen": [int(number) for number in dataset.seen],
        "attribute_names": list(dataset.attribute_names),
    }
    partial = path.with_suffix(".partial")
    # Written here, not by the library, which would let nobody else read it.
    partial.write_bytes(save(state, metadata={"format": "pt", "erpcnet": json.dumps(about)}))
    partial.replace(path)


def load(
    run: str | Path,
    device: str | torch.device | None = None,
    execution: Execution = "auto",
    test_views: TestViews | None = None,
) -> Recogniser:
    """The trained network of a run, ready to predict, on the GPU if there is one and nothing else is asked.

    `run` is its folder, or a model.safetensors; `execution` says how it walks (see `erpcnet.inference.Engine`), and
    `test_views` over how many views of each picture, if not over as many as sigma and delta were chosen for. The
    network is frozen (see `erpcnet.model.fusion`): it predicts, and no longer trains.
    """
    path = Path(run)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    config, network, settings, classes = _read_model(path if path.is_file() else path / "model.safetensors")
    data = _with_views(config, test_views).data
    return Recogniser(freeze(network.to(device)), classes, data, settings.sigma, settings.delta, config.seed, execution)


def _with_views(config: Config, test_views: TestViews | None) -> Config:
    """The configuration with another number of views at test, if one is given."""
    return config if test_views is None else replace(config, data=replace(config.data, test_views=test_views))


def _read_model(path: Path) -> tuple[Config, ERPCNet, Settings, ClassTable]:
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder that `erpcnet train --out` made.")
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["erpcnet"])
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config = to_config(config_parser(), yaml.safe_load(about["config"]))
        attributes = state.pop(TABLE).numpy()
        # The weights come from this file, so the backbone needs none of its own.
        bare = replace(config.model, backbone=replace(config.model.backbone, weights="none"))
        network = ERPCNet(bare, attributes.shape[1], config.data.image_size, config.variant)
        network.load_state_dict(state)
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is no model of this version ({type(error).__name__}: {detail}).") from None
    seen = np.isin(np.arange(len(about["classes"])), about["seen"])
    table = ClassTable(tuple(about["classes"]), attributes, seen, tuple(about["attribute_names"]))
    settings = Settings(about["sigma"], about["delta"], about["protocol"])
    # Compiling pays over an epoch; images that stop early would have a few of them compiled anew at every step.
    return config, prepare(network, replace(config, compile=False)).eval(), settings, table
