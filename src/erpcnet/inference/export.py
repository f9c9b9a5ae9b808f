"""A trained network as a file that torch alone can run, test-time views included."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.data.views import over_views, views_at_test
from erpcnet.errors import InputError
from erpcnet.inference.recogniser import Recogniser
from erpcnet.model.scoring import stopped_scores
from erpcnet.model.walk import DirectLocalities, ParallelLocalities, usual_order, walk

ABOUT = "about.json"  # beside the program in its file
FIXED = ("erpcnet", "rpcnet", "globalnet", "hardnet")  # what does not look at random


class Program(nn.Module):
    """The views of each picture that the run is tested with, walked over to the end, and the answer where each would
    have stopped.

    Without branches: every locality is computed if an image has few of them.
    """

    windows: Tensor

    def __init__(self, recogniser: Recogniser) -> None:
        super().__init__()
        self.network, self._recogniser = recogniser.network, [recogniser]  # in a list: it is no module
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
            seen: [C] bool, whether training saw images of them.

        Returns:
            Probabilities [N, C], calibrated as the run's confidence is; windows [N, T, 4] of the first view, left,
            upper, right and lower as shares of the picture; and how many of them were looked at [N] before it was sure.
        """
        (recogniser,), network = self._recogniser, self.network
        point, count = recogniser.point, pixels.shape[0]
        classes = network.classes(F.normalize(attributes, dim=1), seen)
        pixels = pixels.clone(memory_format=torch.contiguous_format)  # whatever the strides that they come in
        shown = views_at_test(pixels, shapes, recogniser.data, recogniser.preprocessing, network.activity)
        walked = walk(network, self._localities(network, shown.images), usual_order(network, seed=0))
        logits, steps = stopped_scores(network, walked, classes, point.sigma)
        chances = point.probabilities(over_views(logits, count), seen, steps[:count])
        corner, extent = shown.usual[:, None, :2], shown.usual[:, None, 2:] - shown.usual[:, None, :2]
        windows = self.windows[walked.cells[:count]].unflatten(2, (2, 2))
        placed = (corner[:, :, None] + windows * extent[:, :, None]).flatten(2)
        return chances, placed, steps[:count]


def export(recogniser: Recogniser, out: str | Path) -> None:
    """Write a program for `torch.export.load`, for any number of images and of classes, and what to know of it.

    Args:
        recogniser: What `erpcnet.load` returns.
        out: The file.

    Raises:
        InputError: The variant looks at random, which a file cannot.

    Example:
        >>> export(erpcnet.load("runs/quickstart", "cpu"), "model.pt2")
    """
    network, table = recogniser.network, recogniser.classes
    if network.variant not in FIXED:
        raise InputError(f"'{network.variant}' looks at random, which a file cannot; export {', '.join(FIXED)}.")
    device, side = next(network.parameters()).device, recogniser.data.stored_size
    pixels = torch.zeros(2, 3, side, side, dtype=torch.uint8, device=device)
    shapes = torch.full((2, 2), float(side), device=device)
    attributes, seen = (torch.from_numpy(one).to(device) for one in (table.attributes, table.seen))
    program = Program(recogniser).eval()
    count, classes = torch.export.Dim("images", min=1), torch.export.Dim("classes", min=2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of weights that share memory and of what it will call otherwise
        sizes = ({0: count}, {0: count}, {0: classes}, {0: classes})
        exported = torch.export.export(program, (pixels, shapes, attributes, seen), dynamic_shapes=sizes)
        torch.export.save(exported, Path(out), extra_files={ABOUT: json.dumps(_about(recogniser), allow_nan=False)})


def _about(recogniser: Recogniser) -> dict[str, Any]:
    """What to know of a program: how to prepare pictures for it, its classes, and what it does with them."""
    table, data = recogniser.classes, recogniser.data
    return {
        "variant": recogniser.network.variant,
        "side": data.stored_size,
        "image_size": data.image_size,
        "views": data.test_views,
        "preprocessing": asdict(recogniser.preprocessing),
        "operating_point": recogniser.point.to_json(),
        "classes": list(table.names),
        "seen": table.seen.tolist(),
        "attribute_names": list(table.attribute_names),
        "attributes": table.attributes.tolist(),
    }
