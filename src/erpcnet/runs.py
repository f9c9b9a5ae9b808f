"""A run: the folder that training leaves, and that everything later starts from.

config.yaml          every setting, as `--config` takes it
model.safetensors    weights, classes with their attributes, sigma and delta: all that prediction needs
metrics.json         the figures on the test images
logs/                TensorBoard
localities.png       where the network looked on six test images of unseen classes
analysis/            what `erpcnet analyse` wrote, if it was asked to
unfinished/          what an interrupted training is resumed from; gone once the run is whole
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from erpcnet.evaluation.protocol import Metrics
from erpcnet.files import write_atomically, write_json
from erpcnet.inference import ClassTable, Execution, Recogniser
from erpcnet.inference.recogniser import Recognition
from erpcnet.model import ERPCNet
from erpcnet.model.fusion import freeze
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint
from erpcnet.pipeline import Workshop, evaluate, open_workshop, prepare, select_settings, train_network
from erpcnet.precision import use_deterministic_algorithms
from erpcnet.progress import console
from erpcnet.resume import METRICS, MODEL, Unfinished, check_folder
from erpcnet.training import Log

TABLE = "class_attributes"  # beside the weights in model.safetensors
EXAMPLES_EACH = 8  # images looked at for each one that is drawn


def train_run(config: Config, data: str | Path, out: str | Path, overwrite: bool = False) -> Metrics:
    """Train and evaluate, and leave a run; an unfinished one there, of the same settings and data, is resumed.

    Args:
        config: Every setting.
        data: Folder of the dataset.
        out: Folder for the run: a new or empty one, or that of an unfinished run.
        overwrite: Whether a finished run there may be replaced.

    Returns:
        The figures on the test images, as metrics.json holds them.

    Raises:
        InputError: Something that was given is wrong, or the training has diverged.

    Example:
        >>> metrics = train_run(load_config("creatures"), "data/creatures", "runs/mine")
    """
    out = Path(out)
    check_folder(out, overwrite)
    dataset = read_dataset(data)
    if config.deterministic:
        use_deterministic_algorithms()
    shop = open_workshop(config, dataset)
    main = shop.accelerator.is_main_process
    unfinished = _claimed(out, config, dataset, main)
    if main:
        write_atomically(out / "config.yaml", config.to_yaml().encode())
    log = Log(out / "logs" / "validation" if main else None)
    # Every process goes on with what the first one has.
    (chosen,) = broadcast_object_list([unfinished.operating_point() if main else None])
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
        save_model(out / MODEL, network, dataset, config, settings, shop.feed.preprocessing)
        write_json(out / METRICS, {**metrics.to_json(), "data": str(Path(data).resolve())}, indent=2)
        draw_examples(load(out), dataset, out / "localities.png")
        unfinished.remove()
    shop.accelerator.wait_for_everyone()
    return metrics


def _claimed(out: Path, config: Config, dataset: ZeroShotDataset, main: bool) -> Unfinished:
    """The folder of a run, taken by the first process before any other reads it; all of them hear of a refusal."""
    found, problem = None, None
    if main:
        try:
            found = Unfinished(out, config, dataset)
        except InputError as error:
            problem = str(error)
    (problem,) = broadcast_object_list([problem])
    if problem is not None:
        raise InputError(problem)
    return found or Unfinished(out, config, dataset, writes=False)


def evaluate_run(run: str | Path, data: str | Path, test_views: TestViews | None = None) -> Metrics:
    """Evaluate a run's network again, with the sigma and delta that it was saved with, in its own number of views or
    in another."""
    shop, network, settings = reopen(run, data, test_views)
    return evaluate(shop, network, settings)[0]


def reopen(
    run: str | Path, data: str | Path, test_views: TestViews | None = None
) -> tuple[Workshop, ERPCNet, OperatingPoint]:
    """A run's network and settings, and what it takes to walk over the images of a dataset with it."""
    model = _read_model(Path(run) / MODEL)
    dataset = read_dataset(data)
    if dataset.attribute_names != model.classes.attribute_names:
        raise InputError(f"{data} has other attributes than the dataset that {run} was trained on.")
    shop = open_workshop(_with_views(model.config, test_views), dataset, model.preprocessing)
    return shop, model.network, model.point


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


def save_model(
    path: Path,
    network: ERPCNet,
    dataset: ZeroShotDataset,
    config: Config,
    point: OperatingPoint,
    preprocessing: Preprocessing,
) -> None:
    """Everything that prediction needs, in one file; the same network gives the same bytes."""
    state = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    wrong = [key for key, value in state.items() if not value.isfinite().all()]
    if wrong:
        raise InputError(
            f"the training has diverged: '{wrong[0]}' holds values that are no numbers; lower --stage1.lr."
        )
    state[TABLE] = torch.from_numpy(dataset.attributes)
    about = {
        "config": config.to_yaml(),
        "operating_point": point.to_json(),
        "preprocessing": asdict(preprocessing),
        "classes": list(dataset.classes),
        "seen": [int(number) for number in dataset.seen],
        "attribute_names": list(dataset.attribute_names),
    }
    # One entry: the library writes several in any order. And written here, as it would let nobody else read the file.
    write_atomically(path, save(state, metadata={"erpcnet": json.dumps(about, allow_nan=False)}))


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
    model = _read_model(path if path.is_file() else path / MODEL)
    data, seed = _with_views(model.config, test_views).data, model.config.seed
    network = freeze(model.network.to(device))
    return Recogniser(network, model.classes, data, model.point, model.preprocessing, seed, execution)


def _with_views(config: Config, test_views: TestViews | None) -> Config:
    """The configuration with another number of views at test, if one is given."""
    return config if test_views is None else replace(config, data=replace(config.data, test_views=test_views))


class _Model(NamedTuple):
    """What a file of weights holds."""

    config: Config
    network: ERPCNet
    point: OperatingPoint
    preprocessing: Preprocessing
    classes: ClassTable


def _read_model(path: Path) -> _Model:
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
        # Older ones have the operating point's values beside the rest, and all were prepared alike.
        point = OperatingPoint.from_json(about.get("operating_point", about))
        usual = {"crop_share": config.data.centre or Preprocessing().crop_share}
        preprocessing = _preprocessing(about.get("preprocessing", usual))
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is no model of this version ({type(error).__name__}: {detail}).") from None
    seen = np.isin(np.arange(len(about["classes"])), about["seen"])
    table = ClassTable(tuple(about["classes"]), attributes, seen, tuple(about["attribute_names"]))
    # Compiling pays over an epoch; images that stop early would have a few of them compiled anew at every step.
    ready = prepare(network, replace(config, compile=False)).eval()
    return _Model(config, ready, point, preprocessing, table)


def _preprocessing(values: dict[str, Any]) -> Preprocessing:
    """From JSON, which has lists for tuples."""
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Preprocessing(**known)
