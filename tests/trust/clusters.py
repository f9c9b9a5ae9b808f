"""Prediction on a Ray cluster of which a worker dies and which is stopped: every picture is predicted once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from trust.cases import Row, Size, complaint, generator, in_child

PROMISE = "resumed by the same call, every picture is predicted exactly once, as by `predict`, and nothing runs on"
SECONDS = 900.0  # that all cases may take
CASES = {"full": 4, "short": 1}


def run(size: Size, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the row of this campaign."""
    from ray_jobs import HAS_RAY, draw_pictures
    from untrained import untrained_run

    row = Row("ray", "two workers, one killed, then a stop", PROMISE)
    if not HAS_RAY:
        row.note = "not tried: Ray is not installed"
        yield row
        return
    model, pictures = untrained_run(folder / "run", reject=1.0), draw_pictures(folder / "pictures")
    random = generator(seed, "ray")
    places = [_places(random) for _ in range(CASES[size])]
    notes = folder / "problems.jsonl"
    # In a process of its own: Ray leaves threads, with which none could be forked.
    ended = in_child(partial(_all_cases, model, pictures, folder, places, notes), folder, SECONDS, memory=None)
    told = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    for case, problem in enumerate(told):
        row.count(problem, f"{case} (killed after {places[case][0]} shards, stopped after {places[case][1]})")
    wrong = complaint(ended, (0,))
    if wrong is not None or len(told) < len(places):
        row.count(wrong or f"only {len(told)} of {len(places)} cases", "the cluster")
    yield row


def _places(random: np.random.Generator) -> tuple[int, int]:
    """After how many shards a worker is killed, and after how many the job is stopped."""
    killed = int(random.integers(1, 8))
    return killed, killed + int(random.integers(2, 8))


def _all_cases(model: Path, pictures: Path, folder: Path, places: list[tuple[int, int]], notes: Path) -> int:
    from ray_jobs import small_cluster

    with small_cluster():
        for case, (killed, stopped) in enumerate(places):
            (folder / f"case-{case}").mkdir()
            problem = _interrupted(model, pictures, folder / f"case-{case}", killed, stopped)
            with notes.open("a") as file:
                file.write(f"{json.dumps(problem)}\n")
    return 0


def _interrupted(model: Path, pictures: Path, folder: Path, killed: int, stopped: int) -> str | None:
    """What did not hold of a job that loses a worker, is stopped, and is called again."""
    from erpcnet.inference.ray_data import RayJob, predict_with_ray
    from ray_jobs import SHARD, SHARDS, begun, difference, kill_one, noting, on_shards, read_shards, run_on, stop

    out, first, second = folder / "found", folder / "first", folder / "second"
    predict = partial(predict_with_ray, model, pictures, out, workers=2, shard_size=SHARD)
    lost: list[int] = []
    with noting(first), on_shards({killed: lambda: lost.extend(kill_one(first, out)), stopped: stop}):
        try:
            predict()
            return "it was not stopped"
        except KeyboardInterrupt:
            pass
    if left := run_on({pid for _, pid in begun(first)}):
        return f"{len(left)} workers run on"
    before = {int(file.stem.removeprefix("part-")): file.stat().st_mtime_ns for file in out.glob("part-*")}
    with noting(second):
        job = predict()
    if job.computed != SHARDS - len(before):
        return f"{len(before)} of {SHARDS} shards were there, and it computed {job.computed}"
    early, late = ([number for number, _ in begun(notes)] for notes in (first, second))
    twice = sorted({number for number in early if early.count(number) > 1} - set(lost))
    if twice or sorted(late) != sorted(set(range(SHARDS)) - set(before)):
        return f"computed more than once: {twice} at first; then {sorted(late)}, where {sorted(before)} were there"
    if any((out / f"part-{number:06d}.parquet").stat().st_mtime_ns != time for number, time in before.items()):
        return "a shard that was there was written again"
    if left := run_on({pid for _, pid in begun(second)}):
        return f"{len(left)} workers run on"
    partial_files = list(out.glob(".partial-*"))
    problem = f"left behind {partial_files}" if partial_files else difference(read_shards(out), model, pictures)
    return problem or (None if predict() == RayJob(SHARDS, 0, 0, 0) else "it was not done yet")
