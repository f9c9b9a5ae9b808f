from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import TINY
from erpcnet.config import DataSettings
from erpcnet.data import ImageCache, ImageLoader, ZeroShotDataset, open_cache, read_dataset
from erpcnet.data.cache import FOLDER
from erpcnet.data.creatures import make_creatures
from erpcnet.data.loader import _copy_to
from erpcnet.errors import InputError
from erpcnet.utils.processes import Share


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_creatures(tmp_path / "creatures", TINY, workers=2)


def test_the_cache_is_built_once(root: Path) -> None:
    dataset = read_dataset(root)
    cache = open_cache(dataset, 64)
    for row in (0, 17, 79):
        with Image.open(root / dataset.image_paths[row]) as picture:
            np.testing.assert_array_equal(cache.pixels[row], np.asarray(picture).transpose(2, 0, 1))
    assert (cache.shapes == 64).all()
    built = {path: path.stat().st_mtime_ns for path in (root / FOLDER).glob("*.npy")}
    open_cache(dataset, 64)
    assert {path: path.stat().st_mtime_ns for path in (root / FOLDER).glob("*.npy")} == built


def test_a_changed_source_rebuilds_the_cache(root: Path) -> None:
    dataset = read_dataset(root)
    open_cache(dataset, 64)
    open_cache(dataset, 32)
    assert len(list((root / FOLDER).glob("*.npy"))) == 2
    first = root / dataset.image_paths[0]
    Image.new("RGB", (64, 64), "white").save(first)
    assert (open_cache(dataset, 64).pixels[0] == 255).all()
    assert len(list((root / FOLDER).glob("*.npy"))) == 2


def test_a_broken_image_is_named(root: Path) -> None:
    dataset = read_dataset(root)
    (root / dataset.image_paths[5]).write_bytes(b"not an image")
    with pytest.raises(InputError, match=rf"{dataset.image_paths[5]} does not decode"):
        open_cache(dataset, 64)
    left = [path.name for path in (root / FOLDER).iterdir() if path.suffix != ".lock"]
    assert left == []


def test_two_processes_that_start_at_once_share_one_build(root: Path) -> None:
    program = f"from erpcnet.data import *; print(open_cache(read_dataset({str(root)!r}), 48).pixels.sum())"
    runs = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert printed[0] == printed[1] != ""
    assert len(list((root / FOLDER).glob("*.npy"))) == 1


def test_the_cache_goes_where_the_environment_says(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "ERPCNET_CACHE", str(tmp_path / "elsewhere"))
    open_cache(read_dataset(root), 32)
    assert list((tmp_path / "elsewhere").glob("creatures-*/*.npy"))
    assert not (root / FOLDER).exists()


def test_an_epoch_loads_every_row_once(root: Path) -> None:
    dataset = read_dataset(root)
    loader = ImageLoader(open_cache(dataset, 64), DataSettings(image_size=56))
    generator = torch.Generator().manual_seed(0)
    batches = list(loader.epoch(dataset.train, 6, generator))
    rows = torch.cat([batch.rows for batch in batches])
    assert sorted(rows.tolist()) == sorted(dataset.train.tolist())
    shares = [Share(rank, 4) for rank in range(4)]  # 6 images: 1, 2, 1 and 2
    parts = [list(loader.epoch(dataset.train, 6, torch.Generator().manual_seed(0), share=share)) for share in shares]
    for batch, *own in zip(batches, *parts, strict=True):
        assert [len(part.rows) for part in own] == [1, 2, 1, 2]
        assert torch.equal(batch.rows, torch.cat([part.rows for part in own]))
        torch.testing.assert_close(batch.images, torch.cat([part.images for part in own]))


def test_a_killed_build_is_cleaned_up(root: Path) -> None:
    program = (
        "import os, signal, erpcnet.data.cache as room\n"
        "room.squeeze = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"from erpcnet.data import *; open_cache(read_dataset({str(root)!r}), 40)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert [path.name for path in (root / FOLDER).glob("*.json")] == []
    assert len(list((root / FOLDER).glob(".building-*"))) == 1
    assert open_cache(read_dataset(root), 40).pixels.shape == (80, 3, 40, 40)
    assert list((root / FOLDER).glob(".building-*")) == []


class _PretendedCard:
    """A GPU of some size, of which this process may use a fraction."""

    def __init__(self, gib: float, free: float, fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
        total = int(gib * 2**30)
        monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (int(free * total), total))
        monkeypatch.setattr("torch.cuda.get_per_process_memory_fraction", lambda _: fraction)
        monkeypatch.setattr("torch.cuda.memory_reserved", lambda _: 0)


@pytest.mark.parametrize(
    ("gib", "free", "fraction", "resident"),
    [
        (140, 1, 1, True),
        (24, 0.9, 1, True),
        (8, 1, 1, False),
        (12, 1, 1, False),
        (24, 0.5, 1, False),
        (140, 1, 0.05, False),
    ],
)
def test_pixels_on_a_gpu_leave_room(
    gib: float, free: float, fraction: float, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUB at 512: 8.6 GiB, pretended by one picture that is counted 11,788 times."""
    pixels = np.broadcast_to(np.zeros((1, 3, 512, 512), dtype=np.uint8), (11_788, 3, 512, 512))
    cache = ImageCache(pixels, np.ones((11_788, 2), dtype=np.float32))
    _PretendedCard(gib, free, fraction, monkeypatch)
    copied: list[int] = []
    monkeypatch.setattr("erpcnet.data.loader._copy_to", lambda _, own: copied.append(own.nbytes))
    ImageLoader(cache, DataSettings(), device="cuda")
    assert copied == ([pixels.nbytes] if resident else [])


def test_a_full_gpu_leaves_pixels_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    pixels = np.arange(600 * 3 * 4 * 4, dtype=np.uint8).reshape(600, 3, 4, 4)
    there = _copy_to(torch.device("cpu"), pixels)
    assert there is not None
    assert np.array_equal(there.numpy(), pixels)
    monkeypatch.setattr(torch, "empty", full)
    assert _copy_to(torch.device("cpu"), pixels) is None


@pytest.mark.parametrize("ending", [".npy", ".json"])
def test_what_is_no_file_is_built_again(ending: str, dataset: ZeroShotDataset, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(dataset.root, data, ignore=shutil.ignore_patterns(FOLDER))
    copied = read_dataset(data)
    expected = open_cache(copied, 24).pixels.copy()
    (stored,) = (data / FOLDER).glob(f"*{ending}")
    stored.unlink()
    os.mkfifo(stored)
    assert np.array_equal(open_cache(copied, 24).pixels, expected)


def test_a_damaged_cache_is_built_again(dataset: ZeroShotDataset, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(dataset.root, data, ignore=shutil.ignore_patterns(FOLDER))
    copied = read_dataset(data)
    expected = open_cache(copied, 24).pixels.copy()
    (stored,) = (data / FOLDER).glob("*.npy")
    content = stored.read_bytes()
    # No header; one that is right, with pixels that begin too late or end too late.
    for damaged in (content[:12] + b"((((" + content[16:], content[:128] + content[30:], content + b"x"):
        stored.write_bytes(damaged)
        assert np.array_equal(open_cache(copied, 24).pixels, expected)
