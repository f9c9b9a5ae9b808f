"""The zero-shot classifier: names what is in a picture, from attributes alone, and says where it looked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from erpcnet.config.data import DataSettings, TestCrops
from erpcnet.config.ranges import shorten
from erpcnet.data.dataset import LONGEST_NAME
from erpcnet.data.images import squeeze
from erpcnet.data.transforms import CroppedImages, crop_for_test
from erpcnet.errors import InputError
from erpcnet.inference.class_files import read_classes
from erpcnet.inference.class_table import Attributes, Candidates, ClassTable
from erpcnet.inference.engine import Engine, Execution
from erpcnet.inference.model_file import model_path, read_model
from erpcnet.inference.pictures import Picture, as_list, open_picture
from erpcnet.inference.prediction import Box, Locality, Prediction
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.fusion import fuse
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.rollout import Rollout
from erpcnet.model.scoring import OperatingPoint, StopRule, attribute_evidence, score, stack_logits
from erpcnet.utils.runtime import Runtime, check_device

if TYPE_CHECKING:
    from erpcnet.inference.explanation import Explanation

TOP = 5  # classes that a prediction names
WHOLE = torch.tensor([0.0, 0.0, 1.0, 1.0])  # a window that is the whole crop


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
        source: The file that the network came from, which `save_pretrained` copies.

    Examples:
        >>> model = erpcnet.load("runs/quickstart")
        >>> prediction = model.predict("some.png")
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
        source: Path | None = None,
    ) -> None:
        self.source = source
        self.network, self.classes, self.data = network.eval(), classes, data
        self.runtime = runtime or Runtime()
        self.engine = Engine(self.network, execution, seed, self.runtime)
        self.point, self.preprocessing = point, preprocessing or Preprocessing()

    def add_classes(self, attributes: Mapping[str, Attributes] | str | Path) -> None:
        """Make classes known by their attributes alone.

        Args:
            attributes: For each new class a list in the table's order, or name to value (others are 0); or a CSV file
                with rows like those of attributes.csv.

        Raises:
            InputError: A name is taken, an attribute unknown, or the values cannot be brought to length 1.

        Examples:
            >>> model.add_classes({"night owl": {"eye: yellow": 1.0, "wings: feathered": 1.0}})
            >>> model.add_classes("new.csv")
        """
        if isinstance(attributes, str | Path):
            attributes = read_classes(attributes, self.classes.attribute_names)
        self.classes = self.classes.add(attributes)

    def change_class(self, name: str, attributes: Attributes) -> None:
        """Give a class other attributes.

        Args:
            name: The class.
            attributes: A whole row in the table's order, or name to value (those not named stay).

        Raises:
            InputError: There is no such class or attribute, or the values cannot be brought to length 1.

        Examples:
            >>> model.change_class("night owl", {"eye: yellow": 0.5})
        """
        self.classes = self.classes.change(name, attributes)

    def remove_classes(self, names: Sequence[str]) -> None:
        """Forget classes.

        Args:
            names: Which.

        Raises:
            InputError: One of them is unknown, or none would be left.

        Examples:
            >>> model.remove_classes(["night owl"])
        """
        self.classes = self.classes.remove(names)

    @overload
    def predict(  # type: ignore[overload-overlap]
        self, pictures: str | Path | Image.Image, candidates: Candidates = "all", batch_size: int = 64
    ) -> Prediction: ...

    @overload
    def predict(
        self, pictures: Sequence[Picture], candidates: Candidates = "all", batch_size: int = 64
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self, pictures: npt.NDArray[Any] | Tensor, candidates: Candidates = "all", batch_size: int = 64
    ) -> Prediction | list[Prediction]: ...

    @torch.inference_mode()
    def predict(
        self,
        pictures: Picture | Iterable[Picture],
        candidates: Candidates = "all",
        batch_size: int = 64,
    ) -> Prediction | list[Prediction]:
        """Recognise one picture or many.

        Args:
            pictures: A file, a Pillow image, an array [H, W, 3] of bytes or of real numbers from 0 to 1, a tensor
                [3, H, W] of these, or several of them; arrays and tensors of four dimensions are batches.
            candidates: `all`, seen and unseen classes (calibrated stacking); `unseen`, those without training images;
                or classes by name.
            batch_size: Crops of pictures that run at once.

        Returns:
            A prediction for a picture that comes alone, or else a list with one for each.

        Raises:
            InputError: A file is no picture, or a class is unknown.

        Examples:
            >>> model.predict("some.png").name
            >>> [one.name for one in model.predict(["some.png", "other.jpg"], candidates="unseen")]
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {shorten(batch_size)}; it must be a whole number, 1 or more.")
        table = self.classes.select(candidates)
        given, alone = as_list(pictures)
        predictions: list[Prediction] = []
        size = max(1, batch_size // self.data.test_crops)
        for start in range(0, len(given), size):
            some = given[start : start + size]
            found = self._predict([open_picture(picture) for picture in some], table)
            predictions += [
                replace(one, path=os.fspath(picture)) if isinstance(picture, str | os.PathLike) else one
                for one, picture in zip(found, some, strict=True)
            ]
        return predictions[0] if alone else predictions

    def _predict(self, pictures: list[Image.Image], table: ClassTable) -> list[Prediction]:
        network, point = self.network, self.point
        device = next(network.parameters()).device
        shown = self._crop(pictures)
        is_seen = torch.from_numpy(table.seen).to(device)
        classes = network.classes(table.phi().to(device), is_seen)
        rollout = self.engine.rollout(shown.images, self.stop_rule(classes))
        scored = score(network, rollout, classes)
        logits = scored.answers(rollout.steps).logits
        answers = stack_logits(logits, is_seen, point.delta).argmax(dim=2)
        after = torch.arange(logits.shape[1], device=device).clamp(max=rollout.steps.max())
        probabilities = point.probabilities(logits, is_seen, after)
        confidence = probabilities.gather(2, answers[..., None])[..., 0].tolist()
        rejected = point.rejects(logits[:, -1], is_seen).tolist()
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
                centre_crop=_to_pixels(WHOLE, centre[row], picture.size),
                among=len(table.names),
                rejected=None if point.reject is None else rejected[row],
            )
            for row, picture in enumerate(pictures)
        ]

    def stop_rule(self, classes: Classes) -> StopRule | None:
        """Early stop among these classes; None without a policy."""
        return StopRule(self.network, classes, self.point.sigma) if self.network.policy is not None else None

    def _attributes(self, rollout: Rollout, classes: Classes, answers: Tensor) -> tuple[Tensor, Tensor]:
        """What was predicted in the end [N, A], and what each attribute adds to the answer's logit [N, A]."""
        a_j = None
        if rollout.steps.any():
            last = (rollout.steps - 1)[..., None, None].expand(-1, -1, 1, rollout.a_g.shape[-1])
            a_j = rollout.a_j.gather(2, last)[:, :, 0]
        evidence = attribute_evidence(self.network, rollout.a_g, a_j, classes.phi[answers])[..., 0, :]
        return (rollout.a_g if a_j is None else a_j).mean(dim=0), evidence.mean(dim=0)

    def centre_crop(self, picture: Picture) -> Tensor:
        """The centre crop [1, 3, size, size] of a picture, as the network sees it."""
        return self._crop([open_picture(picture)]).images[0]

    def explain(self, picture: Picture, candidates: Candidates = "all", against: str | None = None) -> Explanation:
        """Why a picture is taken for a class and not for another; see `erpcnet.inference.explanation.explain`.

        Args:
            picture: One picture, in any form that `predict` takes.
            candidates: As `predict` takes them.
            against: The class to compare with; by default the runner-up.

        Raises:
            InputError: There is nothing to compare with, or `against` is the answer or no candidate.

        Examples:
            >>> model.explain("some.png").save("why.html")
        """
        from erpcnet.inference.explanation import explain

        if against is not None and not (isinstance(against, str) and 0 < len(against) <= LONGEST_NAME):
            raise InputError(f"against is {shorten(against)}; it must be the name of a class.")
        return explain(self, picture, candidates, against)

    @classmethod
    def from_file(
        cls,
        path: Path,
        device: str | torch.device | None = None,
        execution: Execution = "auto",
        test_crops: TestCrops | None = None,
    ) -> ZeroShotClassifier:
        """What `erpcnet.load` returns; the arguments are its own, but for the path, which is that of the file."""
        if test_crops is not None and (type(test_crops) is not int or test_crops not in get_args(TestCrops)):
            raise InputError(f"test_crops is {shorten(test_crops)}; it must be 1, 2 or 4.")
        if not isinstance(execution, str) or execution not in get_args(Execution):
            raise InputError(f"execution is {shorten(execution)}; it must be one of {', '.join(get_args(Execution))}.")
        device = check_device(device)
        model = read_model(path)
        data = model.config.input_data
        data = data if test_crops is None else replace(data, test_crops=test_crops)
        runtime = Runtime.of(model.config.precision)
        network = fuse(model.network.to(device), runtime.precision)
        seed = model.config.seed
        return cls(network, model.classes, data, model.point, model.preprocessing, seed, execution, runtime, path)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        revision: str | None = None,
        token: str | None = None,
        device: str | torch.device | None = None,
    ) -> ZeroShotClassifier:
        """A shared model, ready to predict: of a folder, or `OWNER/NAME` of the Hugging Face Hub.

        Args:
            name: Which.
            revision: A branch, tag or commit on the Hub.
            token: Of whoever may read it.
            device: Such as `cpu` or `cuda:0`; by default a GPU if there is one.

        Raises:
            InputError: There is no such model, or it is damaged. No code comes with a model.

        Examples:
            >>> model = ZeroShotClassifier.from_pretrained("somebody/birds")
        """
        from erpcnet.inference.hub import fetch_pretrained

        return cls.from_file(model_path(fetch_pretrained(name, revision, token)), device)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the model, with the classes that it knows now, and a card into a folder to share.

        Args:
            folder: A new or an empty folder, or one that this wrote before.

        Returns:
            The folder, which `erpcnet.load` and `from_pretrained` take.

        Raises:
            InputError: The folder holds something else, or the classifier did not come from a file.

        Examples:
            >>> model.save_pretrained("birds")
        """
        from erpcnet.inference.hub import save_pretrained

        return save_pretrained(self, folder)

    def push_to_hub(self, name: str, private: bool | None = None, token: str | None = None) -> str:
        """Put the model on the Hugging Face Hub, as `save_pretrained` writes it.

        Args:
            name: `OWNER/NAME`; it is made if it is not there.
            private: Whether others may see it; by default as the Hub does it.
            token: Of whoever may write it; by default that of `hf auth login`.

        Returns:
            The address of what was written.

        Raises:
            InputError: The Hub refused it.

        Examples:
            >>> model.push_to_hub("somebody/birds", private=True)
        """
        from erpcnet.inference.hub import push_to_hub

        return push_to_hub(self, name, private, token)

    def _crop(self, pictures: list[Image.Image]) -> CroppedImages:
        """The pictures as the cache and the loader would give them, on the network's device."""
        device = next(self.network.parameters()).device
        squeezed = np.stack([squeeze(picture, self.data.stored_size) for picture in pictures])
        pixels = torch.from_numpy(squeezed).contiguous().to(device)
        shapes = torch.tensor([(p.height, p.width) for p in pictures], dtype=torch.float32, device=device)
        with self.runtime.autocast():
            return crop_for_test(pixels, shapes, self.data, self.preprocessing, self.network.saliency)


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
