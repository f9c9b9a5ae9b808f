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

from erpcnet.data.dataset import check_attribute_row
from erpcnet.data.images import load_image, squeeze, to_rgb
from erpcnet.data.settings import DataSettings
from erpcnet.data.views import over_views, views_at_test
from erpcnet.errors import InputError
from erpcnet.inference.engine import Engine, Execution
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.scoring import OperatingPoint, logits_by_step, stacked
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
    """One look.

    Attributes:
        box: The window, in pixels of the picture.
        answer: The class that was answered after it.
        confidence: The calibrated probability of that class.
        reward: beta (p_joint + p_global) of the best class, which ends the search once it reaches sigma.
    """

    box: Box
    answer: str
    confidence: float
    reward: float


@dataclass(frozen=True)
class Recognition:
    """What is in a picture.

    Where the network is shown several views of a picture, everything is of all of them together, after so many looks
    at each; the regions are those of the first view, and `closer` is the part of the picture that it found worth a
    closer one.

    Attributes:
        name: The class.
        confidence: Its calibrated probability among the candidates: temperature and delta are of the validation
            classes, and it means the same after the glance and after every look.
        regions: The windows looked at, in order.
        first_answer: What was answered after the glance.
        first_confidence: The probability of that.
        attributes: What was predicted at the end, by name: a_j, or a_g of GlobalNet.
        evidence: What each attribute adds to the logit of the answer, before the class bias and delta: those of a_g
            and a_j together, as both answer.
        views: How many views of the picture were shown.
        closer: See above.
    """

    name: str
    confidence: float
    regions: tuple[Region, ...]
    first_answer: str
    first_confidence: float
    attributes: dict[str, float]
    evidence: dict[str, float]
    views: int = 1
    closer: Box | None = None

    @property
    def steps(self) -> int:
        return len(self.regions)


def so_far(found: Tensor, steps: Tensor, images: int) -> Tensor:
    """What stood after the glance and after each step, averaged over views; a view that has stopped keeps what it had.

    Args:
        found: [views * N, 1 + T, ...], what each view gave after so many looks.
        steps: [views * N], how many looks each view took.
        images: N.

    Returns:
        [N, 1 + T, ...]; the last is what was found in the end.
    """
    reached = torch.arange(found.shape[1], device=steps.device).minimum(steps[:, None])
    index = reached.view(*reached.shape, *(1 for _ in found.shape[2:])).expand(-1, -1, *found.shape[2:])
    return over_views(found.gather(1, index), images)


class Recogniser:
    """A trained network with its preprocessing, its classes and its settings: what `erpcnet.load` returns."""

    def __init__(
        self,
        network: ERPCNet,
        classes: ClassTable,
        data: DataSettings,
        point: OperatingPoint,
        preprocessing: Preprocessing | None = None,
        seed: int = 0,
        execution: Execution = "auto",
    ) -> None:
        self.network, self.classes, self.data = network.eval(), classes, data
        self.engine = Engine(self.network, execution, seed)
        self.point, self.preprocessing = point, preprocessing or Preprocessing()

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
            values = np.asarray(given, dtype=float)
            if values.shape != (len(names),):
                raise InputError(f"class '{name}': it needs {len(names)} values, one for each attribute.")
            check_attribute_row(values, name)
            rows.append(values.astype(np.float32))
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
        network, point, count = self.network, self.point, len(pictures)
        device = next(network.parameters()).device
        shown, usual, closer = self._views(pictures)
        is_seen = torch.from_numpy(table.seen).to(device)
        classes = network.classes(table.phi().to(device), is_seen)
        stop = StopRule(point.sigma, classes) if network.policy is not None else None
        seen = self.engine.walk(shown, stop)
        logits = so_far(logits_by_step(network, seen, classes), seen.steps, count)
        answers = stacked(logits, is_seen, point.delta).argmax(dim=2)
        looks = torch.arange(logits.shape[1], device=device)
        sure = point.probabilities(logits, is_seen, looks).gather(2, answers[..., None])[..., 0].tolist()
        attributes, evidence = self._attributes(seen, classes, answers[:, -1])
        reward = StopRule(point.sigma, classes).reward_of(network, seen.first(count)).tolist() if network.steps else []
        cells, steps, answered = seen.cells[:count].cpu(), seen.steps[:count].tolist(), answers.tolist()
        windows = network.grid.boxes(self.data.image_size) / self.data.image_size
        return [
            Recognition(
                name=table.names[answered[row][-1]],
                confidence=sure[row][-1],
                regions=tuple(
                    Region(
                        _to_pixels(windows[cells[row, step]], usual[row], picture.size),
                        table.names[answered[row][step + 1]],
                        sure[row][step + 1],
                        reward[row][step],
                    )
                    for step in range(steps[row])
                ),
                first_answer=table.names[answered[row][0]],
                first_confidence=sure[row][0],
                attributes=dict(zip(table.attribute_names, attributes[row].tolist(), strict=True)),
                evidence=dict(zip(table.attribute_names, evidence[row].tolist(), strict=True)),
                views=self.data.test_views,
                closer=None if closer is None else _to_pixels(WHOLE, closer[row], picture.size),
            )
            for row, picture in enumerate(pictures)
        ]

    def _attributes(self, seen: Walk, classes: Classes, answers: Tensor) -> tuple[Tensor, Tensor]:
        """What was predicted in the end [N, A], and what each attribute adds to the answer's logit [N, A]."""
        network, count = self.network, len(answers)
        phi = classes.phi[answers].repeat(len(seen.steps) // count, 1)
        said, evidence = seen.whole, network.global_fit.parts(seen.whole, phi)
        if network.steps:
            said = seen.joint[torch.arange(len(seen.steps), device=said.device), seen.steps - 1]
            evidence = evidence + network.joint_fit.parts(said, phi)
        return over_views(said, count), over_views(evidence, count)

    def _views(self, pictures: list[Image.Image]) -> tuple[Tensor, Tensor, Tensor | None]:
        """The pictures as the cache and the feed would give them, in one view after the other, on the network's device;
        and what part of each the usual and the closer view are (shares)."""
        device = next(self.network.parameters()).device
        squeezed = np.stack([squeeze(picture, self.data.stored_size) for picture in pictures])
        pixels = torch.from_numpy(squeezed).contiguous().to(device)
        shapes = torch.tensor([(p.height, p.width) for p in pictures], dtype=torch.float32, device=device)
        found = views_at_test(pixels, shapes, self.data, self.preprocessing, self.network.activity)
        return found.images, found.usual.cpu(), None if found.closer is None else found.closer.cpu()


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
