"""Naming what is in a picture, from attributes alone, and saying where one looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from erpcnet.data.images import load_image, squeeze, to_rgb
from erpcnet.data.settings import DataSettings
from erpcnet.data.views import centre_boxes, take_views
from erpcnet.errors import InputError
from erpcnet.evaluation.stacking import stack
from erpcnet.inference.engine import Engine, Execution
from erpcnet.model import ERPCNet
from erpcnet.model.walk import StopRule, Walk

Picture = str | Path | Image.Image
Candidates = Literal["unseen", "all"] | Sequence[str]


@dataclass(frozen=True)
class ClassTable:
    """Classes by their attributes: names [C], raw attributes [C, A], and whether training saw images of them [C]."""

    names: tuple[str, ...]
    attributes: np.ndarray
    seen: np.ndarray
    attribute_names: tuple[str, ...]

    def phi(self) -> Tensor:
        """Rows of length 1."""
        norms = np.linalg.norm(self.attributes, axis=1, keepdims=True)
        return torch.from_numpy((self.attributes / norms).astype(np.float32))

    def select(self, candidates: Candidates) -> ClassTable:
        """The unseen classes, all of them, or those named."""
        if not candidates or (isinstance(candidates, str) and candidates not in ("unseen", "all")):
            raise InputError(f"candidates are 'unseen', 'all' or a list of names, not {candidates!r}.")
        if candidates == "all":
            return self
        if candidates == "unseen":
            rows = np.flatnonzero(~self.seen)
        else:
            unknown = [name for name in candidates if name not in self.names]
            if unknown:
                raise InputError(f"there is no class '{unknown[0]}'; add it with its attributes first.")
            rows = np.array([self.names.index(name) for name in candidates])
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            attributes=self.attributes[rows],
            seen=self.seen[rows],
        )


@dataclass(frozen=True)
class Region:
    """One look: the window in pixels of the picture, and what the answer was after it."""

    box: tuple[float, float, float, float]
    answer: str
    confidence: float


@dataclass(frozen=True)
class Recognition:
    """What is in a picture: the class, how sure, the regions looked at in order, and the predicted attributes."""

    name: str
    confidence: float
    regions: tuple[Region, ...]
    first_answer: str
    first_confidence: float
    attributes: dict[str, float]

    @property
    def steps(self) -> int:
        return len(self.regions)


class Recogniser:
    """A trained network with its preprocessing, its classes and its settings: what `erpcnet.load` returns."""

    def __init__(
        self,
        network: ERPCNet,
        classes: ClassTable,
        data: DataSettings,
        sigma: float,
        delta: float,
        seed: int = 0,
        execution: Execution = "auto",
    ) -> None:
        self.network, self.classes, self.data = network.eval(), classes, data
        self.engine = Engine(self.network, execution, seed)
        self.sigma, self.delta = sigma, delta

    def add_classes(self, attributes: Mapping[str, Sequence[float] | Mapping[str, float]]) -> None:
        """Make classes known by their attributes alone: a list in the table's order, or name to value (others 0)."""
        names = self.classes.attribute_names
        rows = []
        for name, row in attributes.items():
            if name in self.classes.names:
                raise InputError(f"class '{name}' is known already.")
            wrong = [key for key in row if key not in names] if isinstance(row, Mapping) else []
            if wrong:
                raise InputError(f"class '{name}': there is no attribute '{wrong[0]}'.")
            values = np.asarray([row.get(key, 0.0) for key in names] if isinstance(row, Mapping) else row, dtype=float)
            if values.shape != (len(names),) or not np.isfinite(values).all() or not values.any():
                raise InputError(f"class '{name}': it needs {len(names)} finite values, not all 0.")
            rows.append(values)
        self.classes = replace(
            self.classes,
            names=(*self.classes.names, *attributes),
            attributes=np.vstack([self.classes.attributes, *rows]).astype(np.float32),
            seen=np.concatenate([self.classes.seen, np.zeros(len(rows), dtype=bool)]),
        )

    @torch.inference_mode()
    def predict(
        self, pictures: Sequence[Picture], candidates: Candidates = "unseen", batch_size: int = 64
    ) -> list[Recognition]:
        """Recognise pictures among the unseen classes, all classes (calibrated), or classes by name."""
        found: list[Recognition] = []
        table = self.classes.select(candidates)
        for start in range(0, len(pictures), batch_size):
            found.extend(self._predict([open_picture(p) for p in pictures[start : start + batch_size]], table))
        return found

    def _predict(self, pictures: list[Image.Image], table: ClassTable) -> list[Recognition]:
        device = next(self.network.parameters()).device
        views, boxes = self._views(pictures)
        phi = table.phi().to(device)
        stop = StopRule(self.sigma, phi) if self.network.policy is not None else None
        seen = self.engine.walk(views.to(device), stop)
        answers, confidence = self._answers(seen, phi, torch.from_numpy(table.seen).to(device))
        windows = self.network.grid.boxes(self.data.image_size) / self.data.image_size
        return [
            self._recognition(row, seen, answers, confidence, table, windows, box, picture.size)
            for row, (picture, box) in enumerate(zip(pictures, boxes, strict=True))
        ]

    def _views(self, pictures: list[Image.Image]) -> tuple[Tensor, Tensor]:
        """The pictures as the cache and the feed would give them, and what part of each that is (shares)."""
        side = self.data.stored_size
        pixels = torch.from_numpy(np.stack([squeeze(picture, side) for picture in pictures])).contiguous()
        boxes = centre_boxes(
            torch.tensor([(p.height, p.width) for p in pictures], dtype=torch.float32), self.data.centre
        )
        return take_views(pixels, boxes, self.data.image_size), boxes

    def _answers(self, seen: Walk, phi: Tensor, is_seen: Tensor) -> tuple[Tensor, Tensor]:
        """After the glance and after every step: the class answered and (p_joint + p_global) / 2 of it, [N, T + 1]."""
        of_global = self.network.global_fit(seen.whole, phi)
        combined, chances = [of_global], [of_global.softmax(dim=1)]
        for step in range(self.network.steps):
            of_joint = self.network.joint_fit(seen.joint[:, step], phi)
            combined.append(self.network.combine(of_global, of_joint, step + 1))
            chances.append((of_global.softmax(dim=1) + of_joint.softmax(dim=1)) / 2)
        mixed = bool(is_seen.any()) and not bool(is_seen.all())
        answers = [stack(u, is_seen).predict(self.delta) if mixed else u.argmax(dim=1) for u in combined]
        sure = [chance.gather(1, answer[:, None])[:, 0] for chance, answer in zip(chances, answers, strict=True)]
        return torch.stack(answers, dim=1).cpu(), torch.stack(sure, dim=1).cpu()

    def _recognition(
        self,
        row: int,
        seen: Walk,
        answers: Tensor,
        confidence: Tensor,
        table: ClassTable,
        windows: Tensor,
        box: Tensor,
        size: tuple[int, int],
    ) -> Recognition:
        taken = int(seen.steps[row])
        regions = tuple(
            Region(
                _to_pixels(windows[int(seen.cells[row, step])], box, size),
                table.names[int(answers[row, step + 1])],
                float(confidence[row, step + 1]),
            )
            for step in range(taken)
        )
        predicted = seen.joint[row, taken - 1] if taken else seen.whole[row]
        return Recognition(
            name=table.names[int(answers[row, taken])],
            confidence=float(confidence[row, taken]),
            regions=regions,
            first_answer=table.names[int(answers[row, 0])],
            first_confidence=float(confidence[row, 0]),
            attributes=dict(zip(table.attribute_names, predicted.tolist(), strict=True)),
        )


def open_picture(picture: Picture) -> Image.Image:
    return to_rgb(picture) if isinstance(picture, Image.Image) else load_image(picture)


def _to_pixels(window: Tensor, view: Tensor, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A window in shares of the view, the view in shares of the picture, to pixels of the picture."""
    x1, y1, x2, y2 = window.tolist()
    left, upper, right, lower = view.tolist()
    width, height = size
    return (
        (left + x1 * (right - left)) * width,
        (upper + y1 * (lower - upper)) * height,
        (left + x2 * (right - left)) * width,
        (upper + y2 * (lower - upper)) * height,
    )
