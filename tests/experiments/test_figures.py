"""The figures of an analysis have the colours of the drawings, and so has the page of the demo."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import rgb_to_hsv
from PIL import Image, ImageColor

from browser import Browser
from erpcnet.evaluation.baselines import LearningPoint
from erpcnet.evaluation.stacking import Curve
from erpcnet.experiments import figures
from erpcnet.experiments.analysis import Failures, Threshold, Trajectories
from erpcnet.experiments.diagnosis import AttributeRecord
from erpcnet.inference.drawing import RIGHT, RIGHT_TEXT, WRONG, WRONG_TEXT, render_localities
from erpcnet.inference.prediction import Locality, Prediction

RULE = {RIGHT, RIGHT_TEXT, WRONG, WRONG_TEXT}


def told(chance_of_kept: list[float], chance_of_lost: list[float], lost_at: list[int]) -> Failures:
    places = torch.arange(len(lost_at))
    chances = torch.tensor(chance_of_lost), torch.tensor(chance_of_kept)
    return Failures(places, places, places, places, torch.tensor(lost_at), *chances)


def trajectories() -> Trajectories:
    answers = torch.zeros(6, 4, dtype=torch.long)
    return Trajectories(answers, answers.double(), answers[:, 0], torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0, 3.0]))


THRESHOLDS = [Threshold(0.5, 0.6, 1.5), Threshold(0.8, 0.7, 3.5), Threshold(float("inf"), 0.7, 6.0)]
LEARNING = [
    LearningPoint(of, share, t1, 0.0)
    for of, falls in (("pictures", 0.1), ("classes", 0.3))
    for share, t1 in ((0.25, 0.7 - falls), (1.0, 0.7))
]
CURVE = Curve(
    deltas=torch.tensor([0.0, 0.5, 1.0]), unseen=torch.tensor([0.1, 0.5, 0.8]), seen=torch.tensor([0.9, 0.6, 0.2])
)
DRAWN: list[tuple[Callable[[Path], Any], set[str]]] = [
    (lambda out: figures.draw_thresholds(THRESHOLDS, 0.8, out), {RIGHT_TEXT}),
    (lambda out: figures.draw_steps([0.5, 0.6, 0.7, 0.7], trajectories(), out), {RIGHT_TEXT}),
    (lambda out: figures.draw_failures(told([0.5, 0.9], [0.5, 0.1], [1, 1]), out), {RIGHT_TEXT, WRONG_TEXT, WRONG}),
    (lambda out: figures.draw_attributes([AttributeRecord("red", 0.9, 0.6)], out), {RIGHT}),
    (lambda out: figures.draw_learning(LEARNING, out), {RIGHT_TEXT}),
    (lambda out: figures.draw_curve(CURVE, 0.5, out), {RIGHT_TEXT}),
]


def where(drawn: np.ndarray, colour: str) -> np.ndarray:
    """Which pixels [H, W] are of exactly that colour."""
    return np.asarray((drawn == ImageColor.getrgb(colour)).all(axis=2))


def hue(colours: np.ndarray) -> np.ndarray:
    return np.asarray(rgb_to_hsv(colours / 255)[..., 0])


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


@pytest.mark.parametrize(("draw", "colours"), DRAWN)
def test_figures_have_the_colours_of_the_drawings(
    draw: Callable[[Path], Any], colours: set[str], tmp_path: Path
) -> None:
    """Blue where something counts right answers, yellow where answers are wrong or lost, and no other colour."""
    draw(tmp_path / "figure.png")
    drawn = read(tmp_path / "figure.png")
    assert {colour for colour in RULE if where(drawn, colour).sum() > 20} == colours
    assert not any(where(drawn, colour).any() for colour in RULE - colours)
    hues = [hue(np.array(ImageColor.getrgb(colour))) for colour in colours]
    vivid = drawn[drawn.max(axis=2).astype(int) - drawn.min(axis=2) > 60]  # not grey
    apart = np.abs(hue(vivid)[:, None] - hues)  # blended with white and with grey, a colour keeps its hue
    assert np.minimum(apart, 1 - apart).min(axis=1).max() < 0.04


@pytest.mark.parametrize("kept_above", [True, False])
def test_lost_answers_are_yellow_and_right_ones_blue(kept_above: bool, tmp_path: Path) -> None:
    chances = [0.8, 0.9], [0.3, 0.1]
    kept, lost = chances if kept_above else chances[::-1]
    figures.draw_failures(told(kept, lost, [1, 1, 1]), tmp_path / "failures.png")
    drawn = read(tmp_path / "failures.png")
    right_half = drawn[:, drawn.shape[1] // 2 :]
    rows = [np.flatnonzero(where(right_half, colour).sum(axis=1) > 0) for colour in (RIGHT_TEXT, WRONG_TEXT)]
    blue, yellow = (np.median(found) for found in rows)
    assert (blue < yellow) == kept_above  # rows count from above
    bars = where(drawn[:, : drawn.shape[1] // 2], WRONG)
    assert bars.sum() > 1000
    assert not where(right_half, WRONG).any()


def test_a_sheet_is_the_drawing_below_a_heading(tmp_path: Path) -> None:
    picture = Image.new("RGB", (90, 120), (0, 200, 0))
    window = Locality((10, 20, 50, 60), "fox", 0.5, 1.0)
    prediction = Prediction("fox", 0.7, (window,), "wolf", 0.3, {}, {}, among=9)
    sheets = []
    for heading in ("Won", "Lost on the way"):
        figures.draw_selections([picture], [prediction], ["fox"], heading, tmp_path / "sheet.png")
        sheets.append(read(tmp_path / "sheet.png"))
    plain = np.asarray(render_localities([picture], [prediction], ["fox"]))
    above = [sheet[: len(sheet) - len(plain)] for sheet in sheets]
    assert all(np.array_equal(sheet[-len(plain) :], plain) for sheet in sheets)
    widths = [np.flatnonzero((part < 128).all(axis=2).any(axis=0)).max() for part in above]
    assert 0 < widths[0] < widths[1]


def test_the_page_has_the_colours_of_the_drawings() -> None:
    page = (resources.files("erpcnet.inference") / "demo.html").read_text(encoding="utf-8")
    light = page.partition("@media (prefers-color-scheme: dark)")[0]
    values = dict(re.findall(r"(--[\w-]+):\s*(#\w+)", light))
    assert (values["--right"], values["--wrong"], values["--right-text"]) == (RIGHT, WRONG, RIGHT_TEXT)
    for variable, times in (("--right", 1), ("--wrong", 1), ("--right-text", 2)):  # text is lighter where it is dark
        assert len(re.findall(rf"{variable}:", page)) == times
    assert [page.lower().count(colour) for colour in (RIGHT, WRONG, RIGHT_TEXT)] == [1, 1, 1]


@pytest.mark.parametrize("dark", [False, True])
def test_bars_of_evidence_are_blue(dark: bool, browser: Browser) -> None:
    with resources.as_file(resources.files("erpcnet.inference") / "demo.html") as page:
        browser.open(page.as_uri(), dark=dark)
        shown = browser.run(
            """const bar = document.createElement("div");
            bar.className = "bar"; bar.append(document.createElement("i")); document.body.append(bar);
            return [getComputedStyle(bar.firstChild).backgroundColor, RIGHT, OTHER];"""
        )
    browser.console()  # no server answers a file
    assert shown == [f"rgb{ImageColor.getrgb(RIGHT)}", RIGHT, WRONG]
