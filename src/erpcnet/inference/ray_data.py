"""Prediction of more pictures than one machine takes: on a cluster of Ray, in shards that are done once.

The pictures, in a fixed order, are divided into numbered shards. Ray hands shards to workers, and those of a lost
worker to another; a worker writes each as one Parquet file, whole or not at all. What is there is not computed again.
"""

from __future__ import annotations

import io
import json
import math
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from erpcnet.config.ranges import shorten
from erpcnet.data.images import load_image, read_image
from erpcnet.errors import InputError
from erpcnet.inference.class_table import Candidates
from erpcnet.inference.classifier import TOP
from erpcnet.inference.loading import load
from erpcnet.inference.model_file import model_path, read_model
from erpcnet.inference.prediction import Prediction
from erpcnet.inference.ray_shards import (
    BYTES,
    PATH,
    claim_job,
    digest_of,
    divide_pictures,
    existing_source,
    read_rows,
    remove_partial,
    shard_file,
    shard_file_name,
)
from erpcnet.utils.files import as_path
from erpcnet.utils.progress import bar

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1  # of the manifest; raised whenever shards of older jobs can no longer be continued
GPU_PARTS = 10_000  # Ray counts a GPU in so many
LARGEST_INDEX = 10**9


class PicturePredictor:
    """Predicts batches of pictures: an actor for `ray.data.Dataset.map_batches`, and a plain callable without Ray.

    A picture that cannot be read gives a row that says why.

    Args:
        run: The folder of a run, or a model.safetensors, where the worker finds it.
        top: How many classes to name of each picture, up to five.
        candidates: `all`, `unseen`, or classes by name.
        batch_size: Crops of pictures that run at once, whatever the size of the batches that come.
        root: What paths are relative to.
        threads: That open pictures while others are predicted.

    Raises:
        InputError: There is no such run, or a class is unknown.

    Examples:
        >>> pictures = ray.data.read_binary_files("photos", include_paths=True)
        >>> found = pictures.map_batches(
        ...     PicturePredictor,
        ...     fn_constructor_args=["/shared/runs/mine"],
        ...     batch_size=1024,
        ...     compute=ray.data.ActorPoolStrategy(size=4),
        ...     num_gpus=1,
        ... )
        >>> found.write_parquet("found")
    """

    def __init__(
        self,
        run: str | Path,
        top: int = TOP,
        candidates: Candidates = "all",
        batch_size: int = 64,
        root: str | Path = ".",
        threads: int = 1,
    ) -> None:
        self._top, self._threads = _whole("top", top, TOP), _whole("threads", threads)
        self._batch_size = _whole("batch_size", batch_size)
        self._root = as_path(root, "the root of the pictures")
        self._classifier = load(run)
        self._candidates = candidates
        self._classifier.classes.select(candidates)  # refused before the work
        self._size = max(1, batch_size // self._classifier.data.test_crops)
        # A GPU's graphs are captured for one size of batches; the last one is filled up to it.
        self._fill = next(self._classifier.network.parameters()).is_cuda

    def __call__(self, batch: Mapping[str, Any]) -> pa.Table:
        """Predict pictures.

        Args:
            batch: Column to values: `path`, and `bytes`, a picture's file, where it shall not be opened by its path.

        Returns:
            In the same order `path`, `name`, `confidence`, `top` (likeliest classes with confidences), `rejected`,
            `steps` and `error`, which alone is there of a picture that cannot be read.
        """
        if PATH not in batch:
            raise InputError(f"pictures have a column '{PATH}'; these have {shorten(list(batch))}.")
        paths = [None if path is None else str(path) for path in batch[PATH]]
        found: list[Prediction | str] = [""] * len(paths)
        waiting: list[tuple[int, Image.Image]] = []
        for place, opened in enumerate(self._opened(paths, batch.get(BYTES))):
            if isinstance(opened, str):
                found[place] = opened
                continue
            waiting.append((place, opened))
            if len(waiting) == self._size:
                self._predict(waiting, found)
                waiting = []
        if waiting:
            self._predict(waiting, found)
        return _table(paths, found, self._top)

    def _opened(self, paths: Sequence[str | None], contents: Any) -> Iterator[Image.Image | str]:
        """Each picture, or what is wrong with it; the next two batches are opened meanwhile, and no more."""
        ahead: deque[Future[Image.Image | str]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            for place, path in enumerate(paths):
                ahead.append(pool.submit(self._open, path, None if contents is None else contents[place]))
                if len(ahead) > 2 * self._size:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _open(self, path: str | None, content: bytes | None) -> Image.Image | str:
        try:
            if content is not None:
                return read_image(io.BytesIO(content), path or "a picture without a path")
            return load_image(self._root / as_path(path, "the path of a picture"))
        except InputError as error:
            return str(error)

    def _predict(self, pictures: Sequence[tuple[int, Image.Image]], found: list[Prediction | str]) -> None:
        opened = [picture for _, picture in pictures]
        if self._fill:
            opened += [opened[-1]] * (self._size - len(opened))
        predictions = self._classifier.predict(opened, self._candidates, self._batch_size)
        for (place, _), prediction in zip(pictures, predictions, strict=False):
            found[place] = prediction


@dataclass(frozen=True)
class RayJob:
    """What `predict_with_ray` has done.

    Attributes:
        shards: How many the pictures are divided into, all of which are there now.
        computed: How many of them were computed this time.
        pictures: In the shards that were computed this time.
        broken: How many of these could not be read.
    """

    shards: int
    computed: int
    pictures: int
    broken: int


def predict_with_ray(
    run: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    batch_size: int = 64,
    shard_size: int = 10_000,
    top: int = TOP,
    candidates: Candidates = "all",
) -> RayJob:
    """Predict a folder or Parquet files of pictures on the workers of a Ray cluster.

    Uses the cluster that Ray is connected to, or else one on this machine. The run, the source and the output lie on
    storage that every worker reaches by the same path. Called again, it goes on where it was stopped; a worker that is
    lost is replaced, and what it had not finished done again. The GPUs and cores of the cluster, as it is when called,
    are divided evenly.

    Args:
        run: The folder of a run, or a model.safetensors.
        source: A folder of pictures; or a Parquet file, or a folder in which such lie, with a column `path` (relative
            to that folder) and perhaps `bytes`, the picture's file.
        out: A folder of its own for the shards, `part-000000.parquet` and on, with the columns of `PicturePredictor`.
        workers: How many there are at once; several share a GPU where there are fewer.
        batch_size: Crops of pictures that run at once.
        shard_size: Pictures a shard: what is lost with a worker.
        top: How many classes to name of each picture, up to five.
        candidates: `all`, `unseen`, or classes by name.

    Returns:
        How many shards there are, and how many were computed now.

    Raises:
        InputError: An argument is wrong, the cluster has no room, or `out` holds another job: another list of
            pictures, model, candidates, top or shard size.

    Examples:
        >>> predict_with_ray("runs/mine", "photos", "found", workers=8, batch_size=256)
    """
    for name, value in (("workers", workers), ("batch_size", batch_size), ("shard_size", shard_size)):
        _whole(name, value)
    _whole("top", top, TOP)
    model, source, out = model_path(run).absolute(), existing_source(source), as_path(out, "the output").absolute()
    read_model(model).classes.select(candidates)  # refused before the work
    candidates = candidates if isinstance(candidates, str) else list(candidates)
    _import_ray()
    root, shards, pictures = divide_pictures(source, shard_size)
    chosen = {"candidates": candidates, "top": top}
    digest = digest_of(model)
    claim_job(out, source, {"format": FORMAT, "model": digest, **pictures, **chosen, "shard_size": shard_size})
    remove_partial(out)
    missing = [shard for number, shard in enumerate(shards) if not (out / shard_file_name(number)).exists()]
    predictor = {"run": str(model), "root": str(root), "batch_size": batch_size, **chosen}
    constructor = {"predictor": predictor, "out": str(out), "model": digest}
    computed = pictures_done = broken = 0
    with bar("Shards", len(shards)) as advance:
        advance(len(shards) - len(missing))
        with closing(_run(missing, workers, constructor)) as done:
            for row in done:
                if row["problem"]:
                    raise InputError(row["problem"])
                computed, pictures_done, broken = computed + 1, pictures_done + row["pictures"], broken + row["broken"]
                advance()
    remove_partial(out)
    return RayJob(len(shards), computed, pictures_done, broken)


def _run(shards: Sequence[str], workers: int, constructor: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
    """Hand shards to workers; how many pictures each held, how many of them were broken, and what went wrong."""
    if not shards:
        return
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = divide_resources(nodes, min(workers, len(shards)))
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        written = ray.data.from_items([{"shard": shard} for shard in shards], override_num_blocks=len(shards))
        written = written.map_batches(
            _ShardWriter,
            batch_size=1,
            fn_constructor_kwargs={**constructor, "threads": cpus},
            # A shard is the unit of work: none waits behind another while a worker has nothing to do.
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards)), max_tasks_in_flight_per_actor=1),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        yield from written.iter_rows()
    finally:
        context.enable_progress_bars = before


class _ShardWriter:
    """The actor of `predict_with_ray`: a shard in, a file out.

    What a person can mend comes back as a sentence; of an exception Ray would make a report on its own insides.
    """

    def __init__(self, predictor: Mapping[str, Any], out: str, model: str, threads: int) -> None:
        self._root, self._out, self._problem = Path(predictor["root"]), Path(out), ""
        try:
            self._predict = PicturePredictor(**predictor, threads=threads)
            if digest_of(Path(predictor["run"])) != model:
                raise InputError(f"{predictor['run']} is another model than that which the job began with.")
        except InputError as error:
            self._problem = str(error)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        (shard,) = batch["shard"]
        pictures, broken, problem = 0, 0, self._problem
        if not problem:
            try:
                errors = self._write(json.loads(shard)).column("error")
                pictures, broken = len(errors), len(errors) - errors.null_count
            except InputError as error:
                problem = str(error)
        return {"pictures": np.array([pictures]), "broken": np.array([broken]), "problem": np.array([problem])}

    def _write(self, shard: Mapping[str, Any]) -> pa.Table:
        import pyarrow.parquet as pq

        path = self._out / shard_file_name(shard["number"])
        with shard_file(path) as file:
            table = self._predict({PATH: shard["paths"]} if "paths" in shard else read_rows(self._root, shard["rows"]))
            pq.write_table(table, file, compression="zstd")
        return table


def divide_resources(nodes: Sequence[Mapping[str, float]], workers: int) -> tuple[int, float]:
    """Cores and GPUs of each worker, so that all of them find room; on nodes with GPUs, if there are any.

    Args:
        nodes: Each one's `CPU` and `GPU`.
        workers: How many.

    Returns:
        Cores, one at least, and GPUs: one, an even part of one, or none.

    Raises:
        InputError: There are fewer cores than workers.

    Examples:
        >>> divide_resources([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}], 3)
        (8, 1.0)
    """
    with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
    nodes = with_gpu or nodes
    on_each = math.ceil(workers / sum(int(node["GPU"]) for node in nodes)) if with_gpu else 0

    def room(cpus: int) -> int:
        of_cores = (int(node.get("CPU", 0)) // cpus for node in nodes)
        return sum(
            min(cores, int(node["GPU"]) * on_each) if on_each else cores
            for cores, node in zip(of_cores, nodes, strict=True)
        )

    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    for cpus in range(most, 0, -1):
        if room(cpus) >= workers:
            return cpus, GPU_PARTS // on_each / GPU_PARTS if on_each else 0.0
    raise InputError(f"the cluster has room for {room(1)} workers, not for {workers}; give fewer.")


def _table(paths: Sequence[str | None], found: Sequence[Prediction | str], top: int) -> pa.Table:
    import pyarrow as pa

    likeliest = pa.list_(pa.struct([("name", pa.string()), ("confidence", pa.float32())]))
    schema = pa.schema(
        {
            PATH: pa.string(),
            "name": pa.string(),
            "confidence": pa.float32(),
            "top": likeliest,
            "rejected": pa.bool_(),
            "steps": pa.int32(),
            "error": pa.string(),
        }
    )
    rows = [
        {PATH: _text(path), "error": _text(one)}
        if isinstance(one, str)
        else {
            PATH: _text(path),
            "name": one.name,
            "confidence": one.confidence,
            "top": [{"name": name, "confidence": chance} for name, chance in one.top[:top]],
            "rejected": one.rejected,
            "steps": one.steps,
        }
        for path, one in zip(paths, found, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema)


def _text(name: str | None) -> str | None:
    """The name of a file, which may be no UTF-8, as text."""
    return None if name is None else name.encode("utf-8", "backslashreplace").decode()


def _whole(name: str, value: object, most: int = LARGEST_INDEX) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        limit = f"from 1 to {most}" if most < LARGEST_INDEX else "1 or more"
        raise InputError(f"{name} is {shorten(value)}; it must be a whole number, {limit}.")
    return value


def _import_ray() -> Any:
    """Ray with its datasets, an extra."""
    try:
        import pyarrow.parquet
        import ray.data
    except ModuleNotFoundError:
        raise InputError("prediction on a cluster needs pip install 'erpcnet[ray]'.") from None
    del pyarrow
    return ray
