"""Jobs of prediction on a small Ray cluster on this machine, for tests that stop them and take their workers away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
from PIL import Image

import erpcnet
from erpcnet.inference import ray_data

HAS_RAY = find_spec("ray") is not None
PICTURES = 120
SHARD = 5
SHARDS = PICTURES // SHARD
BROKEN = "b/7.png"
COLUMNS = ["path", "name", "confidence", "top", "rejected", "steps", "error"]


def draw_pictures(root: Path) -> Path:
    """Drawn pictures in two folders, one of them cut off."""
    rng = np.random.default_rng(0)
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
        for number in range(PICTURES // 2):
            coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
            coarse.resize((60, 80 - number), Image.Resampling.BICUBIC).save(root / folder / f"{number}.png")
    (root / BROKEN).write_bytes((root / BROKEN).read_bytes()[:100])
    return root


@contextmanager
def small_cluster() -> Iterator[None]:
    """Ray on this machine, as small as it goes."""
    import ray

    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket below it: no long name
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        num_gpus=0,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=temporary,
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def read_shards(out: Path) -> list[dict[str, Any]]:
    """The rows of all shards, in order."""
    import pyarrow.parquet as pq

    files = sorted(out.glob("part-*.parquet"))
    assert [file.name for file in files] == [f"part-{number:06d}.parquet" for number in range(len(files))]
    tables = [pq.read_table(file) for file in files]
    assert all(table.column_names == COLUMNS for table in tables)
    return [row for table in tables for row in table.to_pylist()]


def difference(
    rows: list[dict[str, Any]], run: Path, pictures: Path, top: int = 5, candidates: Any = "all"
) -> str | None:
    """What is not as `predict` says of each picture, in the order of the list; None if nothing is."""
    names = [f"{folder}/{name}" for folder in "ab" for name in sorted(f"{n}.png" for n in range(PICTURES // 2))]
    paths = [row["path"] for row in rows]
    if paths != names:
        twice = sorted({path for path in paths if paths.count(path) > 1})
        return f"missing {sorted(set(names) - set(paths))[:5]}, twice {twice[:5]}, or in another order"
    (broken,) = (row for row in rows if row["path"] == BROKEN)
    if BROKEN not in broken["error"] or any(broken[name] is not None for name in COLUMNS[1:-1]):
        return f"the broken picture is {broken}"
    whole = [row for row in rows if row["path"] != BROKEN]
    expected = erpcnet.load(run, "cpu").predict([pictures / row["path"] for row in whole], candidates)
    if len({one.name for one in expected}) < 2:
        return "all pictures are of one class, so that it is not seen whether they are confused"
    for row, one in zip(whole, expected, strict=True):
        wanted = one.name, one.rejected, one.steps, None, [name for name, _ in one.top[:top]]
        if (row["name"], row["rejected"], row["steps"], row["error"], [each["name"] for each in row["top"]]) != wanted:
            return f"{row} in place of {wanted}"
        chances = [one.confidence, *(chance for _, chance in one.top[:top])]
        if not np.allclose([row["confidence"], *(each["confidence"] for each in row["top"])], chances, 0, 1e-6):
            return f"{row} in place of {chances}"
    return None


@contextmanager
def on_shards(then: Mapping[int, Callable[[], object]]) -> Iterator[None]:
    """Do something each time that so many shards were told of."""

    @contextmanager
    def counting(what: str, total: int) -> Iterator[Callable[..., None]]:
        told = -1  # the first call tells of those that were there

        def advance(steps: int = 1) -> None:
            nonlocal told
            told += 1
            if told in then:
                then[told]()

        yield advance

    with mock.patch.object(ray_data, "bar", counting):
        yield


@contextmanager
def noting(folder: Path) -> Iterator[None]:
    """Shard writers that take their time, and leave a note of each shard that they begin: `NUMBER-PID`."""
    folder.mkdir()

    class Noting(ray_data._ShardWriter):  # a class of a function goes to workers by value
        def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
            (folder / f"{json.loads(batch['shard'][0])['number']}-{os.getpid()}").touch()
            time.sleep(0.25)
            return super().__call__(batch)

    with mock.patch.object(ray_data, "_ShardWriter", Noting):
        yield


def begun(folder: Path) -> list[tuple[int, int]]:
    """Shards and processes of these notes, as they were begun."""
    notes = sorted(folder.iterdir(), key=lambda note: note.stat().st_mtime_ns)
    return [(int(number), int(pid)) for number, pid in (note.name.split("-") for note in notes)]


def stop() -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


def kill_one(notes: Path, out: Path, seconds: float = 60.0) -> list[int]:
    """Kill the worker that began last of those at work, once there is one; the shard that is lost, if one is."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        at_work = [(number, pid) for number, pid in begun(notes) if not (out / f"part-{number:06d}.parquet").exists()]
        if at_work:
            number, pid = at_work[-1]
            os.kill(pid, signal.SIGKILL)
            return [] if (out / f"part-{number:06d}.parquet").exists() else [number]
        time.sleep(0.01)
    raise TimeoutError("no worker is at work")


def run_on(pids: set[int], seconds: float = 20.0) -> set[int]:
    """Those of the processes that have not ended within so long."""
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return {pid for pid in pids if psutil.pid_exists(pid)}
