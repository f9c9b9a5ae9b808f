"""Pictures of a dataset to show what a classifier does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from erpcnet.data.dataset import ZeroShotDataset
from erpcnet.data.images import load_image
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.inference.prediction import Prediction

TRIED_EACH = 8  # images tried for each one that is drawn


def load_picture(dataset: ZeroShotDataset, row: int) -> Image.Image:
    """The picture of one instance."""
    return load_image(dataset.root / dataset.image_paths[row], None if dataset.boxes is None else dataset.boxes[row])


def example_pictures(dataset: ZeroShotDataset, count: int = 12) -> list[Image.Image]:
    """Some test images of unseen classes, from the first to the last."""
    spread = np.unique(np.linspace(0, len(dataset.test_unseen) - 1, count).astype(int))
    return [load_picture(dataset, row) for row in dataset.test_unseen[spread]]


def draw_examples(classifier: ZeroShotClassifier, dataset: ZeroShotDataset, out: Path, count: int = 6) -> None:
    """Test images of unseen classes, from the first class to the last: of every few, one that localities turn right, or
    else the one whose number of steps is nearest to half of T, as the shortest and the longest show little."""
    from erpcnet.inference.drawing import draw_localities  # matplotlib is slow to import

    order = np.argsort(dataset.labels[dataset.test_unseen], kind="stable")
    spread = np.unique(np.linspace(0, len(order) - 1, count * TRIED_EACH).astype(int))
    rows = dataset.test_unseen[order[spread]]
    shown = [_example(classifier, dataset, few) for few in np.array_split(rows, count) if len(few)]
    pictures, predictions, truths = zip(*shown, strict=True)
    draw_localities(pictures, predictions, truths, out)


def _example(
    classifier: ZeroShotClassifier, dataset: ZeroShotDataset, rows: np.ndarray
) -> tuple[Image.Image, Prediction, str]:
    """One of these images with its prediction, and its class."""
    pictures = [load_picture(dataset, row) for row in rows]
    truths = [dataset.classes[dataset.labels[row]] for row in rows]
    predictions = classifier.predict(pictures, candidates="unseen")
    half = classifier.network.steps / 2

    def rank(place: int) -> tuple[bool, bool, float]:
        found, truth = predictions[place], truths[place]
        turned = found.glance_answer != truth and found.name == truth
        return not turned, found.name != truth, abs(found.steps - half)

    best = min(range(len(rows)), key=rank)
    return pictures[best], predictions[best], truths[best]
