"""A trained network as a file that torch alone can run, test-time augmentation included."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.data.transforms import crop_for_test
from erpcnet.errors import InputError
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.model.localities import DirectLocalities, ParallelLocalities
from erpcnet.model.rollout import rollout
from erpcnet.model.scoring import score
from erpcnet.model.selection import default_order

ABOUT = "about.json"  # beside the program in its file
FIXED = ("erpcnet", "rpcnet", "globalnet", "hardnet")  # what does not select at random


class Program(nn.Module):
    """The crops of each picture that the run is tested with, rolled out to the end, and the answer where each would
    have stopped.

    Without branches: every locality is computed if an image has few of them.
    """

    windows: Tensor

    def __init__(self, classifier: ZeroShotClassifier) -> None:
        super().__init__()
        self.network, self._classifier = classifier.network, [classifier]  # in a list: it is no module
        size = self.network.image_size
        self._localities = ParallelLocalities if self.network.tabulable else DirectLocalities
        self.register_buffer("windows", self.network.grid.boxes(size) / size)

    def forward(
        self, pixels: Tensor, shapes: Tensor, attributes: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What is in pictures.

        Args:
            pixels: [N, 3, side, side] bytes, whole pictures squeezed into squares of `side`.
            shapes: [N, 2] float, the pictures' own height and width.
            attributes: [C, A], of the classes to choose from.
            seen: [C] bool, which of them are seen classes.

        Returns:
            Probabilities [N, C], calibrated as the run's confidence is; windows [N, T, 4] of the centre crop, left,
            upper, right and lower as shares of the picture; and how many of them were selected [N] before it was sure.
        """
        (classifier,), network = self._classifier, self.network
        point = classifier.point
        classes = network.classes(F.normalize(attributes, dim=1), seen)
        pixels = pixels.clone(memory_format=torch.contiguous_format)  # whatever the strides that they come in
        with classifier.runtime.autocast():
            shown = crop_for_test(pixels, shapes, classifier.data, classifier.preprocessing, network.saliency)
            localities = self._localities(network, shown.images.flatten(0, 1))
            rolled_out = rollout(network, localities, default_order(network, seed=0))
        rolled_out = rolled_out.each(lambda tensor: tensor.unflatten(0, (shown.images.shape[0], -1)))
        answers = score(network, rolled_out, classes).stopped(point.sigma)
        steps = answers.steps[0]
        corner, extent = shown.centre[:, None, :2], shown.centre[:, None, 2:] - shown.centre[:, None, :2]
        windows = self.windows[rolled_out.cells[0]].unflatten(2, (2, 2))
        placed = (corner[:, :, None] + windows * extent[:, :, None]).flatten(2)
        return point.probabilities(answers.final, seen, steps), placed, steps


def export(classifier: ZeroShotClassifier, out: str | Path) -> None:
    """Write a program for `torch.export.load`, for any number of images and of classes, and what to know of it.

    Args:
        classifier: What `erpcnet.load` returns.
        out: The file.

    Raises:
        InputError: The variant selects at random, which a file cannot.

    Examples:
        >>> export(erpcnet.load("runs/quickstart", "cpu"), "model.pt2")
    """
    network, table = classifier.network, classifier.classes
    if network.variant not in FIXED:
        raise InputError(f"'{network.variant}' selects at random, which a file cannot; export {', '.join(FIXED)}.")
    device, side = next(network.parameters()).device, classifier.data.stored_size
    pixels = torch.zeros(2, 3, side, side, dtype=torch.uint8, device=device)
    shapes = torch.full((2, 2), float(side), device=device)
    attributes, seen = (torch.from_numpy(one).to(device) for one in (table.attributes, table.seen))
    program = Program(classifier).eval()
    count, classes = torch.export.Dim("images", min=1), torch.export.Dim("classes", min=2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of weights that share memory and of what it will call otherwise
        sizes = ({0: count}, {0: count}, {0: classes}, {0: classes})
        exported = torch.export.export(program, (pixels, shapes, attributes, seen), dynamic_shapes=sizes)
        torch.export.save(exported, Path(out), extra_files={ABOUT: json.dumps(_about(classifier), allow_nan=False)})


def _about(classifier: ZeroShotClassifier) -> dict[str, Any]:
    """What to know of a program: how to prepare pictures for it, its classes, and what it does with them."""
    table, data = classifier.classes, classifier.data
    return {
        "variant": classifier.network.variant,
        "side": data.stored_size,
        "image_size": data.image_size,
        "crops": data.test_crops,
        "preprocessing": asdict(classifier.preprocessing),
        "operating_point": classifier.point.to_json(),
        "classes": list(table.names),
        "seen": table.seen.tolist(),
        "attribute_names": list(table.attribute_names),
        "attributes": table.attributes.tolist(),
    }
