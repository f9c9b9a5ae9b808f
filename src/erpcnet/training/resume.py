"""The folder of a run while it is trained: whose it is, how far the training is, and that nothing else is replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.cache import fingerprint
from erpcnet.errors import InputError
from erpcnet.inference.model_file import MODEL, is_model
from erpcnet.inference.run_files import METRICS, VALIDATION
from erpcnet.model import OperatingPoint
from erpcnet.training.checkpoint import Checkpoints
from erpcnet.utils.files import write_json
from erpcnet.utils.progress import console

UNFINISHED, DONE = "unfinished", ".unfinished-done"
OF, POINT = "of.json", "operating_point.json"
# What training, `erpcnet analyse` and `erpcnet export` leave in the folder of a run, all of which --overwrite replaces.
MADE = ("config.yaml", MODEL, METRICS, VALIDATION, "localities.png", "logs", "analysis", "model.pt2", DONE)


def check_folder(out: Path, overwrite: bool) -> None:
    """Refuse a folder in which training would replace something that is not its own.

    Args:
        out: Where a run shall lie.
        overwrite: Whether a finished run there may be replaced.

    Raises:
        InputError: It is a file, holds a finished run, or what no run made.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out takes a folder for the run.")
    if not out.exists() or (out / UNFINISHED / OF).is_file():
        return
    inside = out / UNFINISHED
    if inside.exists() and any(not path.name.startswith(f".{OF}") for path in inside.iterdir()):
        raise InputError(f"{inside} is no training's, so it is left as it is; give another --out.")
    if is_model(out / MODEL):
        if not overwrite:
            raise InputError(f"{out} holds a run already; give another --out, or --overwrite to replace it.")
        return
    foreign = sorted(path.name for path in out.iterdir() if path.name != UNFINISHED)
    if foreign:
        raise InputError(f"{out} holds '{foreign[0]}', which is no run's; give a new or an empty folder as --out.")


class Unfinished:
    """What a training writes into its folder of how far it is, so that the same command resumes it.

    Of several processes one `writes`; the others only read checkpoints.
    """

    def __init__(self, out: Path, config: Config, dataset: ZeroShotDataset, writes: bool = True) -> None:
        self._out, self._folder = out, out / UNFINISHED
        self._every, self._writes = 60 * config.checkpoint_minutes, writes
        if writes:
            self._claim(config, dataset)

    def _claim(self, config: Config, dataset: ZeroShotDataset) -> None:
        of = {
            "another variant": config.variant,
            "another seed": config.seed,
            "other settings": config.fingerprint(),
            "other data": dataset.fingerprint(),
            "other pictures": fingerprint(dataset, config.input_data.stored_size),
        }
        stored = self._read(OF)
        if stored is None:
            self._clear()
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / OF, of)
        elif stored != of:
            other = next(name for name in of if stored.get(name) != of[name])
            raise InputError(f"{self._out} holds an unfinished run with {other}; give another --out or remove it.")
        else:
            console.print(f"{self._out} holds an unfinished run; resuming it")

    def _clear(self) -> None:
        """Take a finished run away that is to be replaced; the weights last, by which it is known for one."""
        for name in sorted(MADE, key=lambda name: name == MODEL):
            path = self._out / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def checkpoints(self, training: str) -> Checkpoints:
        """Of one of the trainings of a run."""
        return Checkpoints(self._folder / training, self._every, self._writes)

    def operating_point(self) -> OperatingPoint | None:
        """sigma and delta, if they are chosen."""
        stored = self._read(POINT)
        return None if stored is None else OperatingPoint.from_json(stored)

    def save(self, point: OperatingPoint | None) -> None:
        """Write what was chosen, if it was chosen by training."""
        if self._writes and point is not None:
            write_json(self._folder / POINT, point.to_json())

    def remove(self) -> None:
        """Once the run is whole. At one stroke first: whoever is killed here leaves a finished run, not half of one."""
        shutil.rmtree(self._out / DONE, ignore_errors=True)
        self._folder.rename(self._out / DONE)
        shutil.rmtree(self._out / DONE)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        if not path.is_file():
            return None
        try:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{path} is damaged; remove {self._folder} to start the training again.") from None
        return stored
