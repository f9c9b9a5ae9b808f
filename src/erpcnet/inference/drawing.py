"""Pictures of the localities that were selected, and of what speaks for an answer.

One rule for colours, here, in the figures of an analysis and on the page: blue where the answer after a step was the
right one (or, where the truth is not known, the final one), yellow where it was another.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import Normal, Stroke
from PIL import Image

from erpcnet.inference.pictures import Picture, open_picture
from erpcnet.utils.files import write_atomically

if TYPE_CHECKING:
    from erpcnet.inference.explanation import AttributeEvidence, Explanation
    from erpcnet.inference.prediction import Box, Prediction

RIGHT, WRONG = "#1f77ff", "#ffc400"  # the paper's colours: blue is correct, yellow is wrong; colour-blind safe
RIGHT_TEXT, WRONG_TEXT = "#0b4fb3", "#9a6a00"  # the same, dark enough on white for text and thin lines
INK, GREY = "#333333", "#888888"  # of what is neither
WIDTH, TITLE = 3.2, 0.3  # of a picture and its title, in inches
TALLEST = 1.4  # height of a picture by its width
COLUMNS = 3  # so many pictures beside each other can be read on a page
# A window that is shown enlarged, the gap beside it, and a line of text; the picture is 1.
THUMBNAIL, GAP, LINE = 0.31, 0.03, 0.064
OUTLINE = [Stroke(linewidth=3.4, foreground="white"), Normal()]
OBJECT_CROP: dict[str, Any] = {"edgecolor": "white", "linestyle": "--", "linewidth": 1.2}
NUDGE = 0.012  # how far a frame steps inwards for each that lies there already, by the short side
DIMMED = 0.45  # how much of black there is over what the network does not see
LONGEST = 40  # characters of a name


def draw_localities(
    pictures: Sequence[Picture], predictions: Sequence[Prediction], truths: Sequence[str | None], out: str | Path
) -> None:
    """Write what `render_localities` draws as a PNG file."""
    file = BytesIO()
    render_localities(pictures, predictions, truths).save(file, "PNG")
    write_atomically(Path(out), file.getvalue())


def render_localities(
    pictures: Sequence[Picture], predictions: Sequence[Prediction], truths: Sequence[str | None]
) -> Image.Image:
    """The numbered localities of each picture, with the answer and its confidence after each step, and of all crops.

    The object crop of test-time augmentation is a dashed frame, and what the network does not see is dimmed. Windows
    that were read from a finer image (zoom) are also shown enlarged, below the picture.

    Args:
        pictures: Files, Pillow images, arrays or tensors.
        predictions: What was predicted of each.
        truths: Their classes, where they are known.
    """
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    lines = max((len(_lines(prediction)) for prediction in predictions), default=1)
    zoomed = max((prediction.steps for prediction in predictions if prediction.zoom > 1), default=0)
    thumbnails = -(-zoomed // COLUMNS)
    opened = [open_picture(picture) for picture in pictures]
    side = WIDTH * min(max(picture.height / picture.width for picture in opened), TALLEST)  # of the tallest picture
    below = side * (LINE * (lines + 1) + (THUMBNAIL + GAP) * thumbnails)
    height = rows * (side + below + TITLE) + TITLE
    figure = Figure(figsize=(1.04 * WIDTH * columns, height))  # not of pyplot, whose backend is the caller's business
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
        axis.set_anchor("N")
    for axis, picture, prediction, truth in zip(axes.flat, opened, predictions, truths, strict=False):
        _draw_one(axis, picture, prediction, truth, thumbnails)
    between = (below + TITLE) / side
    figure.subplots_adjust(0.01, (below + TITLE) / height, 0.99, 1 - TITLE / height, wspace=0.04, hspace=between)
    what = "the right answer" if any(truth is not None for truth in truths) else "the final answer"
    handles = [Patch(color=RIGHT, label=f"{what} after this step"), Patch(color=WRONG, label="another one")]
    figure.legend(handles=handles, loc="lower center", ncols=2, fontsize=8, frameon=False)
    return _rendered(figure)


def render_explanation(why: Explanation) -> Image.Image:
    """The windows in order, the confidence over steps, and the attributes for and against the answer."""
    prediction = why.prediction
    figure = Figure(figsize=(11.5, 5.2))
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.15), height_ratios=(2.2, 1), hspace=0.3, wspace=0.55)
    shown = figure.add_subplot(grid[0, 0])
    shown.axis("off")
    _draw_windows(shown, why.picture, prediction, None)
    shown.set_title(f"{_short(why.answer)}, not {_short(why.runner_up)}", fontsize=10)
    sure = figure.add_subplot(grid[1, 0])
    values = [prediction.glance_confidence, *(one.confidence for one in prediction.localities)]
    answers = [prediction.glance_answer, *(one.answer for one in prediction.localities)]
    sure.plot(range(len(values)), [100 * value for value in values], "-", color=GREY, linewidth=1)
    for step, (value, answer) in enumerate(zip(values, answers, strict=True)):
        sure.plot(step, 100 * value, "o", color=_colour(answer, prediction.name), markeredgecolor="black", markersize=7)
    sure.set_xticks(range(len(values)), ["glance", *(str(step) for step in range(1, len(values)))])
    sure.set_ylim(0, 105)
    sure.set_ylabel("confidence, %", fontsize=8)
    sure.set_xlabel("after window", fontsize=8)
    sure.tick_params(labelsize=8)
    _draw_evidence(figure.add_subplot(grid[:, 1]), why)
    return _rendered(figure)


def _draw_evidence(axis: Axes, why: Explanation) -> None:
    rows: list[AttributeEvidence] = [*why.speaks_for, *why.speaks_against[::-1]]
    places = range(len(rows), 0, -1)
    colours = [RIGHT if one.amount > 0 else WRONG for one in rows]
    axis.barh(list(places), [one.amount for one in rows], color=colours, edgecolor="black", linewidth=0.4, height=0.7)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(list(places), [_short(one.name) for one in rows], fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(f"for {_short(why.runner_up)}  \N{LEFTWARDS ARROW}   logit   \N{RIGHTWARDS ARROW}  for "
                    f"{_short(why.answer)}", fontsize=8)  # fmt: skip
    axis.set_title("attributes, and the window where most of each was read", fontsize=9)
    for height, one in zip(places, rows, strict=True):
        where = "glance" if one.place == 0 else f"window {one.place}"
        axis.annotate(
            where, (one.amount, height), xytext=(3 if one.amount > 0 else -3, 0), textcoords="offset points",
            ha="left" if one.amount > 0 else "right", va="center", fontsize=7,
        )  # fmt: skip
    axis.margins(x=0.22)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _rendered(figure: Figure) -> Image.Image:
    file = BytesIO()
    figure.savefig(file, dpi=130, format="png")
    file.seek(0)
    drawn = Image.open(file)
    drawn.load()
    return drawn.convert("RGB")


def _draw_one(axis: Axes, picture: Image.Image, prediction: Prediction, truth: str | None, thumbnails: int) -> None:
    """One picture; `thumbnails` is for how many rows of enlarged windows there is room below it."""
    _draw_windows(axis, picture, prediction, truth)
    if prediction.zoom > 1:
        _draw_enlarged(axis, picture, prediction, truth)
    axis.set_title(_short(f"true: {truth}" if truth else prediction.name, 50), fontsize=8)
    for place, (name, answer, confidence) in enumerate(_lines(prediction)):
        right = _colour(answer, truth or prediction.name) == RIGHT
        axis.text(
            0.01, -0.02 - (THUMBNAIL + GAP) * thumbnails - LINE * place, f"{name}: {_short(answer)} {confidence:.0%}",
            transform=axis.transAxes, fontsize=8, va="top", color=RIGHT_TEXT if right else WRONG_TEXT,
        )  # fmt: skip


def _draw_windows(axis: Axes, picture: Image.Image, prediction: Prediction, truth: str | None) -> None:
    """The picture, what the network does not see of it dimmed, with its windows."""
    crop = prediction.centre_crop
    axis.imshow(picture if crop is None else _dimmed(picture, prediction.object_crop or crop, crop))
    if prediction.object_crop is not None:
        left, upper, right, lower = prediction.object_crop
        axis.add_patch(Rectangle((left, upper), right - left, lower - upper, fill=False, **OBJECT_CROP))
    frames = _frames([locality.box for locality in prediction.localities], picture.size)
    for number, (left, upper, right, lower) in enumerate(frames):
        colour = _colour(prediction.localities[number].answer, truth or prediction.name)
        axis.add_patch(
            Rectangle(
                (left, upper),
                right - left,
                lower - upper,
                fill=False,
                edgecolor=colour,
                linewidth=1.8,
                path_effects=OUTLINE,
            )
        )
        axis.text(
            left, upper, str(number + 1), fontsize=7, color="black", va="top",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip
    axis.set_xlim(-0.5, picture.width - 0.5)
    axis.set_ylim(picture.height - 0.5, -0.5)


def _frames(boxes: Sequence[Box], size: tuple[int, int]) -> list[Box]:
    """Where the windows' frames are drawn: on their edges, but for those that lie on an edge of the picture or of an
    earlier window, which step inwards, so that each can be seen.
    """
    step, (width, height) = NUDGE * min(size), size
    frames = []
    for number, box in enumerate(boxes):
        moved = []
        for side, limit in enumerate((0, 0, width, height)):
            along = (1, 3) if side % 2 == 0 else (0, 2)
            same = sum(
                abs(other[side] - box[side]) < step
                and other[along[0]] < box[along[1]]
                and box[along[0]] < other[along[1]]
                for other in boxes[:number]
            )
            inwards = 1 if side < 2 else -1
            moved.append(box[side] + inwards * step * (same + (abs(limit - box[side]) < step)))
        frames.append((moved[0], moved[1], moved[2], moved[3]))
    return frames


def _dimmed(picture: Image.Image, one: Sequence[float], other: Sequence[float]) -> Image.Image:
    """The picture, dimmed outside of both boxes' hull."""
    left, upper = (round(min(one[side], other[side])) for side in (0, 1))
    right, lower = (round(max(one[side], other[side])) for side in (2, 3))
    dimmed = Image.blend(picture, Image.new(picture.mode, picture.size), DIMMED)
    dimmed.paste(picture.crop((left, upper, right, lower)), (left, upper))
    return dimmed


def _draw_enlarged(axis: Axes, picture: Image.Image, prediction: Prediction, truth: str | None) -> None:
    """The windows as the network read them, in rows below the picture."""
    for number, locality in enumerate(prediction.localities):
        row, column = divmod(number, COLUMNS)
        place = (column * (THUMBNAIL + GAP) + 0.01, -(row + 1) * (THUMBNAIL + GAP), THUMBNAIL, THUMBNAIL)
        inset = axis.inset_axes(place)
        left, upper, right, lower = (round(edge) for edge in locality.box)
        inset.imshow(picture.crop((left, upper, right, lower)))
        inset.set_xticks([])
        inset.set_yticks([])
        colour = _colour(locality.answer, truth or prediction.name)
        for spine in inset.spines.values():
            spine.set(color=colour, linewidth=1.8)
        inset.text(
            0.04, 0.96, str(number + 1), fontsize=7, va="top", transform=inset.transAxes,
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2},
        )  # fmt: skip


def _lines(prediction: Prediction) -> list[tuple[str, str, float]]:
    """What was answered after the glance and after each step; and, of several crops, together."""
    lines = [("glance", prediction.glance_answer, prediction.glance_confidence)]
    lines += [
        (f"step {n}", locality.answer, locality.confidence) for n, locality in enumerate(prediction.localities, start=1)
    ]
    if prediction.crops > 1:
        lines.append((f"{prediction.crops} crops", prediction.name, prediction.confidence))
    return lines


def _colour(answer: str, reference: str) -> str:
    return RIGHT if answer == reference else WRONG


def _short(name: str, most: int = LONGEST) -> str:
    """A name in so many characters: its middle goes, as kinds of one family differ in what is said last."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}\N{HORIZONTAL ELLIPSIS}{name[-end:]}"
