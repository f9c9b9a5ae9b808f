"""The folder of a run while it is trained: whose it is, how far the training is, and that nothing else is replaced."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from erpcnet.config import Config, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.cache import fingerprint
from erpcnet.errors import InputError
from erpcnet.evaluation.runs import damaged_files, load_validation, open_run, read_metrics, read_validation
from erpcnet.inference.model_file import MODEL, is_model
from erpcnet.inference.run_files import CONSOLE, METRICS, PICTURE, RUN, VALIDATION, read_run, tell_damage
from erpcnet.model import OperatingPoint
from erpcnet.training.checkpoint import Checkpoints
from erpcnet.training.provenance import digest_of_pictures
from erpcnet.training.repair import measured, repair_run
from erpcnet.utils.files import read_json, write_json
from erpcnet.utils.progress import SPEAKS, console

UNFINISHED, DONE = "unfinished", ".unfinished-done"
OF, POINT = "of.json", "operating_point.json"
# What training, `erpcnet analyse` and `erpcnet export` leave in the folder of a run, all of which --overwrite replaces.
MADE = (
    *("config.yaml", MODEL, METRICS, VALIDATION, RUN, CONSOLE, PICTURE, "logs", DONE),
    *("analysis", "model.pt2", "model.onnx", "README.md"),
)
LOCK = "lock"
PICTURES, CHECKSUM = "other pictures", "checksum"  # what of.json calls them


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
    same_settings = (out / "config.yaml").read_bytes() == config.to_yaml().encode()
    if not same_settings or _digest_of_data(out) != dataset.fingerprint():
        raise InputError(_held(out))
    metrics = _whole_metrics(out, dataset)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # of several, those that are later would not find it
        shutil.rmtree(out / DONE, ignore_errors=True)
    return metrics


def _digest_of_data(out: Path) -> str | None:
    """Of the dataset that a run is of, which is told twice until the last clean-up is done; None where it is not."""
    with suppress(InputError):
        return str(read_run(out)["dataset"]["digest"])
    with suppress(InputError):
        return str(read_json(out / DONE / OF, "it is not known").get("other data"))
    return None


def _whole_metrics(out: Path, dataset: ZeroShotDataset) -> dict[str, Any]:
    """What metrics.json holds, measured again if it is damaged."""
    if not damaged_files(out):
        return read_metrics(out)
    opened, validation = open_run(out, dataset), read_validation(out)
    rollouts = opened.rollouts()
    if SPEAKS:
        repair_run(out, opened, rollouts, validation)
    return measured(opened, rollouts, validation)


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


def _of_settings(config: Config) -> dict[str, Any]:
    return {"another variant": config.variant, "another seed": config.seed, "other settings": config.fingerprint()}


def _of_data(digest: str, pictures: str) -> dict[str, Any]:
    return {"other data": digest, PICTURES: pictures}


class Unfinished:
    """What a training writes into its folder of how far it is, so that the same command resumes it.

    Of several processes one `writes`; the others only read checkpoints.
    """

    def __init__(
        self, out: Path, config: Config, dataset: ZeroShotDataset, writes: bool = True, overwrite: bool = False
    ) -> None:
        self._out, self._folder, self._overwrite = out, out / UNFINISHED, overwrite
        self._every, self._writes = 60 * config.checkpoint_minutes, writes
        self._lock: FileLock | None = None
        self._new = False
        if writes:
            self._acquire()
            try:
                self._claim(config, dataset)
            except InputError:
                self.release()
                if self._new:
                    shutil.rmtree(self._folder, ignore_errors=True)
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
        if self._writes and self._new and not self._has_learned():
            self._clear()
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):
                self._out.rmdir()  # if there is nothing else in it

    def _has_learned(self) -> bool:
        """Whether there is anything that would be lost."""
        return any(self._folder.rglob("*.pt")) or (self._folder / POINT).exists()

    def _claim(self, config: Config, dataset: ZeroShotDataset) -> None:
        pictures = fingerprint(dataset, config.input_data.stored_size)
        of = {**_of_settings(config), **_of_data(dataset.fingerprint(), pictures)}
        try:
            stored = self._stored()
        except InputError:
            stored = self._known_again(of, dataset)
        if stored is None:
            self._begin(of)
        elif stored != of:
            other = next((name for name in of if stored.get(name) != of[name]), "another version")
            raise InputError(f"{self._out} holds an unfinished run with {other}; give another --out or remove it.")
        else:
            console.print(f"{self._out} holds an unfinished run; resuming it")

    def _stored(self) -> dict[str, Any] | None:
        """Which settings and data the run is of that was begun here; None: there is none.

        Raises:
            InputError: That is damaged.
        """
        path = self._folder / OF
        if not path.is_file():
            return None
        stored = read_json(path, "it is rebuilt")
        if stored.pop(CHECKSUM, None) != _checksum(stored):
            raise InputError(f"{path}: its checksum is wrong.")
        return stored

    def _known_again(self, of: dict[str, Any], dataset: ZeroShotDataset) -> dict[str, Any] | None:
        """The same where it is damaged, by config.yaml and run.json, which every training writes before it learns.

        Args:
            of: Which settings and data were asked for.
            dataset: Those data.
        """
        path = self._folder / OF
        if not self._has_learned():
            tell_damage(f"{path} is damaged; nothing was learned yet, so the training starts again")
            return None
        try:
            config, about = load_config(self._out / "config.yaml"), read_run(self._out)["dataset"]
        except InputError as error:
            raise InputError(
                f"{path} is damaged, and so is what would tell the same ({str(error).removesuffix('.')}); remove "
                f"{self._folder} to start the training again."
            ) from None
        pictures = about.get("pictures")
        same = pictures in (None, digest_of_pictures(dataset))
        found = {**_of_settings(config), **_of_data(about["digest"], of[PICTURES] if same else pictures)}
        if found == of:
            unsure = "" if pictures else " (whether its pictures have changed since is not known)"
            tell_damage(f"{path} was damaged and is rebuilt, as config.yaml and {RUN} tell the same{unsure}")
            self._write(of)
        return found

    def _begin(self, of: dict[str, Any]) -> None:
        """Make the folder that of a new run."""
        if is_model(self._out / MODEL) and not self._overwrite:  # another training may have ended since it was checked
            raise InputError(_held(self._out))
        try:
            self._clear()
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self._out} cannot be written to ({error.strerror}); give another --out.") from None
        self._write(of)

    def _write(self, of: dict[str, Any]) -> None:
        try:
            write_json(self._folder / OF, {**of, CHECKSUM: _checksum(of)})
        except OSError as error:
            raise InputError(f"{self._out} cannot be written to ({error.strerror}); give another --out.") from None

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
            if stored.get(CHECKSUM) != _checksum(stored.get("point")):
                raise InputError("its checksum is wrong.")
            point = OperatingPoint.from_json(stored["point"])
        except InputError as error:
            console.print(f"{path}: {error} sigma and delta are chosen again", soft_wrap=True)
            return None
        return point if point.protocol != "validation" or self._tells_choice() else None

    def _tells_choice(self) -> bool:
        """Whether validation.json is whole; if not, what it held can be chosen again, by trainings that are there."""
        try:
            load_validation(self._out)
        except InputError:
            tell_damage(f"{self._out / VALIDATION} is not there or damaged; sigma and delta are chosen again")
            return False
        return True

    def save(self, point: OperatingPoint | None) -> None:
        """Write what was chosen, if it was chosen by training."""
        if self._writes and point is not None and point.protocol != "fixed":
            values = point.to_json()
            write_json(self._folder / POINT, {"point": values, CHECKSUM: _checksum(values)})

    def remove(self) -> None:
        """Once the run is whole. At one stroke first: whoever is killed here leaves a finished run, not half of one."""
        shutil.rmtree(self._out / DONE, ignore_errors=True)
        self._folder.rename(self._out / DONE)
        shutil.rmtree(self._out / DONE)
