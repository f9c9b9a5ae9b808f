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
from erpcnet.data.views import centre_boxes, closer_boxes, over_views, take_views
from erpcnet.errors import InputError
from erpcnet.evaluation.stacking import stack
from erpcnet.inference.engine import Engine, Execution
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.walk import StopRule, Walk

Picture = str | Path | Image.Image
Candidates = Literal["unseen", "all"] | Sequence[str]
Box = tuple[float, float, float, float]  # left, upper, right and lower, in pixels of the picture


WHOLE = torch.tensor([0.0, 0.0, 1.0, 1.0])  # a window that is the whole view


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
    """One look: the window, and what the answer was after it."""

    box: Box
    answer: str
    confidence: float


@dataclass(frozen=True)
class Recognition:
    """What is in a picture: the class, how sure, the regions looked at in order, and the predicted attributes.

    Where the network is shown several views of a picture, class, confidence and attributes are of all of them, and
    the regions, and what was answered on the way, of the first; `closer` is the part of the picture that it found worth
    a closer view.
    """

    name: str
    confidence: float
    regions: tuple[Region, ...]
    first_answer: str
    first_confidence: float
    attributes: dict[str, float]
    views: int = 1
    closer: Box | None = None

    @property
    def steps(self) -> int:
        return len(self.regions)


class Evidence(NamedTuple):
    """After the glance and after every step: scores of the classes, their chances (p_joint + p_global) / 2, both
    [N, S, C], and attributes [N, S, A].
    """

    scores: Tensor
    chances: Tensor
    attributes: Tensor

    def first(self, count: int) -> Evidence:
        """Of the first so many images."""
        return Evidence(*(one[:count] for one in self))

    @classmethod
    def of(cls, network: ERPCNet, seen: Walk, classes: Classes) -> Evidence:
        """What a walk found; of steps that were not taken, nothing to go by.

        The glance is scored as if the localities had said the same: delta is for sums of both.
        """
        phi, handicap = classes
        of_global = network.global_fit(seen.whole, phi)
        glance = (
            network.combine(of_global, of_global, network.steps, handicap) if network.steps else of_global - handicap
        )
        scores, chances = [glance], [of_global.softmax(dim=1)]
        for step in range(network.steps):
            of_joint = network.joint_fit(seen.joint[:, step], phi)
            scores.append(network.combine(of_global, of_joint, step + 1, handicap))
            chances.append((of_global.softmax(dim=1) + of_joint.softmax(dim=1)) / 2)
        attributes = torch.cat([seen.whole[:, None], seen.joint], dim=1)
        return cls(torch.stack(scores, dim=1), torch.stack(chances, dim=1), attributes)

    def at_the_end(self, steps: Tensor, images: int) -> Evidence:
        """Where each view of each image stopped, averaged over its views: one step, for so many images."""
        rows = torch.arange(len(steps), device=steps.device)
        return Evidence(*(over_views(one[rows, steps], images)[:, None] for one in self))


class Answers(NamedTuple):
    """The class answered, as a row of the table, and how sure that is; both [N, S]."""

    classes: Tensor
    confidence: Tensor


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
            given = [row.get(key, 0.0) for key in names] if isinstance(row, Mapping) else row
            with np.errstate(over="ignore"):  # what is too large for it is refused below
                values = np.asarray(given, dtype=float).astype(np.float32)
            if values.shape != (len(names),) or not np.isfinite(values).all() or not values.any():
                raise InputError(f"class '{name}': it needs {len(names)} finite values, not all 0.")
            rows.append(values)
        self.classes = replace(
            self.classes,
            names=(*self.classes.names, *attributes),
            attributes=np.vstack([self.classes.attributes, *rows]),
            seen=np.concatenate([self.classes.seen, np.zeros(len(rows), dtype=bool)]),
        )

    @torch.inference_mode()
    def predict(
        self, pictures: Sequence[Picture], candidates: Candidates = "unseen", batch_size: int = 64
    ) -> list[Recognition]:
        """Recognise pictures among the unseen classes, all classes (calibrated), or classes by name.

        `batch_size` views of pictures are walked over at once.
        """
        found: list[Recognition] = []
        table = self.classes.select(candidates)
        size = max(1, batch_size // self.data.test_views)
        for start in range(0, len(pictures), size):
            found.extend(self._predict([open_picture(p) for p in pictures[start : start + size]], table))
        return found

    def _predict(self, pictures: list[Image.Image], table: ClassTable) -> list[Recognition]:
        device, count = next(self.network.parameters()).device, len(pictures)
        shown, usual, closer = self._views(pictures)
        is_seen = torch.from_numpy(table.seen).to(device)
        classes = self.network.classes(table.phi().to(device), is_seen)
        stop = StopRule(self.sigma, classes) if self.network.policy is not None else None
        seen = self.engine.walk(shown, stop)
        evidence = Evidence.of(self.network, seen, classes)
        end = evidence.at_the_end(seen.steps, count)
        on_the_way, final = (self._answers(one, is_seen) for one in (evidence.first(count), end))
        cells, steps, attributes = seen.cells[:count].cpu(), seen.steps[:count].tolist(), end.attributes[:, 0].tolist()
        windows = self.network.grid.boxes(self.data.image_size) / self.data.image_size
        return [
            Recognition(
                name=table.names[int(final.classes[row, 0])],
                confidence=float(final.confidence[row, 0]),
                regions=tuple(
                    Region(
                        _to_pixels(windows[cells[row, step]], usual[row], picture.size),
                        table.names[int(on_the_way.classes[row, step + 1])],
                        float(on_the_way.confidence[row, step + 1]),
                    )
                    for step in range(steps[row])
                ),
                first_answer=table.names[int(on_the_way.classes[row, 0])],
                first_confidence=float(on_the_way.confidence[row, 0]),
                attributes=dict(zip(table.attribute_names, attributes[row], strict=True)),
                views=self.data.test_views,
                closer=None if closer is None else _to_pixels(WHOLE, closer[row], picture.size),
            )
            for row, picture in enumerate(pictures)
        ]

    def _views(self, pictures: list[Image.Image]) -> tuple[Tensor, Tensor, Tensor | None]:
        """The pictures as the cache and the feed would give them, in one view after the other, on the network's device;
        and what part of each the usual and the closer view are (shares)."""
        side, size, count = self.data.stored_size, self.data.image_size, self.data.test_views
        device = next(self.network.parameters()).device
        pixels = torch.from_numpy(np.stack([squeeze(picture, side) for picture in pictures])).contiguous()
        shapes = torch.tensor([(p.height, p.width) for p in pictures], dtype=torch.float32)
        usual, closer = centre_boxes(shapes, self.data.centre), None
        shown = [take_views(pixels, usual, size).to(device)]
        if count > 1:
            closer = closer_boxes(self.network.activity(shown[0]).cpu(), usual, shapes)
            shown.append(take_views(pixels, closer, size).to(device))
        if count > 2:
            shown += [view.flip(3) for view in shown]
        return torch.cat(shown), usual, closer

    def _answers(self, evidence: Evidence, is_seen: Tensor) -> Answers:
        """The class answered at each of the evidence's steps, and the chance of it."""
        flat = evidence.scores.flatten(0, 1)
        mixed = bool(is_seen.any()) and not bool(is_seen.all())
        best = stack(flat, is_seen).predict(self.delta) if mixed else flat.argmax(dim=1)
        classes = best.view(evidence.scores.shape[:2])
        return Answers(classes.cpu(), evidence.chances.gather(2, classes[..., None])[..., 0].cpu())


def open_picture(picture: Picture) -> Image.Image:
    return to_rgb(picture) if isinstance(picture, Image.Image) else load_image(picture)


def _to_pixels(window: Tensor, view: Tensor, size: tuple[int, int]) -> Box:
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
