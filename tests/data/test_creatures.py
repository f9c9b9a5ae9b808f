from __future__ import annotations

import csv
import hashlib
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import TINY
from erpcnet.data import ZeroShotDataset
from erpcnet.data.creatures import (
    LOOKS,
    SMALL_PARTS,
    CreatureSettings,
    draw_classes,
    draw_creature,
    is_creatures,
    make_creatures,
)
from erpcnet.errors import InputError


def _digest(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".erpcnet-cache" not in path.parts)
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_seed_same_bytes_and_another_seed_others(creatures: Path, tmp_path: Path) -> None:
    again = make_creatures(tmp_path / "again", TINY, workers=1)
    assert _digest(again) == _digest(creatures)
    other = make_creatures(tmp_path / "other", CreatureSettings(**{**TINY.__dict__, "seed": 1}), workers=1)
    assert _digest(other)["images/00a/000.png"] != _digest(creatures)["images/00a/000.png"]


def test_siblings_differ_from_the_first_in_one_small_part() -> None:
    classes = draw_classes(CreatureSettings())
    for family in {cls.family for cls in classes}:
        first, *others = [cls for cls in classes if cls.family == family]
        for other in others:
            differing = [part for part in LOOKS if first.usual[part] != other.usual[part]]
            assert len(differing) == 1
            assert differing[0] in SMALL_PARTS


def test_whatever_tells_siblings_apart_tells_several_seen_ones_apart() -> None:
    settings = CreatureSettings()
    classes = draw_classes(settings)
    seen: Counter[tuple[str, frozenset[str]]] = Counter()
    for cls in classes[: settings.siblings * (settings.families - settings.unseen_families)]:
        first = classes[cls.family * settings.siblings]
        seen.update(
            (part, frozenset({look, first.usual[part]}))
            for part, look in cls.usual.items()
            if look != first.usual[part]
        )
    every = {(part, frozenset(pair)) for part in SMALL_PARTS for pair in combinations(LOOKS[part], 2)}
    assert set(seen) == every
    assert min(seen.values()) >= 2


def test_unseen_looks_occur_among_seen_classes() -> None:
    settings = CreatureSettings()
    classes = draw_classes(settings)
    border = settings.families - settings.unseen_families
    known = {(part, look) for cls in classes if cls.family < border for part, look in cls.usual.items()}
    unseen = {(part, look) for cls in classes if cls.family >= border for part, look in cls.usual.items()}
    assert unseen
    assert unseen <= known


def test_attribute_rows_say_how_often_a_part_looks_so(dataset: ZeroShotDataset) -> None:
    assert dataset.attributes.shape == (16, sum(map(len, LOOKS.values())))
    start = 0
    for looks in LOOKS.values():
        part = dataset.attributes[:, start : start + len(looks)]
        np.testing.assert_allclose(part.sum(axis=1), 1, atol=1e-3)
        assert (part.max(axis=1) >= TINY.certainty[0] - 1e-3).all()
        start += len(looks)


def test_parts_are_where_the_truth_says() -> None:
    looks = {part: values[0] for part, values in LOOKS.items()}
    for seed in range(20):
        red, where = draw_creature({**looks, "eye": "red"}, CreatureSettings(), np.random.default_rng(seed))
        yellow, _ = draw_creature({**looks, "eye": "yellow"}, CreatureSettings(), np.random.default_rng(seed))
        changed = np.abs(np.asarray(red, dtype=int) - np.asarray(yellow, dtype=int)).sum(axis=2) > 60
        rows, columns = np.nonzero(changed)
        x, y = where["eye"]
        assert abs(columns.mean() - x) < 3
        assert abs(rows.mean() - y) < 3


def test_parts_csv_names_every_part_of_every_image(creatures: Path, dataset: ZeroShotDataset) -> None:
    with (creatures / "parts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(dataset.image_paths) * 10
    assert all(row["look"] in LOOKS[row["part"]] for row in rows)
    assert {row["image"] for row in rows} == set(dataset.image_paths)


def test_what_is_drawn_already_is_recognised(creatures: Path, tmp_path: Path) -> None:
    assert is_creatures(creatures, TINY)
    assert not is_creatures(creatures, CreatureSettings())
    assert not is_creatures(tmp_path, TINY)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not empty"):
        make_creatures(tmp_path, TINY)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_pictures_vary_in_place_and_ground(creatures: Path) -> None:
    first, second = (np.asarray(Image.open(creatures / f"images/00a/00{n}.png"), dtype=int) for n in (0, 1))
    assert np.abs(first - second).mean() > 10
