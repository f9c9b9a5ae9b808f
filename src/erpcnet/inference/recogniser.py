"""Naming what is in a picture, from attributes alone, and saying where one looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from erpcnet.data.images import load_image, squeeze, to_rgb
from erpcnet.data.settings import DataSettings
from erpcnet.data.views import View, centre_boxes, take_views, views_at_test
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
    """What is in a picture: the class, how sure, the regions looked at in order, and the predicted attributes.

    Where the network is shown several views of a picture, class, confidence and attributes are of all of them, and
    the regions, and what was answered on the way, of the first.
    """

    name: str
    confidence: float
    regions: tuple[Region, ...]
    first_answer: str
    first_confidence: float
    attributes: dict[str, float]

    @property
    def steps(self) -> int:
        return len(self.regions)


class Answers(NamedTuple):
    """The class answered, as a row of the table, and how sure that is; both [N, T]."""

    classes: Tensor
    confidence: Tensor

    def row(self, number: int) -> Answers:
        """Those of one picture, [T]."""
        return Answers(self.classes[number], self.confidence[number])


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
        device, count = next(self.network.parameters()).device, len(pictures)
        shown, boxes = self._views(pictures)
        phi = table.phi().to(device)
        stop = StopRule(self.sigma, phi) if self.network.policy is not None else None
        seen = self.engine.walk(shown.to(device), stop)
        is_seen = torch.from_numpy(table.seen).to(device)
        scores, chances = self._by_step(seen, phi)
        on_the_way = self._answers(scores[:count], chances[:count], is_seen)
        attributes = torch.cat([seen.whole[:, None], seen.joint], dim=1)
        ends = torch.arange(len(seen.steps), device=device), seen.steps
        scores, chances, attributes = (_over_views(one[ends], count) for one in (scores, chances, attributes))
        final = self._answers(scores[:, None], chances[:, None], is_seen)
        return [
            Recognition(
                name=table.names[int(final.classes[row])],
                confidence=float(final.confidence[row]),
                regions=self._regions(seen.cells[row, : seen.steps[row]], on_the_way.row(row), table, box, picture),
                first_answer=table.names[int(on_the_way.classes[row, 0])],
                first_confidence=float(on_the_way.confidence[row, 0]),
                attributes=dict(zip(table.attribute_names, attributes[row].tolist(), strict=True)),
            )
            for row, (picture, box) in enumerate(zip(pictures, boxes, strict=True))
        ]

    def _regions(
        self, cells: Tensor, answers: Answers, table: ClassTable, view: Tensor, picture: Image.Image
    ) -> tuple[Region, ...]:
        """The windows of one walk [T], with what was answered after the glance and each of them [T + 1]."""
        windows = self.network.grid.boxes(self.data.image_size)[cells.cpu()] / self.data.image_size
        after = zip(windows, answers.classes[1:], answers.confidence[1:], strict=False)
        return tuple(
            Region(_to_pixels(window, view, picture.size), table.names[int(answer)], float(confidence))
            for window, answer, confidence in after
        )

    def _views(self, pictures: list[Image.Image]) -> tuple[Tensor, Tensor]:
        """The pictures as the cache and the feed would give them, in one view after the other, and what part of each
        the first view is (shares)."""
        side, size = self.data.stored_size, self.data.image_size
        pixels = torch.from_numpy(np.stack([squeeze(picture, side) for picture in pictures])).contiguous()
        shapes = torch.tensor([(p.height, p.width) for p in pictures], dtype=torch.float32)

        def cut(view: View) -> Tensor:
            flip = torch.full((len(pictures),), view.mirrored)
            return take_views(pixels, centre_boxes(shapes, view.share), size, flip)

        views = views_at_test(self.data.centre, self.data.test_views)
        return torch.cat([cut(view) for view in views]), centre_boxes(shapes, self.data.centre)

    def _by_step(self, seen: Walk, phi: Tensor) -> tuple[Tensor, Tensor]:
        """After the glance and every step, of every class: scores, and (p_joint + p_global) / 2, both [N, T + 1, C]."""
        of_global = self.network.global_fit(seen.whole, phi)
        scores, chances = [of_global], [of_global.softmax(dim=1)]
        for step in range(self.network.steps):
            of_joint = self.network.joint_fit(seen.joint[:, step], phi)
            scores.append(self.network.combine(of_global, of_joint, step + 1))
            chances.append((of_global.softmax(dim=1) + of_joint.softmax(dim=1)) / 2)
        return torch.stack(scores, dim=1), torch.stack(chances, dim=1)

    def _answers(self, scores: Tensor, chances: Tensor, is_seen: Tensor) -> Answers:
        """Scores and chances [N, T, C] to the class answered and the chance of it."""
        flat = scores.flatten(0, 1)
        mixed = bool(is_seen.any()) and not bool(is_seen.all())
        best = stack(flat, is_seen).predict(self.delta) if mixed else flat.argmax(dim=1)
        classes = best.view(scores.shape[:2])
        return Answers(classes.cpu(), chances.gather(2, classes[..., None])[..., 0].cpu())


def _over_views(found: Tensor, count: int) -> Tensor:
    """[views * count, ...] to its mean over views, [count, ...]."""
    return found.unflatten(0, (-1, count)).mean(dim=0)


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
