"""A trained network as a file that torch alone can run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.data.views import MEAN, STD
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import stopped_scores, usual_order
from erpcnet.inference.recogniser import Recogniser
from erpcnet.model import ERPCNet
from erpcnet.model.walk import DirectLocalities, ParallelLocalities, walk

ABOUT = "about.json"  # beside the program in its file
FIXED = ("erpcnet", "rpcnet", "globalnet", "hardnet")  # what does not look at random


class Program(nn.Module):
    """A view of each image, walked over to the end, and the answer where it would have stopped.

    Without branches: every locality is computed if an image has few of them.
    """

    mean: Tensor
    std: Tensor
    windows: Tensor

    def __init__(self, network: ERPCNet, sigma: float, delta: float) -> None:
        super().__init__()
        self.network, self._sigma, self._delta, size = network, sigma, delta, network.image_size
        self._localities = ParallelLocalities if network.tabulable else DirectLocalities
        self.register_buffer("mean", 255 * torch.tensor(MEAN)[:, None, None])
        self.register_buffer("std", 255 * torch.tensor(STD)[:, None, None])
        self.register_buffer("windows", network.grid.boxes(size) / size)

    def forward(self, pixels: Tensor, attributes: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels [N, 3, size, size] as bytes, attributes [C, A] of the classes to choose from, and whether training saw
        images of them [C].

        Returns scores [N, C], calibrated; windows [N, T, 4], left, upper, right and lower as shares of the image; and
        how many of them were looked at [N] before it was sure.
        """
        network, classes = self.network, self.network.classes(F.normalize(attributes, dim=1), seen)
        images = (pixels.float() - self.mean) / self.std
        walked = walk(network, self._localities(network, images), usual_order(network, seed=0))
        scores, steps = stopped_scores(network, walked, classes, self._sigma)
        return scores - self._delta * seen, self.windows[walked.cells], steps


def export(recogniser: Recogniser, out: str | Path) -> None:
    """Write a program for `torch.export.load`, for any number of images and of classes, and what to know of it."""
    network, table = recogniser.network, recogniser.classes
    if network.variant not in FIXED:
        raise InputError(f"'{network.variant}' looks at random, which a file cannot; export {', '.join(FIXED)}.")
    device = next(network.parameters()).device
    pixels = torch.zeros(2, 3, network.image_size, network.image_size, dtype=torch.uint8, device=device)
    attributes, seen = (torch.from_numpy(one).to(device) for one in (table.attributes, table.seen))
    program = Program(network, recogniser.sigma, recogniser.delta).eval()
    count, classes = torch.export.Dim("images", min=1), torch.export.Dim("classes", min=2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of weights that share memory and of what it will call otherwise
        sizes = ({0: count}, {0: classes}, {0: classes})
        exported = torch.export.export(program, (pixels, attributes, seen), dynamic_shapes=sizes)
        torch.export.save(exported, Path(out), extra_files={ABOUT: json.dumps(_about(recogniser))})


def _about(recogniser: Recogniser) -> dict[str, Any]:
    table, data = recogniser.classes, recogniser.data
    return {
        "variant": recogniser.network.variant,
        "image_size": data.image_size,
        "centre": data.centre,
        "sigma": recogniser.sigma,
        "delta": recogniser.delta,
        "classes": list(table.names),
        "seen": table.seen.tolist(),
        "attribute_names": list(table.attribute_names),
        "attributes": table.attributes.tolist(),
    }
