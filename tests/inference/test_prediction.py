"""What a prediction says of itself, and what is drawn of it, pixel by pixel where that makes sense."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageColor

from conftest import between
from erpcnet.errors import InputError
from erpcnet.inference import Locality, Prediction, ZeroShotClassifier
from erpcnet.inference.drawing import (
    GAP,
    RIGHT,
    RIGHT_TEXT,
    THUMBNAIL,
    WRONG,
    WRONG_TEXT,
    _draw_windows,
    _frames,
    draw_localities,
    render_explanation,
    render_localities,
)
from erpcnet.inference.explanation import AttributeEvidence, Explanation
from erpcnet.inference.prediction import Box
from erpcnet.model.scoring import score

GREEN, PINK = (0, 200, 0), (230, 0, 230)  # of pictures; nothing else in a drawing is of these colours
WHITE, DIMMED = (255, 255, 255), tuple(round(0.55 * value) for value in GREEN)
SIZE = (300, 400)  # of a picture
INCH = 130  # pixels


def found(*answers: str, box: Box = (40, 60, 140, 160), **other: Any) -> Prediction:
    """That a picture shows a fox, after these answers of the glance and of each step."""
    glance, *steps = answers or ("fox",)
    values: dict[str, Any] = {
        "name": "fox",
        "confidence": 0.75,
        "localities": tuple(Locality(box, answer, 0.5, 1.0) for answer in steps),
        "glance_answer": glance,
        "glance_confidence": 0.25,
        "attributes": {},
        "evidence": {},
        "among": 9,
    }
    return Prediction(**{**values, **other})


def green(size: tuple[int, int] = SIZE) -> Image.Image:
    return Image.new("RGB", size, GREEN)


def draw(prediction: Prediction, picture: Image.Image | None = None, truth: str | None = None) -> np.ndarray:
    return np.asarray(render_localities([picture or green()], [prediction], [truth]), dtype=int)


def mask(drawn: np.ndarray, colour: str | Sequence[int], apart: int = 6) -> np.ndarray:
    """Where a drawing is of a colour."""
    wanted = ImageColor.getrgb(colour) if isinstance(colour, str) else colour
    return np.abs(drawn - np.asarray(wanted)).max(axis=2) <= apart


def extent(where: np.ndarray) -> tuple[int, int, int, int]:
    """Left, upper, right and lower of a mask."""
    rows, columns = np.flatnonzero(where.any(axis=1)), np.flatnonzero(where.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def cut(drawn: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    left, upper, right, lower = box
    return drawn[upper:lower, left:right]


def picture_in(drawn: np.ndarray) -> tuple[int, int, int, int]:
    """Where the green picture lies in a drawing."""
    return extent(mask(drawn, GREEN) | mask(drawn, DIMMED))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "<Prediction fox 75% among 9 classes after 0 steps>"),
        ({"among": 1, "confidence": 1.0}, "<Prediction fox 100% among 1 class after 0 steps>"),
        (
            {"localities": (Locality((0, 0, 1, 1), "fox", 1.0, 1.0),)},
            "<Prediction fox 75% among 9 classes after 1 step>",
        ),
        (
            {"top": (("fox", 0.75), ("wolf", 0.126), ("dog", 0.1), ("cat", 0.024))},
            "<Prediction fox 75% among 9 classes after 0 steps; then wolf 13%, dog 10%>",
        ),
        (
            {"top": (("fox", 0.75), ("wolf", 0.25)), "among": 2, "rejected": True},
            "<Prediction fox 75% among 2 classes after 0 steps; then wolf 25%; perhaps none of these>",
        ),
        ({"rejected": False, "top": (("fox", 0.75),)}, "<Prediction fox 75% among 9 classes after 0 steps>"),
    ],
)
def test_a_prediction_is_shown_in_a_line(changes: dict[str, Any], told: str) -> None:
    assert repr(found(**changes)) == told


def test_what_is_predicted_is_what_is_shown(classifier: ZeroShotClassifier, picture: Path) -> None:
    one = classifier.predict(picture, "unseen")
    assert repr(one).startswith(f"<Prediction {one.name} {one.confidence:.0%} among 4 classes after {one.steps} step")
    assert [name for name, _ in one.top] == sorted(
        (name for name, _ in one.top), key=dict(one.top).__getitem__, reverse=True
    )
    assert {name for name, _ in one.top} == {f"class {number}" for number in range(5, 9)}
    assert sum(chance for _, chance in one.top) == pytest.approx(1, abs=1e-5)


@torch.inference_mode()
def test_pictures_that_fit_no_class_are_rejected(classifier: ZeroShotClassifier) -> None:
    """By the largest logit, after delta, of the crops together."""
    rng = np.random.default_rng(1)
    coarse = [Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)) for _ in range(8)]
    pictures = [one.resize((70, 90)) for one in coarse]
    network, table = classifier.network, classifier.classes
    seen = torch.from_numpy(table.seen)
    classes = network.classes(table.phi(), seen)
    rolled_out = classifier.engine.rollout(classifier._crop(pictures).images, classifier.stop_rule(classes))
    logits = score(network, rolled_out, classes).answers(rolled_out.steps).final - classifier.point.delta * seen
    largest = logits.max(dim=1).values
    threshold = between(largest)
    classifier.point = replace(classifier.point, reject=threshold)
    expected = (largest < threshold).tolist()
    assert [one.rejected for one in classifier.predict(pictures)] == expected
    assert set(expected) == {True, False}
    assert {one.name for one in classifier.predict(pictures)} <= set(table.names)  # which is told all the same
    classifier.point = replace(classifier.point, reject=None)
    assert [one.rejected for one in classifier.predict(pictures)] == [None] * 8


def test_a_plot_is_returned_and_written(classifier: ZeroShotClassifier, picture: Path, tmp_path: Path) -> None:
    one = classifier.predict(picture)
    drawn = one.plot(picture, tmp_path / "where.png")
    assert np.array_equal(np.asarray(drawn), np.asarray(Image.open(tmp_path / "where.png")))
    assert drawn.mode == "RGB"
    pixels = np.asarray(Image.open(picture))
    for form in (str(picture), Image.open(picture), pixels, pixels / 255):
        assert np.array_equal(np.asarray(one.plot(form)), np.asarray(drawn))
    assert np.array_equal(np.asarray(one.plot()), np.asarray(drawn))  # the file is opened again
    with pytest.raises(InputError, match="not of a file; give plot the picture"):
        classifier.predict(Image.open(picture)).plot()
    one.plot(picture, tmp_path / "no ending")
    with Image.open(tmp_path / "no ending") as written:
        assert written.format == "PNG"


def test_what_the_network_does_not_see_is_dimmed() -> None:
    drawn = draw(found(centre_crop=(60, 90, 270, 300)))
    left, upper, right, lower = picture_in(drawn)
    scale = (right - left) / SIZE[0]
    assert (lower - upper) / SIZE[1] == pytest.approx(scale, rel=0.02)
    bright = extent(mask(drawn, GREEN))
    expected = (left + 60 * scale, upper + 90 * scale, left + 270 * scale, upper + 300 * scale)
    assert bright == pytest.approx(expected, abs=2.5)
    outside = mask(drawn, GREEN) | mask(drawn, DIMMED)
    outside[bright[1] - 2 : bright[3] + 2, bright[0] - 2 : bright[2] + 2] = False
    assert mask(drawn, DIMMED)[outside].all()
    assert outside.sum() == pytest.approx((SIZE[0] * SIZE[1] - 210**2) * scale**2, rel=0.05)


@pytest.mark.parametrize("crop", [None, (0.0, 0.0, 300.0, 400.0)])
def test_nothing_is_dimmed_where_everything_is_seen(crop: Box | None) -> None:
    drawn = draw(found(centre_crop=crop))
    assert not mask(drawn, DIMMED).any()
    assert mask(cut(drawn, picture_in(drawn)), GREEN).mean() > 0.98


def test_the_object_crop_is_a_dashed_frame() -> None:
    """What is seen is the hull of both crops."""
    box = (30.0, 50.0, 130.0, 150.0)
    drawn = draw(found(centre_crop=(60, 90, 270, 300), object_crop=box, crops=2))
    left, upper, right, _ = picture_in(drawn)
    scale = (right - left) / SIZE[0]

    def place(x: float, y: float) -> tuple[int, int]:
        return round(left + x * scale), round(upper + y * scale)

    hull = extent(mask(drawn, GREEN))
    assert hull == pytest.approx((*place(30, 50), *place(270, 300)), abs=2.5)
    x, y = place(130, 50)
    lowest = place(130, 150)[1]
    edge = mask(drawn[y + 4 : lowest - 4, x - 2 : x + 3], WHITE, apart=40).any(axis=1)  # of the right side
    assert 0.3 < edge.mean() < 0.95
    assert 4 <= np.count_nonzero(np.diff(edge.astype(int))) <= 60  # dashes, not a line
    plain = draw(found(centre_crop=(60, 90, 270, 300)))
    assert not mask(cut(plain, picture_in(plain)), WHITE, apart=40).any()


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [("fox", None, True), ("wolf", None, False), ("fox", "wolf", False), ("wolf", "wolf", True)],
)
def test_windows_are_blue_where_the_answer_is_right(answer: str, truth: str | None, right: bool) -> None:
    drawn = draw(found("fox", answer), truth=truth)
    left, upper, width, _ = picture_in(drawn)
    scale = (width - left) / SIZE[0]
    shown = cut(drawn, picture_in(drawn))
    blue, yellow = mask(shown, RIGHT), mask(shown, WRONG)
    frame, other = (blue, yellow) if right else (yellow, blue)
    assert not other.any()
    assert extent(frame) == pytest.approx([scale * edge for edge in (40, 60, 140, 160)], abs=6)
    assert mask(shown, (0, 0, 0), apart=60).any()  # the number
    assert upper > 0


def test_frames_step_inwards_where_others_lie() -> None:
    step = 0.012 * 300
    first, same, right_of, apart, corner = _frames(
        [(40, 60, 140, 160), (40, 60, 140, 160), (140, 100, 240, 200), (40, 160, 140, 260), (200, 300, 300, 400)],
        (300, 400),
    )
    assert first == (40, 60, 140, 160)  # on its edges
    assert same == pytest.approx((40 + step, 60 + step, 140 - step, 160 - step))
    assert right_of == (140, 100, 240, 200)  # its left side lies on the right sides of the others, not on a left one
    assert apart == (40, 160, 140, 260)  # below the others: no side of it lies on theirs
    assert corner == pytest.approx((200, 300, 300 - step, 400 - step))  # a frame on the picture's edge would be cut off


def test_windows_are_numbered_from_one() -> None:
    axis = Figure().subplots()
    _draw_windows(axis, Image.new("RGB", SIZE), found("fox", "wolf", "fox", "fox"), None)
    assert [text.get_text() for text in axis.texts] == ["1", "2", "3"]


def test_windows_at_the_same_place_stay_within_it() -> None:
    one, three = (draw(found(*["fox"] * count)) for count in (2, 4))
    spans = [extent(mask(cut(drawn, picture_in(drawn)), RIGHT)) for drawn in (one, three)]
    assert spans[0] == pytest.approx(spans[1], abs=2)


def below(drawn: np.ndarray) -> np.ndarray:
    """What is drawn between the picture and the legend."""
    lower = picture_in(drawn)[3]
    return drawn[lower + 2 : len(drawn) - round(0.3 * INCH)]


def test_lines_of_text_say_which_answers_were_right() -> None:
    cases: list[tuple[Prediction, str | None, bool, bool]] = [
        (found("fox", "fox"), None, True, False),
        (found("wolf", "wolf"), None, False, True),
        (found("wolf", "fox"), None, True, True),
        (found("fox", "fox"), "wolf", False, True),
        (found("wolf", "wolf", crops=4), None, True, True),  # of all crops together it is the fox
    ]
    for prediction, truth, right, wrong in cases:
        text = below(draw(prediction, truth=truth))
        assert mask(text, RIGHT_TEXT, apart=25).any() == right
        assert mask(text, WRONG_TEXT, apart=25).any() == wrong


@pytest.mark.parametrize("colour", [RIGHT_TEXT, WRONG_TEXT])
def test_text_is_dark_enough_to_be_read(colour: str) -> None:
    """A contrast with white of 4.5 at least, as WCAG asks for."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in ImageColor.getrgb(colour)[:3])
    ]
    luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) > 4.5


def test_each_step_and_all_crops_have_a_line() -> None:
    heights = {
        (steps, crops): len(draw(found(*["fox"] * (1 + steps), crops=crops))) for steps in (0, 1, 3) for crops in (1, 2)
    }
    line = heights[1, 1] - heights[0, 1]
    assert line > 0
    assert heights[0, 2] - heights[0, 1] == pytest.approx(line, abs=2)
    assert heights[3, 1] - heights[0, 1] == pytest.approx(3 * line, abs=2)
    assert heights[3, 2] - heights[0, 1] == pytest.approx(4 * line, abs=2)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_windows_of_a_finer_image_are_shown_enlarged(count: int) -> None:
    picture = green()
    picture.paste(PINK, (180, 240, 280, 340))
    answers, box = ["fox"] * (1 + count), (180.0, 240.0, 280.0, 340.0)
    enlarged, plain = (draw(found(*answers, box=box, zoom=zoom), picture) for zoom in (2, 1))
    left, upper, right, lower = picture_in(enlarged)
    assert not mask(plain[picture_in(plain)[3] :], PINK).any()
    pink = mask(enlarged[lower:], PINK)
    rows, columns = -(-count // 3), min(count, 3)
    side = THUMBNAIL * (right - left)  # of a square window in a picture that is taller than wide
    assert pink.sum() == pytest.approx(count * side**2, rel=0.12)
    first, highest, last, lowest = extent(pink)
    apart = (THUMBNAIL + GAP) * np.array([right - left, lower - upper])
    assert (last - first, lowest - highest) == pytest.approx(side + apart * [columns - 1, rows - 1], rel=0.05)
    assert len(enlarged) - len(plain) == pytest.approx(rows * apart[1], rel=0.1)


def test_several_pictures_are_three_beside_each_other() -> None:
    """Of any shape, each with its own truth."""
    predictions = [found("fox"), found("wolf", "fox"), found("fox", "wolf", "wolf"), found("fox")]
    pictures: list[Any] = [green(), np.asarray(green((400, 300))), green(), green((300, 300))]
    drawn = np.asarray(render_localities(pictures, predictions, [None, "fox", "wolf", None]), dtype=int)
    alone = draw(predictions[0])
    assert drawn.shape[1] == pytest.approx(3 * alone.shape[1], abs=3)
    shown = mask(drawn, GREEN)
    columns = [shown[:, start : start + alone.shape[1]] for start in range(0, drawn.shape[1] - 5, alone.shape[1])]
    half = len(drawn) // 2
    assert [[bool(part.any()) for part in (one[:half], one[half:])] for one in columns] == [
        [True, True],
        [True, False],
        [True, False],
    ]


def test_names_are_cut_where_they_are_long(tmp_path: Path) -> None:
    """In the middle, to the same length, so that what stands there makes no difference."""
    start, end = "a very long name of a class, ", " and so on to its very end"
    names = [f"{start}{middle}{end}" for middle in ("which nobody knows", "or of no class at all")]
    drawn = [draw(found(name, name, name=name)) for name in names]
    assert np.array_equal(drawn[0], drawn[1])
    draw_localities([green()], [found(names[0], names[0], name=names[0])], [None], tmp_path / "where.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "where.png")), drawn[0])


def test_an_explanation_shows_picture_and_steps() -> None:
    evidence = (AttributeEvidence("a", 2.0, (2.0,)), AttributeEvidence("b", -1.0, (-1.0,)))
    whole = found("wolf", "fox", "fox", centre_crop=(0, 50, 300, 350))
    for prediction in (whole, found("fox", "fox", "fox", centre_crop=(0, 50, 300, 350))):
        why = Explanation(prediction, "fox", "wolf", evidence, 1.0, 0.0, green())
        drawn = np.asarray(render_explanation(why), dtype=int)
        left, upper, right, lower = picture_in(drawn)
        scale = (right - left) / SIZE[0]
        bright = extent(mask(drawn, GREEN))
        assert bright == pytest.approx((left, upper + 50 * scale, right, upper + 350 * scale), abs=2.5)
        dots = drawn[lower + 5 :, : drawn.shape[1] // 2]
        assert mask(dots, WRONG).any() == (prediction.glance_answer == "wolf")
        assert mask(dots, RIGHT).any()
        assert mask(drawn[upper:lower, left:right], RIGHT).any()


def test_drawing_leaves_the_callers_backend_alone() -> None:
    """As a notebook's, in which a person's own figures are shown."""
    words = (
        "import matplotlib; matplotlib.use('svg'); import erpcnet.inference.drawing; print(matplotlib.get_backend())"
    )
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert said == "svg\n"
