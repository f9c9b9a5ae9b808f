"""A trained network as one file for other runtimes, test-time augmentation included: torch.export's, or ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
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
from erpcnet.utils.files import as_path, whole_file

ABOUT = "about.json"  # beside the program in its file: an extra file of torch.export, a metadata entry of ONNX
FIXED = ("erpcnet", "rpcnet", "globalnet", "hardnet")  # what does not select at random
INPUTS = ("pixels", "shapes", "attributes", "seen")
OUTPUTS = ("probabilities", "windows", "steps", "rejected")
TRIED, ALLOWED = 8, 1e-4  # pictures that an ONNX file is tried on, and how far its probabilities may be off


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
        # A file takes all steps: with zoom six patches of an image, where all cells would be sixteen.
        few = self.network.zoom > 1 or not self.network.tabulable
        self._localities = DirectLocalities if few else ParallelLocalities
        device = next(self.network.parameters()).device
        self.register_buffer("windows", (self.network.grid.boxes(size) / size).to(device))

    def forward(
        self, pixels: Tensor, shapes: Tensor, attributes: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is in pictures.

        Args:
            pixels: [N, 3, side, side] bytes, whole pictures squeezed into squares of `side`.
            shapes: [N, 2] float, the pictures' own height and width.
            attributes: [C, A], of the classes to choose from.
            seen: [C] bool, which of them are seen classes.

        Returns:
            Probabilities [N, C], calibrated as the run's confidence is; windows [N, T, 4] of the centre crop, left,
            upper, right and lower as shares of the picture; how many of them were selected [N] before it was sure; and
            whether so little fits that a picture seems to be of none of the classes [N].
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
        probabilities = point.probabilities(answers.final, seen, steps)
        rejected = point.rejects(answers.final, seen)
        return probabilities, self._placed(rolled_out.cells[0], shown.centre), steps, rejected

    def _placed(self, cells: Tensor, centre: Tensor) -> Tensor:
        """The windows of cells [N, T] of the crops `centre` [N, 4], as shares of the pictures."""
        if not self.network.steps:
            return centre[:, None, :].new_zeros(centre.shape[0], 0, 4)
        corner, extent = centre[:, None, :2], centre[:, None, 2:] - centre[:, None, :2]
        windows = self.windows[cells].unflatten(2, (2, 2))
        return (corner[:, :, None] + windows * extent[:, :, None]).flatten(2)


def export(classifier: ZeroShotClassifier, out: str | Path) -> None:
    """Write a program for any number of images and of classes, and what to know of it.

    Args:
        classifier: What `erpcnet.load` returns; a .pt2 file computes where it lies, an .onnx file wants it on the CPU.
        out: A .pt2 file, which `torch.export.load` reads, or an .onnx file, which is tried in onnxruntime.

    Raises:
        InputError: The variant selects at random, which a file cannot; or the ending is another one.

    Examples:
        >>> export(erpcnet.load("runs/quickstart", "cpu"), "model.onnx")
    """
    network, path = classifier.network, as_path(out, "the output")
    if network.variant not in FIXED:
        raise InputError(f"'{network.variant}' selects at random, which a file cannot; export {', '.join(FIXED)}.")
    if path.suffix not in (".pt2", ".onnx"):
        raise InputError(f"{path} must end in .pt2 (torch.export) or .onnx.")
    program, about = Program(classifier).eval(), json.dumps(_about(classifier), allow_nan=False)
    given = _drawn(classifier, 2)
    count, classes = torch.export.Dim("images", min=1), torch.export.Dim("classes", min=2)
    sizes = ({0: count}, {0: count}, {0: classes}, {0: classes})
    with torch.no_grad(), _quiet():
        exported = torch.export.export(program, given, dynamic_shapes=sizes)
        with whole_file(path) as partial:
            if path.suffix == ".pt2":
                torch.export.save(exported, partial, extra_files={ABOUT: about})
            else:
                _write_onnx(exported, given, sizes, about, partial)
                _check_onnx(partial, program, _drawn(classifier, TRIED))


def _write_onnx(exported: Any, given: tuple[Tensor, ...], sizes: Any, about: str, path: Path) -> None:
    """Translate an exported program."""
    import onnxruntime  # noqa: F401 - what it needs, before the work
    import onnxscript  # noqa: F401

    found = torch.onnx.export(
        exported.run_decompositions({torch.ops.aten.special_entr.default: _entr}),
        given,
        dynamo=True,
        input_names=list(INPUTS),
        output_names=list(OUTPUTS),
        dynamic_shapes=sizes,
        verbose=False,
    )
    assert found is not None
    found.model.metadata_props[ABOUT] = about
    found.save(path)


def _entr(share: Tensor) -> Tensor:
    """-x log x of shares, of which torch 2.8 cannot write its own as ONNX."""
    return -share * share.clamp_min(torch.finfo(share.dtype).tiny).log()


def _check_onnx(path: Path, program: Program, given: tuple[Tensor, ...]) -> None:
    """Refuse a file that does not answer as the network does.

    Rounding may select another cell in one picture; what was translated wrongly is wrong in all of them.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: one.numpy() for name, one in zip(INPUTS, given, strict=True)})
    expected = program(*given)[0].numpy()
    off = np.abs(found[0] - expected).max(axis=1)
    if np.median(off) > ALLOWED:
        raise RuntimeError(f"onnxruntime's probabilities are {np.median(off):.2g} off those of torch")


def _drawn(classifier: ZeroShotClassifier, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs of a program: pictures of noise, and the classes of the run."""
    side, table = classifier.data.stored_size, classifier.classes
    device = next(classifier.network.parameters()).device
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()
    shapes = torch.full((count, 2), float(side))
    attributes, seen = torch.from_numpy(table.attributes), torch.from_numpy(table.seen)
    return pixels.to(device), shapes.to(device), attributes.to(device), seen.to(device)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' own warnings, of weights that share memory and of what they will call otherwise."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


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
