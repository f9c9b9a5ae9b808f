"""Prediction on a cluster of Ray: the same answers as `predict`, whoever is lost or stopped on the way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from erpcnet.errors import InputError
from erpcnet.inference import ray_data, ray_shards
from erpcnet.inference.ray_data import PicturePredictor, RayJob, divide_resources, predict_with_ray
from ray_jobs import (
    BROKEN,
    HAS_RAY,
    PICTURES,
    SHARD,
    SHARDS,
    begun,
    difference,
    draw_pictures,
    kill_one,
    noting,
    on_shards,
    read_shards,
    run_on,
    small_cluster,
    stop,
)
from untrained import untrained_run

if HAS_RAY:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray

needs_ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray Data: pip install 'erpcnet[ray]'")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "run", reject=1.0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


@needs_ray
@pytest.mark.slow
def test_a_job_survives_a_stop_and_a_lost_worker(
    run: Path, pictures: Path, cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first, second = tmp_path / "found", tmp_path / "first", tmp_path / "second"
    predict = partial(predict_with_ray, run, out=out, shard_size=SHARD, top=2)

    with noting(first), on_shards({2: stop}), pytest.raises(KeyboardInterrupt):
        predict(source=pictures)
    assert run_on({pid for _, pid in begun(first)}) == set()
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*")}
    assert 2 <= len(before) < SHARDS - 10

    listed = pictures / "a" / "new.png"
    shutil.copy(pictures / "a" / "0.png", listed)
    with pytest.raises(InputError, match="another list of pictures"):
        predict(source=pictures)
    listed.unlink()
    with pytest.raises(InputError, match="another number of classes to name"):
        predict(source=pictures, top=3)

    lost: list[int] = []

    with noting(second), on_shards({2: lambda: lost.extend(kill_one(second, out))}):
        job = predict(source=pictures, workers=2)
    assert (job.shards, job.computed) == (SHARDS, SHARDS - len(before))
    again = [number for number, _ in begun(second)]
    done = {int(file.stem.removeprefix("part-")) for file in before}
    assert sorted(again) == sorted([*(set(range(SHARDS)) - done), *lost])  # each once, but for what was lost
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert not list(out.glob(".partial-*"))
    assert difference(read_shards(out), run, pictures, top=2) is None
    monkeypatch.setattr(ray, "init", lambda: pytest.fail("nothing is left to do"))
    assert predict(source=pictures) == RayJob(SHARDS, 0, 0, 0)


@needs_ray
@pytest.mark.slow
def test_the_actor_alone_predicts_a_dataset(run: Path, pictures: Path, cluster: None) -> None:
    files = sorted(pictures.glob("*/*.png"))
    rows = [{"path": file.relative_to(pictures).as_posix(), "bytes": file.read_bytes()} for file in files]
    found = ray.data.from_items(rows, override_num_blocks=1).map_batches(
        PicturePredictor,
        fn_constructor_args=[str(run)],
        batch_size=50,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    taken = found.take_all()
    assert len(taken) == len(files) == PICTURES
    assert difference(taken, run, pictures) is None


def write_parquet(pictures: Path, folder: Path) -> None:
    """The pictures in two files, of one folder with their bytes, of the other by their paths, in groups of rows."""
    of_a, of_b = (sorted(name.relative_to(pictures).as_posix() for name in pictures.glob(f"{x}/*")) for x in "ab")
    folder.mkdir()
    with_bytes = {"path": of_a, "bytes": [(pictures / name).read_bytes() for name in of_a]}
    pq.write_table(pa.table(with_bytes), folder / "1.parquet", row_group_size=7)
    (folder / "b").symlink_to(pictures / "b")
    pq.write_table(pa.table({"path": of_b, "other": range(len(of_b))}), folder / "2.parquet", row_group_size=16)


def without_ray(shards: Sequence[str], workers: int, constructor: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The work of one worker, here."""
    writer = ray_data._ShardWriter(**constructor, threads=2)
    for shard in shards:
        yield {name: values[0] for name, values in writer({"shard": [shard]}).items()}


@needs_ray
def test_parquet_in_any_shards(run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(pictures, tmp_path / "listed")
    monkeypatch.setattr(ray_data, "_run", without_ray)
    names = ["class 1", "class 7", "class 8"]
    job = predict_with_ray(run, tmp_path / "listed", tmp_path / "found", shard_size=11, top=3, candidates=names)
    assert job == RayJob(11, 11, PICTURES, 1)
    assert difference(read_shards(tmp_path / "found"), run, pictures, top=3, candidates=names) is None
    changed = tmp_path / "listed" / "2.parquet"
    pq.write_table(pq.read_table(changed).slice(1), changed)
    with pytest.raises(InputError, match="another list of pictures"):
        predict_with_ray(run, tmp_path / "listed", tmp_path / "found", shard_size=11, top=3, candidates=names)


@needs_ray
def test_what_is_given_is_checked(run: Path, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "found"
    for wrong in ({"workers": 0}, {"batch_size": True}, {"shard_size": 1.5}, {"top": 6}):
        (name,) = wrong
        with pytest.raises(InputError, match=f"^{name} is"):
            predict_with_ray(run, pictures, out, **wrong)
    with pytest.raises(InputError, match="there is no class 'x'"):
        predict_with_ray(run, pictures, out, candidates=["x"])
    with pytest.raises(InputError, match="neither a folder nor a Parquet file"):
        predict_with_ray(run, pictures / BROKEN, out)
    with pytest.raises(InputError, match="lies inside"):
        predict_with_ray(run, pictures, pictures / "found")
    with pytest.raises(InputError, match="holds other files"):
        predict_with_ray(run, pictures, run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no picture"):
        predict_with_ray(run, tmp_path / "empty", out)
    (tmp_path / "empty" / "list.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        predict_with_ray(run, tmp_path / "empty", out)
    pq.write_table(pa.table({"path": [1]}), tmp_path / "empty" / "list.parquet")
    with pytest.raises(InputError, match="no column 'path' of texts"):
        predict_with_ray(run, tmp_path / "empty", out)
    assert not out.exists()


@needs_ray
def test_a_shard_that_kills_its_workers_is_given_up(run: Path, pictures: Path, tmp_path: Path) -> None:
    predictor = {"run": str(run / "model.safetensors"), "root": str(pictures)}
    model = ray_shards.digest_of(run / "model.safetensors")
    writer = ray_data._ShardWriter(predictor, str(tmp_path), model, threads=1)
    shard = {"shard": ['{"number": 3, "paths": ["a/0.png", "", "\\udcff.png"]}']}
    for lost in range(ray_shards.ATTEMPTS):
        assert writer(shard) == {"pictures": [3], "broken": [2], "problem": [""]}
        (tmp_path / f".partial-{lost}-part-000003.parquet").touch()
    (problem,) = writer(shard)["problem"]
    assert problem.startswith("5 workers were lost with part-000003.parquet")


@needs_ray
def test_what_a_worker_cannot_do_is_told(
    run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(run, tmp_path / "run")
    write_parquet(pictures, tmp_path / "listed")

    def late(harm: Callable[[], object]) -> Callable[..., Iterator[dict[str, Any]]]:
        """Something goes wrong once the work has been divided."""

        def worker(*given: Any) -> Iterator[dict[str, Any]]:
            harm()
            yield from without_ray(*given)

        return worker

    monkeypatch.setattr(ray_data, "_run", late((tmp_path / "listed" / "1.parquet").unlink))
    with pytest.raises(InputError, match=r"1\.parquet cannot be read"):
        predict_with_ray(other, tmp_path / "listed", tmp_path / "1")
    untrained_run(tmp_path / "another", reject=2.0)
    swap = partial(shutil.copytree, tmp_path / "another", other, dirs_exist_ok=True)
    monkeypatch.setattr(ray_data, "_run", late(swap))
    with pytest.raises(InputError, match="another model than"):
        predict_with_ray(other, pictures, tmp_path / "2")
    monkeypatch.setattr(ray_data, "_run", late(partial(shutil.rmtree, tmp_path / "3")))
    with pytest.raises(InputError, match="cannot be written"):
        predict_with_ray(run, pictures, tmp_path / "3")


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        ([{"CPU": 2.0}], 2, (1, 0.0)),
        ([{"CPU": 16.0}, {"CPU": 8.0}, {}], 3, (8, 0.0)),
        ([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 64.0}], 2, (8, 1.0)),
        ([{"CPU": 16.0, "GPU": 1.0}], 6, (2, 0.1666)),
        ([{"CPU": 96.0, "GPU": 8.0}, {"CPU": 48.0, "GPU": 8.0}], 16, (6, 1.0)),
    ],
)
def test_a_cluster_is_divided_evenly(nodes: list[dict[str, float]], workers: int, expected: tuple[int, float]) -> None:
    assert divide_resources(nodes, workers) == expected
    with pytest.raises(InputError, match="the cluster has room for"):
        divide_resources(nodes, 1000)


def test_ray_is_imported_by_nobody_else() -> None:
    program = (
        "import sys, erpcnet.inference.ray_data, erpcnet.cli; print(*{'ray', 'pyarrow', 'torch'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.split() == ["torch"]  # which shows that what was imported is told
