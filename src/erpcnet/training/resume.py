"""The folder of a run while it is trained: whose it is, how far the training is, and that nothing else is replaced."""

from __future__ import annotations

import json
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.cache import fingerprint
from erpcnet.errors import InputError
from erpcnet.inference.model_file import MODEL, is_model
from erpcnet.inference.run_files import CONSOLE, METRICS, PICTURE, RUN, VALIDATION
from erpcnet.model import OperatingPoint
from erpcnet.training.checkpoint import Checkpoints
from erpcnet.utils.files import read_json, write_json
from erpcnet.utils.progress import console

UNFINISHED, DONE = "unfinished", ".unfinished-done"
OF, POINT = "of.json", "operating_point.json"
# What training, `erpcnet analyse` and `erpcnet export` leave in the folder of a run, all of which --overwrite replaces.
MADE = (
    *("config.yaml", MODEL, METRICS, VALIDATION, RUN, CONSOLE, PICTURE, "logs", DONE),
    *("analysis", "model.pt2", "model.onnx", "README.md"),
)
LOCK = "lock"


def check_folder(out: Path, overwrite: bool) -> None:
    """Refuse a folder in which training would replace something that is not its own.

    Args:
        out: Where a run shall lie.
        overwrite: Whether a finished run there may be replaced.

    Raises:
        InputError: It is a file, holds a finished run, or what no run made.
    """
    if not _is_utf8(out):
        raise InputError("the name of --out is no UTF-8, which TensorBoard cannot write to; give another one.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out takes a folder for the run.")
    if not out.exists() or (out / UNFINISHED / OF).is_file():
        return
    inside = out / UNFINISHED
    if inside.exists() and (not inside.is_dir() or any(not _begun(path) for path in inside.iterdir())):
        raise InputError(f"{inside} is no training's, so it is left as it is; give another --out.")
    if is_model(out / MODEL):
        if not overwrite and not (out / DONE).is_dir():  # or its last clean-up is still to be done
            raise InputError(_held(out))
        return
    foreign = sorted(path.name for path in out.iterdir() if path.name != UNFINISHED)
    if foreign:
        raise InputError(f"{out} holds '{foreign[0]}', which is no run's; give a new or an empty folder as --out.")


def finish_cleaning(out: Path, config: Config, dataset: ZeroShotDataset) -> dict[str, Any] | None:
    """Do the last clean-up of a run that was whole but for it.

    Returns:
        What its metrics.json holds; None where there was nothing to clean.

    Raises:
        InputError: The run is of other settings or data.
    """
    if not (out / DONE).is_dir():
        return None
    about, metrics = (read_json(out / name, "train again with --overwrite") for name in (RUN, METRICS))
    same_settings = (out / "config.yaml").read_bytes() == config.to_yaml().encode()
    if not same_settings or about["dataset"]["digest"] != dataset.fingerprint():
        raise InputError(_held(out))
    shutil.rmtree(out / DONE, ignore_errors=True)
    return metrics


def _held(out: Path) -> str:
    return f"{out} holds a run already; give another --out, or --overwrite to replace it."


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _begun(path: Path) -> bool:
    """Whether this is what a training that was killed in its first moments left."""
    return path.name == LOCK or path.name.startswith(f".partial-{OF}")


def _checksum(values: object) -> int:
    """Of plain values, so that a digit that has changed is told."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


class Unfinished:
    """What a training writes into its folder of how far it is, so that the same command resumes it.

    Of several processes one `writes`; the others only read checkpoints.
    """

    def __init__(self, out: Path, config: Config, dataset: ZeroShotDataset, writes: bool = True) -> None:
        self._out, self._folder = out, out / UNFINISHED
        self._every, self._writes = 60 * config.checkpoint_minutes, writes
        self._lock: FileLock | None = None
        self._new = False
        if writes:
            self._acquire()
            try:
                self._claim(config, dataset)
            except InputError:
                self.release()
                raise

    def _acquire(self) -> None:
        """Be the only training at work here: the system lets go of the lock when a process dies, however it does."""
        try:
            self._new = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._folder / LOCK)
            self._lock.acquire(timeout=0)
        except Timeout:
            self._lock = None
            raise InputError(
                f"another training is at work in {self._out}; give another --out, or wait for it."
            ) from None
        except OSError as error:
            raise InputError(f"{self._out} cannot be written to ({error.strerror}); give another --out.") from None

    def release(self) -> None:
        """Let others in; done again it does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def abandon(self) -> None:
        """Of a start that failed before anything was learned, leave nothing in the way of the next one."""
        if not self._folder.is_dir():  # the run is whole
            return
        if self._writes and self._new and not any(self._folder.rglob("*.pt")) and not (self._folder / POINT).exists():
            self._clear()
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):
                self._out.rmdir()  # if there is nothing else in it

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
            try:
                self._clear()
                self._folder.mkdir(parents=True, exist_ok=True)
                write_json(self._folder / OF, of)
            except OSError as error:
                raise InputError(f"{self._out} cannot be written to ({error.strerror}); give another --out.") from None
        elif stored != of:
            other = next((name for name in of if stored.get(name) != of[name]), "another version")
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
        path = self._folder / POINT
        if not path.is_file():
            return None
        try:
            stored = read_json(path, "it is chosen again")
            if stored.get("checksum") != _checksum(stored.get("point")):
                raise InputError("its checksum is wrong.")
            return OperatingPoint.from_json(stored["point"])
        except InputError as error:
            console.print(f"{path}: {error} sigma and delta are chosen again", soft_wrap=True)
            return None

    def save(self, point: OperatingPoint | None) -> None:
        """Write what was chosen, if it was chosen by training."""
        if self._writes and point is not None and point.protocol != "fixed":
            values = point.to_json()
            write_json(self._folder / POINT, {"point": values, "checksum": _checksum(values)})

    def remove(self) -> None:
        """Once the run is whole. At one stroke first: whoever is killed here leaves a finished run, not half of one."""
        shutil.rmtree(self._out / DONE, ignore_errors=True)
        self._folder.rename(self._out / DONE)
        shutil.rmtree(self._out / DONE)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        if not path.is_file():
            return None
        return read_json(path, f"remove {self._folder} to start the training again")
