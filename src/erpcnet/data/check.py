"""Reading a dataset whole, and saying everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.images import load_image
from erpcnet.data.readers import read_dataset
from erpcnet.errors import InputError, MissingImagesError
from erpcnet.utils.progress import track


@dataclass(frozen=True)
class Report:
    """What a dataset holds, and what is wrong with it."""

    facts: dict[str, Any]
    problems: list[str]

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def check_dataset(root: str | Path) -> Report:
    """Read tables and every image of a dataset."""
    try:
        dataset = read_dataset(root)
    except MissingImagesError as error:
        problems = [f"{path} is not there." for path in error.missing]
        return Report({"missing images": len(problems), "where from": error.source or "see docs/datasets.md"}, problems)
    problems = [*_miscounted(dataset), *_broken(dataset), *_repeated(dataset), *_alike(dataset)]
    return Report(_facts(dataset), problems)


def _facts(dataset: ZeroShotDataset) -> dict[str, Any]:
    norms = np.linalg.norm(dataset.attributes, axis=1)
    return {
        "dataset": dataset.name,
        "images": len(dataset.image_paths),
        "train": len(dataset.train),
        "test_seen": len(dataset.test_seen),
        "test_unseen": len(dataset.test_unseen),
        "seen classes": len(dataset.seen),
        "unseen classes": len(dataset.unseen),
        "attributes": len(dataset.attribute_names),
        "attribute values": f"{dataset.attributes.min():g} to {dataset.attributes.max():g}",
        "attribute norms": f"{norms.min():.3f} to {norms.max():.3f}",
        "validation folds": len(dataset.folds),
    }


def _miscounted(dataset: ZeroShotDataset) -> Iterable[str]:
    """Splits of a known dataset that are not of the known size."""
    for split, known in dataset.extras.get("counts", {}).items():
        found = len(getattr(dataset, split))
        if found != known:
            yield f"{dataset.root}: {split} has {found} images; the Proposed Split of {dataset.name} has {known}."


def _broken(dataset: ZeroShotDataset) -> Iterable[str]:
    """Images that do not decode."""
    boxes = dataset.boxes if dataset.boxes is not None else [None] * len(dataset.image_paths)
    jobs = [(dataset.root / name, box) for name, box in zip(dataset.image_paths, boxes, strict=True)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        found = track(pool.map(_problem_of, jobs), total=len(jobs), what="Reading images")
        return [problem for problem in found if problem]


def _problem_of(job: tuple[Path, Any]) -> str:
    try:
        load_image(*job)
    except InputError as error:
        return str(error)
    return ""


def _repeated(dataset: ZeroShotDataset) -> Iterable[str]:
    """One instance listed twice."""
    boxes = dataset.boxes
    listed: set[tuple[str, ...]] = set()
    for row, name in enumerate(dataset.image_paths):
        key = (name,) if boxes is None else (name, *map(str, boxes[row]))
        if key in listed:
            yield f"{dataset.root / name} is listed more than once."
        listed.add(key)


def _alike(dataset: ZeroShotDataset) -> Iterable[str]:
    """Classes that no attribute tells apart."""
    rows = np.ascontiguousarray(dataset.unit_attributes.round(6))
    first: dict[bytes, str] = {}
    for name, row in zip(dataset.classes, rows, strict=True):
        other = first.setdefault(row.tobytes(), name)
        if other != name:
            yield f"classes '{other}' and '{name}' have the same attributes, so nothing tells them apart."
