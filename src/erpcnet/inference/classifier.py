"""The zero-shot classifier: names what is in a picture, from attributes alone, and says where it looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from erpcnet.config.data import DataSettings
from erpcnet.data.images import load_image, squeeze, to_rgb
from erpcnet.data.transforms import CroppedImages, crop_for_test
from erpcnet.inference.class_table import Attributes, Candidates, ClassTable
from erpcnet.inference.engine import Engine, Execution
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.rollout import Rollout
from erpcnet.model.scoring import OperatingPoint, StopRule, score, stack_logits
from erpcnet.utils.runtime import Runtime

Picture = str | Path | Image.Image
Box = tuple[float, float, float, float]  # left, upper, right and lower, in pixels of the picture


TOP = 5  # classes that a prediction names
WHOLE = torch.tensor([0.0, 0.0, 1.0, 1.0])  # a window that is the whole crop


@dataclass(frozen=True)
class Locality:
    """One selected window of a picture.

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


@dataclass(frozen=True, repr=False)
class Prediction:
    """What is in a picture.

    With test-time augmentation everything is of all crops together, after so many steps in each; the localities are
    those of the centre crop.

    Attributes:
        name: The class.
        confidence: Its calibrated probability among the candidates: temperature and delta are of the validation
            classes, and it means the same after the glance and after every step.
        top: The five likeliest classes with their probabilities, this one first.
        localities: The windows that were selected, in order.
        glance_answer: What was answered after the glance.
        glance_confidence: The probability of that.
        attributes: What was predicted at the end, by name: a_j, or a_g of GlobalNet.
        evidence: What each attribute adds to the logit of the answer, before the class bias and delta: those of a_g
            and a_j together, as both answer.
        crops: How many crops of the picture were shown.
        object_crop: The part of the picture that the network found worth a crop of its own, with test-time
            augmentation.
        zoom: How many times finer than the glance the windows were read.
    """

    name: str
    confidence: float
    localities: tuple[Locality, ...]
    glance_answer: str
    glance_confidence: float
    attributes: dict[str, float]
    evidence: dict[str, float]
    top: tuple[tuple[str, float], ...] = ()
    crops: int = 1
    object_crop: Box | None = None
    zoom: int = 1

    @property
    def steps(self) -> int:
        """How many localities were selected."""
        return len(self.localities)

    def __repr__(self) -> str:
        others = ", ".join(f"{name} {chance:.0%}" for name, chance in self.top[1:3])
        looks = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"<Prediction {self.name} {self.confidence:.0%} after {looks}{f'; then {others}' if others else ''}>"


class ZeroShotClassifier:
    """A trained network with its preprocessing, its classes and its operating point: what `erpcnet.load` returns.

    Args:
        network: Fused or not, where it shall run.
        classes: To choose from.
        data: How pictures are cropped.
        point: sigma, delta and temperatures.
        preprocessing: How the backbone's weights want pictures; by default as is usual on ImageNet.
        seed: Of random localities (PCNet).
        execution: How batches are run (see `erpcnet.inference.Engine`).
        runtime: Precision on a GPU.

    Examples:
        >>> model = erpcnet.load("runs/quickstart")
        >>> (prediction,) = model.predict(["some.png"])
        >>> prediction.name, prediction.confidence
    """

    def __init__(
        self,
        network: ERPCNet,
        classes: ClassTable,
        data: DataSettings,
        point: OperatingPoint,
        preprocessing: Preprocessing | None = None,
        seed: int = 0,
        execution: Execution = "auto",
        runtime: Runtime | None = None,
    ) -> None:
        self.network, self.classes, self.data = network.eval(), classes, data
        self.runtime = runtime or Runtime()
        self.engine = Engine(self.network, execution, seed, self.runtime)
        self.point, self.preprocessing = point, preprocessing or Preprocessing()

    def add_classes(self, attributes: Mapping[str, Attributes]) -> None:
        """Make classes known by their attributes alone.

        Args:
            attributes: For each new class a list in the table's order, or name to value (others are 0).

        Raises:
            InputError: A name is taken, an attribute unknown, or the values cannot be brought to length 1.

        Examples:
            >>> model.add_classes({"night owl": {"eye: yellow": 1.0, "wings: feathered": 1.0}})
        """
        self.classes = self.classes.add(attributes)

    @torch.inference_mode()
    def predict(
        self, pictures: Sequence[Picture], candidates: Candidates = "unseen", batch_size: int = 64
    ) -> list[Prediction]:
        """Recognise pictures.

        Args:
            pictures: Files or Pillow images.
            candidates: `unseen`, the unseen classes; `all`, seen ones too (calibrated stacking); or classes by name.
            batch_size: Crops of pictures that run at once.

        Returns:
            A prediction for each picture.

        Raises:
            InputError: A file is no picture, or a class is unknown.
        """
        predictions: list[Prediction] = []
        table = self.classes.select(candidates)
        size = max(1, batch_size // self.data.test_crops)
        for start in range(0, len(pictures), size):
            predictions.extend(self._predict([open_picture(p) for p in pictures[start : start + size]], table))
        return predictions

    def _predict(self, pictures: list[Image.Image], table: ClassTable) -> list[Prediction]:
        network, point = self.network, self.point
        device = next(network.parameters()).device
        shown = self._crop(pictures)
        is_seen = torch.from_numpy(table.seen).to(device)
        classes = network.classes(table.phi().to(device), is_seen)
        rollout = self.engine.rollout(shown.images, self._stop(classes))
        scored = score(network, rollout, classes)
        logits = scored.answers(rollout.steps).logits
        answers = stack_logits(logits, is_seen, point.delta).argmax(dim=2)
        after = torch.arange(logits.shape[1], device=device)
        probabilities = point.probabilities(logits, is_seen, after)
        confidence = probabilities.gather(2, answers[..., None])[..., 0].tolist()
        likeliest = probabilities[:, -1].topk(min(TOP, len(table.names)), dim=1)
        top, chances = likeliest.indices.tolist(), likeliest.values.tolist()
        attributes, evidence = self._attributes(rollout, classes, answers[:, -1])
        cells, steps, reward = rollout.cells[0].cpu(), rollout.steps[0].tolist(), scored.reward[0].tolist()
        windows, answered = network.grid.boxes(self.data.image_size) / self.data.image_size, answers.tolist()
        centre, found = shown.centre.cpu(), None if shown.object is None else shown.object.cpu()
        return [
            Prediction(
                name=table.names[answered[row][-1]],
                confidence=confidence[row][-1],
                localities=tuple(
                    Locality(
                        _to_pixels(windows[cells[row, step]], centre[row], picture.size),
                        table.names[answered[row][step + 1]],
                        confidence[row][step + 1],
                        reward[row][step],
                    )
                    for step in range(steps[row])
                ),
                glance_answer=table.names[answered[row][0]],
                glance_confidence=confidence[row][0],
                attributes=dict(zip(table.attribute_names, attributes[row].tolist(), strict=True)),
                evidence=dict(zip(table.attribute_names, evidence[row].tolist(), strict=True)),
                top=tuple((table.names[best], chance) for best, chance in zip(top[row], chances[row], strict=True)),
                crops=self.data.test_crops,
                object_crop=None if found is None else _to_pixels(WHOLE, found[row], picture.size),
                zoom=network.zoom,
            )
            for row, picture in enumerate(pictures)
        ]

    def _stop(self, classes: Classes) -> StopRule | None:
        return StopRule(self.network, classes, self.point.sigma) if self.network.policy is not None else None

    def _attributes(self, rollout: Rollout, classes: Classes, answers: Tensor) -> tuple[Tensor, Tensor]:
        """What was predicted in the end [N, A], and what each attribute adds to the answer's logit [N, A]."""
        network, phi = self.network, classes.phi[answers]
        predicted, evidence = rollout.a_g, network.global_compatibility.contributions(rollout.a_g, phi)
        if network.steps:
            last = (rollout.steps - 1)[..., None, None].expand(-1, -1, 1, predicted.shape[-1])
            predicted = rollout.a_j.gather(2, last)[:, :, 0]
            evidence = evidence + network.joint_compatibility.contributions(predicted, phi)
        return predicted.mean(dim=0), evidence.mean(dim=0)

    def _crop(self, pictures: list[Image.Image]) -> CroppedImages:
        """The pictures as the cache and the loader would give them, on the network's device."""
        device = next(self.network.parameters()).device
        squeezed = np.stack([squeeze(picture, self.data.stored_size) for picture in pictures])
        pixels = torch.from_numpy(squeezed).contiguous().to(device)
        shapes = torch.tensor([(p.height, p.width) for p in pictures], dtype=torch.float32, device=device)
        with self.runtime.autocast():
            return crop_for_test(pixels, shapes, self.data, self.preprocessing, self.network.saliency)


def open_picture(picture: Picture) -> Image.Image:
    """A file or a Pillow image as RGB."""
    return to_rgb(picture) if isinstance(picture, Image.Image) else load_image(picture)


def _to_pixels(window: Tensor, crop: Tensor, size: tuple[int, int]) -> Box:
    """A window in shares of the crop, the crop in shares of the picture, to pixels of the picture."""
    x1, y1, x2, y2 = window.tolist()
    left, upper, right, lower = crop.tolist()
    width, height = size
    return (
        (left + x1 * (right - left)) * width,
        (upper + y1 * (lower - upper)) * height,
        (left + x2 * (right - left)) * width,
        (upper + y2 * (lower - upper)) * height,
    )
