"""Sheets of pictures: images that the glance has right, that localities win, and that they lose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from erpcnet.config import TestCrops
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.experiments import figures
from erpcnet.experiments.analysis import Failures, Trajectories, quickest, was_lost, was_right_at_once, was_won
from erpcnet.experiments.page import Picture
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.inference.examples import load_picture
from erpcnet.inference.loading import load
from erpcnet.inference.prediction import Prediction

SHOWN = 6  # pictures of a sheet
TRIED = 24  # images of a kind that are predicted again, of which those are shown


class Sheet(NamedTuple):
    """Pictures of what becomes of answers.

    Attributes:
        file: Of the picture.
        heading: In the picture.
        caption: On the page.
        images: Which of the test images of unseen classes it is about.
        shows: Whether a prediction of an image of that class is of the kind that is drawn.
    """

    file: str
    heading: str
    caption: str
    images: np.ndarray
    shows: Callable[[Prediction, str], bool]


def draw_sheets(
    run: str | Path,
    rollouts: EvaluationRollouts,
    found: Trajectories,
    fates: Failures,
    test_crops: TestCrops | None,
    out: Path,
) -> list[Picture]:
    """The localities of some images that the glance has right, that localities win, and that they lose."""
    steps = found.steps.cpu().numpy()
    at_once, won, lost = (images.cpu().numpy() for images in (fates.at_once, fates.won, fates.lost))
    sheets = (
        Sheet(
            "glance.png",
            "Right at once: the glance was enough",
            "Images that the glance has right, those that stop after the fewest localities",
            quickest(at_once, steps, TRIED),
            was_right_at_once,
        ),
        Sheet(
            "won.png",
            "Won: the glance was wrong, localities put it right",
            "Images that only localities solve",
            won,
            was_won,
        ),
        Sheet(
            "lost.png",
            "Lost: right on the way, wrong at the end",
            "Images that localities lose, which the paper calls failures of the policy",
            lost,
            was_lost,
        ),
    )
    classifier, dataset = load(run, test_crops=test_crops), rollouts.dataset
    return [
        Picture(sheet.file, f"{sheet.caption}: {shown} of {total}")
        for sheet, total in zip(sheets, (len(at_once), len(won), len(lost)), strict=True)
        if (shown := draw_sheet(classifier, dataset, sheet, out))
    ]


def draw_sheet(classifier: ZeroShotClassifier, dataset: ZeroShotDataset, sheet: Sheet, out: Path) -> int:
    """Draw some of a sheet's images, from the first class to the last; how many.

    Of several crops, and where rounding decides, an image may come to another end than it did in the evaluation: it is
    left out then.
    """
    rows = dataset.test_unseen[sheet.images]
    rows = _spread(rows[np.argsort(dataset.labels[rows], kind="stable")], TRIED)
    pictures = [load_picture(dataset, row) for row in rows]
    truths = [dataset.classes[dataset.labels[row]] for row in rows]
    found = classifier.predict(pictures, "unseen") if pictures else []
    shown = _spread(
        np.array([place for place, truth in enumerate(truths) if sheet.shows(found[place], truth)], dtype=int), SHOWN
    )
    if len(shown):
        figures.draw_selections(
            [pictures[place] for place in shown],
            [found[place] for place in shown],
            [truths[place] for place in shown],
            sheet.heading,
            out / sheet.file,
        )
    return len(shown)


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """So many of them at most, from the first to the last."""
    return values[np.unique(np.linspace(0, len(values) - 1, count).astype(int))] if len(values) else values
