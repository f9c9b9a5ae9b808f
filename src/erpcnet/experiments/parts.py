"""Do the chosen windows hold the parts that tell classes apart? For datasets that know where parts are."""

from __future__ import annotations

import csv
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from erpcnet.data import ZeroShotDataset
from erpcnet.data.images import load_image
from erpcnet.data.views import centre_boxes
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


def part_places(dataset: ZeroShotDataset, rows: np.ndarray, centre: float) -> Tensor:
    """Where the distinguishing part of each image lies in the network's view: [N, 2] x, y as shares of the view."""
    if "parts" not in dataset.extras:
        raise InputError(f"{dataset.root} has no parts.csv, so nobody knows where the parts are.")
    with dataset.extras["parts"].open(newline="", encoding="utf-8") as file:
        places = {(row["image"], row["part"]): (float(row["x"]), float(row["y"])) for row in csv.DictReader(file)}
    wanted = distinguishing_parts(dataset)
    found = []
    for row in rows:
        path = dataset.image_paths[row]
        width, height = load_image(dataset.root / path).size
        left, upper, right, lower = centre_boxes(torch.tensor([[float(height), float(width)]]), centre)[0].tolist()
        x, y = places[path, wanted[int(dataset.labels[row])]]
        found.append(((x / width - left) / (right - left), (y / height - upper) / (lower - upper)))
    return torch.tensor(found)


def hits(cells: Tensor, places: Tensor, grid: Grid) -> Tensor:
    """Whether one of the first t windows of each image holds its place: cells [N, T], places [N, 2] to [N, T]."""
    boxes = grid.boxes(1)[cells]
    x, y = places[:, None, 0], places[:, None, 1]
    inside = (boxes[..., 0] <= x) & (x < boxes[..., 2]) & (boxes[..., 1] <= y) & (y < boxes[..., 3])
    return inside.cumsum(dim=1) > 0
