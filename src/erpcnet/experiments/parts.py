"""Do the chosen windows hold the parts that matter? For datasets that know where parts are."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from erpcnet.data import ZeroShotDataset
from erpcnet.data.images import image_shape
from erpcnet.data.transforms import centre_boxes
from erpcnet.errors import InputError
from erpcnet.model import Grid


def distinguishing_parts(dataset: ZeroShotDataset) -> dict[int, str]:
    """For each unseen class the part (attribute names before ': ') in which the nearest unseen class differs most."""
    groups = defaultdict(list)
    for column, name in enumerate(dataset.attribute_names):
        groups[name.partition(":")[0]].append(column)
    found: dict[int, str] = {}
    for label in dataset.unseen:
        others = dataset.unseen[dataset.unseen != label]
        differences = np.abs(dataset.attributes[others] - dataset.attributes[label])
        nearest = differences[differences.sum(axis=1).argmin()]
        found[int(label)] = max(groups, key=lambda part: nearest[groups[part]].sum())
    return found


def part_places(dataset: ZeroShotDataset, rows: np.ndarray, crop_share: float) -> Tensor:
    """Where the parts that matter lie in the centre crop of each image: [N, parts, 2] x, y as shares of the crop.

    With a parts.csv it is the one part that tells an image's class from the nearest; with CUB's part_locs.txt
    all that are visible, the others being NaN.
    """
    places = every_part(dataset, rows, crop_share)
    if _source(dataset).name == "part_locs.txt":
        return torch.stack(list(places.values()), dim=1)
    wanted = distinguishing_parts(dataset)
    own = [places[wanted[int(label)]][number] for number, label in enumerate(dataset.labels[rows])]
    return torch.stack(own)[:, None]


def every_part(dataset: ZeroShotDataset, rows: np.ndarray, crop_share: float) -> dict[str, Tensor]:
    """Where each part lies in the centre crop of each image, by the part's name: [N, 2] x, y as shares of the crop,
    NaN where it is not visible.

    Raises:
        InputError: The dataset says nowhere where parts are.
    """
    source = _source(dataset)
    shares = _birds(dataset, rows, source) if source.name == "part_locs.txt" else _creatures(dataset, rows, source)
    shapes = _shapes(dataset, rows)
    return {name: _in_crop(own[:, None], shapes, crop_share)[:, 0] for name, own in shares.items()}


def _source(dataset: ZeroShotDataset) -> Path:
    source: Path | None = dataset.extras.get("parts")
    if source is None:
        raise InputError(f"{dataset.root} says nowhere where parts are (parts.csv, or CUB's parts/part_locs.txt).")
    return source


def bird_boxes(dataset: ZeroShotDataset, rows: np.ndarray, crop_share: float) -> Tensor:
    """CUB's box of each bird in the centre crop, cut to it: [N, 4] x1, y1, x2, y2 as shares of the crop."""
    folder = dataset.extras["parts"].parent.parent
    numbers, sizes = _numbers(dataset, rows, folder), _sizes(dataset, rows, folder)
    boxes = {int(line[0]): [float(v) for v in line[1:]] for line in _lines(folder / "bounding_boxes.txt")}
    left, upper, width, height = torch.tensor([boxes[number] for number in numbers], dtype=torch.float64).T
    corners = torch.stack([left, upper, left + width, upper + height], dim=1).view(-1, 2, 2) / sizes[:, None]
    return _in_crop(corners, _shapes(dataset, rows), crop_share).clamp(0, 1).flatten(1)


def hits(cells: Tensor, places: Tensor, grid: Grid) -> Tensor:
    """The share of an image's places that lie in one of its first t windows.

    cells [N, T], places [N, parts, 2] to [N, T]; NaN where none of the image's parts is in the crop.
    """
    boxes = grid.boxes(1).to(places)[cells][:, :, None]
    x, y = places[:, None, :, 0], places[:, None, :, 1]
    inside = (boxes[..., 0] <= x) & (x < boxes[..., 2]) & (boxes[..., 1] <= y) & (y < boxes[..., 3])
    in_crop = ((places >= 0) & (places < 1)).all(dim=2)  # false for NaN
    return ((inside.cumsum(dim=1) > 0) & in_crop[:, None]).sum(dim=2) / in_crop.sum(dim=1, keepdim=True)


def _creatures(dataset: ZeroShotDataset, rows: np.ndarray, source: Path) -> dict[str, Tensor]:
    with source.open(newline="", encoding="utf-8") as file:
        places = {(line["image"], line["part"]): (float(line["x"]), float(line["y"])) for line in csv.DictReader(file)}
    sizes, nowhere = _shapes(dataset, rows).flip(1), (float("nan"),) * 2
    images = [dataset.image_paths[row] for row in rows]
    return {
        part: torch.tensor([places.get((image, part), nowhere) for image in images], dtype=torch.float64) / sizes
        for part in dict.fromkeys(part for _, part in places)
    }


def _birds(dataset: ZeroShotDataset, rows: np.ndarray, source: Path) -> dict[str, Tensor]:
    folder = source.parent.parent
    numbers, sizes = _numbers(dataset, rows, folder), _sizes(dataset, rows, folder)
    lines = np.array(_lines(source), dtype=np.float64)
    places = np.full((int(lines[:, 0].max()) + 1, int(lines[:, 1].max()), 2), np.nan)
    visible = lines[lines[:, 4] > 0]
    places[visible[:, 0].astype(int), visible[:, 1].astype(int) - 1] = visible[:, 2:4]
    names = source.with_name("parts.txt")
    named = {int(number): " ".join(words) for number, *words in _lines(names)} if names.is_file() else {}
    shares = torch.from_numpy(places[numbers]) / sizes[:, None]
    return {named.get(part + 1, f"part {part + 1}"): shares[:, part] for part in range(shares.shape[1])}


def _numbers(dataset: ZeroShotDataset, rows: np.ndarray, folder: Path) -> list[int]:
    """CUB's own number of each image; endings may differ, since people convert images."""
    known = {Path(name).with_suffix("").as_posix(): int(number) for number, name in _lines(folder / "images.txt")}
    paths = [Path(dataset.image_paths[row]) for row in rows]
    return [known[f"{path.parent.name}/{path.stem}"] for path in paths]


def _sizes(dataset: ZeroShotDataset, rows: np.ndarray, folder: Path) -> Tensor:
    """Width and height [N, 2] of the images that CUB's coordinates refer to.

    `image_sizes.txt` (number, width, height) says them where somebody made the images smaller.
    """
    path = folder / "image_sizes.txt"
    if not path.is_file():
        return _shapes(dataset, rows).flip(1)
    known = {int(number): (float(width), float(height)) for number, width, height in _lines(path)}
    return torch.tensor([known[number] for number in _numbers(dataset, rows, folder)], dtype=torch.float64)


def _shapes(dataset: ZeroShotDataset, rows: np.ndarray) -> Tensor:
    """Height and width of the image files, [N, 2]."""
    return torch.tensor([image_shape(dataset.root / dataset.image_paths[row]) for row in rows], dtype=torch.float64)


def _in_crop(shares: Tensor, shapes: Tensor, crop_share: float) -> Tensor:
    """Shares of the image [N, K, 2] to shares of its centre crop."""
    crops = centre_boxes(shapes, crop_share)[:, None]
    return (shares - crops[..., :2]) / (crops[..., 2:] - crops[..., :2])


def _lines(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise InputError(f"{path} is not there; CUB's own metadata has it.")
    return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
