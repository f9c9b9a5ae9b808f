"""`erpcnet train`: a run, the folder that training leaves, and that everything later starts from.

config.yaml          every setting, as `--config` takes it
model.safetensors    weights, classes with their attributes, operating point: all that prediction needs
metrics.json         the figures on the test images
validation.json      what the operating point was chosen by, if it was chosen on validation classes
logs/                TensorBoard
localities.png       the localities selected on six test images of unseen classes
analysis/            what `erpcnet analyse` wrote, if it was asked to
run.json             versions, revision, command, machine, dataset and times
console.log          what was said on the way
unfinished/          what an interrupted training is resumed from; gone once the run is whole
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import Metrics
from erpcnet.evaluation.runs import read_validation
from erpcnet.inference.examples import draw_examples
from erpcnet.inference.loading import load
from erpcnet.inference.model_file import MODEL, save_model
from erpcnet.inference.run_files import CONSOLE, METRICS, PICTURE, RUN, VALIDATION
from erpcnet.model.heads import check_joint_kind
from erpcnet.training.context import Context, open_context
from erpcnet.training.log import Log
from erpcnet.training.memory_saving import check_memory
from erpcnet.training.pipeline import evaluate, select_operating_point, train_network
from erpcnet.training.plan import WHOLE, plan_training
from erpcnet.training.provenance import provenance
from erpcnet.training.resume import Unfinished, check_folder, finish_cleaning
from erpcnet.utils.files import as_path, write_atomically, write_json
from erpcnet.utils.progress import Plan, console, console_log, enter, planned
from erpcnet.utils.runtime import on_device, use_deterministic_algorithms


def train_run(
    config: Config,
    dataset: str | Path | ZeroShotDataset,
    out: str | Path,
    overwrite: bool = False,
    device: str | torch.device | None = None,
) -> Metrics:
    """Train and evaluate, and leave a run; an unfinished one there, of the same settings and data, is resumed.

    Args:
        config: Every setting.
        dataset: Folder of the dataset, or a dataset.
        out: Folder for the run: a new or empty one, or that of an unfinished run.
        overwrite: Whether a finished run there may be replaced.
        device: Such as `cpu` or `cuda:0`; by default a GPU if there is one.

    Returns:
        The figures on the test images, as metrics.json holds them.

    Raises:
        InputError: Something that was given is wrong, or the training has diverged.

    Examples:
        >>> metrics = train_run(load_config("creatures"), "data/creatures", "runs/mine")
    """
    if not isinstance(config, Config):
        raise InputError(f"config is {type(config).__name__}; give what load_config returns.")
    out = as_path(out, "the folder for the run")
    check_folder(out, overwrite)
    check_joint_kind(config.model)
    read = dataset if isinstance(dataset, ZeroShotDataset) else read_dataset(dataset)
    whole = None if overwrite else finish_cleaning(out, config, read)
    if whole is not None:
        return Metrics.from_json(whole)
    if config.deterministic:
        use_deterministic_algorithms()
    plan = plan_training(config, read)
    with on_device(device):
        check_memory(config, read)
        context = open_context(config, read)
        return _train_claimed(context, out, plan, overwrite)


def _train_claimed(context: Context, out: Path, plan: Plan, overwrite: bool) -> Metrics:
    """In a folder that is claimed for as long."""
    config, read, main = context.config, context.dataset, context.accelerator.is_main_process
    unfinished = _claim(out, config, read, main, overwrite)
    try:
        with planned(plan), console_log(out / CONSOLE if main else None):
            metrics = _train(context, out, unfinished)
    except BaseException:
        unfinished.abandon()
        raise
    finally:
        unfinished.release()
    context.accelerator.wait_for_everyone()
    return metrics


def _train(context: Context, out: Path, unfinished: Unfinished) -> Metrics:
    """All of it, in a folder that was claimed."""
    config, read, main = context.config, context.dataset, context.accelerator.is_main_process
    started = time.monotonic()
    about = provenance(read, context.device, context.share.processes) if main else {}
    if main:
        write_atomically(out / "config.yaml", config.to_yaml().encode())
        write_json(out / RUN, about, indent=2)
    log = Log(out / "logs" / "validation" if main else None)
    # Every process goes on with what the first one has.
    (point,) = broadcast_object_list([unfinished.operating_point() if main else None])
    if point is None:
        (choice,) = broadcast_object_list([select_operating_point(context, log, unfinished.checkpoints)])
        if choice is not None:
            point = choice.point
            if main and choice.point.protocol == "validation":
                write_json(out / VALIDATION, choice.to_json())
            unfinished.save(point)
    log.close()
    if point is not None and point.protocol == "validation":
        console.print(f"sigma {point.sigma:g}, delta {point.delta:.3f}; training on all seen classes")
    log = Log(out / "logs" if main else None)
    log.text("config", config.to_yaml())
    enter(WHOLE)
    network = train_network(context, read, log, unfinished.checkpoints("final"))
    validation = read_validation(out) if main else None
    (plainer,) = broadcast_object_list([() if validation is None else validation.plainer])
    metrics, point = evaluate(context, network, point, plainer)
    log.scalars("test", {name: value for name, value in metrics.to_json().items() if isinstance(value, float)}, 0)
    if main:
        save_model(out / MODEL, network, read, config, point, context.loader.preprocessing)
        write_json(out / METRICS, {**metrics.to_json(), "data": str(read.root.resolve())}, indent=2)
        draw_examples(load(out), read, out / PICTURE)
        log.picture("localities", out / PICTURE)
        write_json(out / RUN, {**about, "seconds": round(time.monotonic() - started, 1)}, indent=2)
    log.close()
    if main:
        unfinished.remove()
    return metrics


def _claim(out: Path, config: Config, dataset: ZeroShotDataset, main: bool, overwrite: bool) -> Unfinished:
    """The folder of a run, taken by the first process before any other reads it; all of them hear of a refusal."""
    found, problem = None, None
    if main:
        try:
            found = Unfinished(out, config, dataset, overwrite=overwrite)
        except InputError as error:
            problem = str(error)
    (problem,) = broadcast_object_list([problem])
    if problem is not None:
        raise InputError(problem)
    return found or Unfinished(out, config, dataset, writes=False)
