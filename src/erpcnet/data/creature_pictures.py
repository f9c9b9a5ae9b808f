"""Pictures of creatures: a body with parts of many looks, on cluttered ground, and where each part is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Points = np.ndarray

# Every part and its looks; an attribute is one look of one part.
LOOKS: dict[str, tuple[str, ...]] = {
    "body": ("round", "oval", "long"),
    "colour": ("brown", "grey", "green", "blue", "violet", "sand"),
    "pattern": ("plain", "spots", "stripes", "patches"),
    "wings": ("none", "feathered", "bat"),
    "ears": ("none", "round", "pointed", "horns", "antennae"),
    "eye": ("black", "yellow", "red"),
    "mouth": ("none", "beak", "tusk", "tongue"),
    "tail": ("none", "thin", "bushy", "forked"),
    "legs": ("short", "long", "webbed"),
    "chest": ("none", "white", "dark"),
}
# The parts in which siblings differ: each fits one window of the grid.
SMALL_PARTS = ("ears", "eye", "mouth", "tail", "legs", "chest")
DECOYS = ("ears", "eye", "mouth", "tail", "chest")

BODY_COLOURS: dict[str, Colour] = {
    "brown": (134, 88, 52),
    "grey": (128, 130, 136),
    "green": (74, 132, 70),
    "blue": (70, 104, 168),
    "violet": (124, 82, 148),
    "sand": (204, 174, 112),
}
EYE_COLOURS: dict[str, Colour] = {"black": (16, 16, 18), "yellow": (246, 208, 30), "red": (214, 32, 34)}
BODY_RADII = {"round": (0.44, 0.42), "oval": (0.56, 0.36), "long": (0.70, 0.28)}
CLUTTER: tuple[Colour, ...] = (
    *EYE_COLOURS.values(),
    (240, 146, 36),
    (238, 238, 232),
    (226, 120, 140),
    (52, 40, 40),
    (150, 110, 60),
)


@dataclass(frozen=True)
class PictureSettings:
    """`scale`: a creature's half width as a share of the picture; `crumbs`: how many bits in the colours of small
    parts lie about; `decoys`: how many small parts lie about that belong to nobody; `chroma`: how colourful the
    ground is.
    """

    size: int = 128
    scale: tuple[float, float] = (0.24, 0.34)
    crumbs: tuple[int, int] = (14, 24)
    decoys: tuple[int, int] = (6, 10)
    chroma: float = 60.0


class _Canvas:
    """Draws in the creature's own frame: its body at the origin, facing right, y downwards."""

    supersampling = 2

    def __init__(self, settings: PictureSettings, random: np.random.Generator) -> None:
        self.size, self.random = settings.size, random
        size = settings.size
        side = size * self.supersampling
        self.image = Image.new("RGB", (side, side))
        self.draw = ImageDraw.Draw(self.image)
        # The creature spans about 2 x 1.4 units.
        unit = size * random.uniform(*settings.scale)
        angle = random.uniform(-0.3, 0.3)
        facing = random.choice([-1.0, 1.0])
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        self.matrix = unit * turn @ np.diag([facing, 1.0])
        room = size / 2 - unit * np.array([1.08, 0.92])
        self.centre = size / 2 + random.uniform(-1, 1, 2) * room

    def place(self, points: Points) -> Points:
        """Creature coordinates to pixels of the finished picture."""
        return np.asarray(points) @ self.matrix.T + self.centre

    def polygon(self, points: Points, fill: Colour) -> None:
        self.draw.polygon([tuple(p) for p in self.place(points) * self.supersampling], fill=fill)

    def line(self, points: Points, fill: Colour, width: float) -> None:
        pixels = width * np.linalg.norm(self.matrix[:, 1]) * self.supersampling
        placed = [tuple(p) for p in self.place(points) * self.supersampling]
        self.draw.line(placed, fill=fill, width=max(1, round(pixels)), joint="curve")

    def finish(self) -> Image.Image:
        picture = self.image.resize((self.size, self.size), Image.Resampling.BOX)
        pixels = np.asarray(picture, dtype=np.float32) * self.random.uniform(0.85, 1.1)
        pixels += self.random.normal(0, 5, pixels.shape)
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_creature(
    looks: dict[str, str], settings: PictureSettings, random: np.random.Generator
) -> tuple[Image.Image, dict[str, tuple[float, float]]]:
    """One picture, and where each part is in it (pixels)."""
    canvas = _Canvas(settings, random)
    _draw_background(canvas, settings)
    _draw_decoys(canvas, settings)
    colour = _vary(BODY_COLOURS[looks["colour"]], random)
    rx, ry = (radius * random.uniform(0.94, 1.06) for radius in BODY_RADII[looks["body"]])
    head = np.array([rx + 0.10, -ry - 0.02])
    anchors = {
        "body": (0.0, 0.0),
        "colour": (0.0, 0.0),
        "pattern": (0.0, 0.0),
        "wings": (-0.1, -ry - 0.12),
        "ears": (head[0] - 0.04, head[1] - 0.30),
        "eye": (head[0] + 0.07, head[1] - 0.05),
        "mouth": (head[0] + 0.26, head[1] + 0.06),
        "tail": (-rx - 0.18, -0.05),
        "legs": (0.0, ry + 0.16),
        "chest": (rx * 0.62, ry * 0.30),
    }
    # From back to front.
    for part, draw in _PAINTERS.items():
        draw(canvas, looks[part], np.array(anchors[part]), colour, (rx, ry))
        if part == "body":
            canvas.polygon(_ellipse(head, 0.26, 0.24), colour)
    centres = {part: canvas.place(np.array(at)) for part, at in anchors.items()}
    return canvas.finish(), {part: (float(x), float(y)) for part, (x, y) in centres.items()}


def _draw_background(canvas: _Canvas, settings: PictureSettings) -> None:
    """A graded ground with blobs, strokes and crumbs in the colours of eyes, beaks and marks."""
    random, side = canvas.random, canvas.size * canvas.supersampling
    top, bottom = random.uniform(110, 200, (2, 1)) + random.uniform(-1, 1, (2, 3)) * settings.chroma
    blend = np.linspace(0, 1, side)[:, None, None]
    ground = np.broadcast_to(top * (1 - blend) + bottom * blend, (side, side, 3))
    canvas.image.paste(Image.fromarray(ground.astype(np.uint8)))
    for _ in range(random.integers(4, 9)):
        at, radii = random.uniform(0, side, 2), random.uniform(0.05, 0.16, 2) * side
        fill = _vary(random.uniform(90, 200) + random.uniform(-1, 1, 3) * settings.chroma, random)
        shape = _ellipse(at, radii[0], radii[1], turn=random.uniform(0, 3))
        canvas.draw.polygon([tuple(p) for p in shape], fill=fill)
    for _ in range(random.integers(*settings.crumbs)):
        at, fill = random.uniform(0, side, 2), CLUTTER[random.integers(len(CLUTTER))]
        reach = random.uniform(0.015, 0.04) * side
        if random.random() < 0.5:
            shape = _ellipse(at, reach, reach * random.uniform(0.5, 1), turn=random.uniform(0, 3))
        else:
            shape = at + random.uniform(-1.6, 1.6, (3, 2)) * reach
        canvas.draw.polygon([tuple(p) for p in shape], fill=fill)


def _draw_decoys(canvas: _Canvas, settings: PictureSettings) -> None:
    """Small parts that belong to nobody: only where a part is says whether it counts."""
    random, home = canvas.random, canvas.centre
    for _ in range(random.integers(*settings.decoys)):
        part = str(random.choice(DECOYS))
        look = str(random.choice([look for look in LOOKS[part] if look != "none"]))
        colour = _vary(BODY_COLOURS[str(random.choice(LOOKS["colour"]))], random)
        canvas.centre = random.uniform(0.05, 0.95, 2) * canvas.size
        _PAINTERS[part](canvas, look, np.zeros(2), colour, (0.2, 0.2))
    canvas.centre = home


def _ellipse(centre: Points, rx: float, ry: float, turn: float = 0.0, points: int = 28) -> Points:
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    ring = np.stack([rx * np.cos(angle), ry * np.sin(angle)], axis=1)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    return np.asarray(centre) + ring @ rotation


def _by(point: Points, right: float, down: float) -> Points:
    """A point moved in the creature's frame."""
    return np.asarray(point) + np.array([right, down])


def _vary(colour: Sequence[float] | np.ndarray, random: np.random.Generator, by: int = 14) -> Colour:
    red, green, blue = (int(np.clip(c + random.integers(-by, by + 1), 0, 255)) for c in colour)
    return red, green, blue


def _shade(colour: Colour, factor: float) -> Colour:
    red, green, blue = (int(min(255, c * factor)) for c in colour)
    return red, green, blue


def _draw_tail(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    root = np.array([-radii[0] + 0.05, 0.0])
    if look == "thin":
        canvas.line(np.array([root, _by(at, -0.02, -0.06), _by(at, -0.14, -0.22)]), _shade(colour, 0.6), 0.07)
    elif look == "bushy":
        canvas.polygon(_ellipse(_by(at, -0.04, -0.08), 0.24, 0.14, turn=-0.6), _shade(colour, 1.3))
    elif look == "forked":
        canvas.line(np.array([root, at]), _shade(colour, 0.6), 0.08)
        canvas.line(np.array([_by(at, -0.16, -0.16), at, _by(at, -0.16, 0.12)]), _shade(colour, 0.6), 0.08)


def _draw_legs(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    length = {"short": 0.14, "long": 0.32, "webbed": 0.18}[look]
    fill = (236, 138, 30) if look == "webbed" else _shade(colour, 0.65)
    for x in (-0.5, -0.25, 0.25, 0.5):
        hip = np.array([x * radii[0], radii[1] - 0.06])
        foot = _by(hip, canvas.random.uniform(-0.05, 0.05), length + 0.06)
        canvas.line(np.array([hip, foot]), fill, 0.07)
        if look == "webbed":
            canvas.polygon(foot + np.array([(0, -0.05), (0.13, 0.05), (-0.05, 0.05)]), fill)


def _draw_body(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    canvas.polygon(_ellipse(at, *radii), colour)


def _draw_pattern(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    random, dark = canvas.random, _shade(colour, 0.55)
    if look == "stripes":
        for x in np.linspace(-0.6, 0.5, 5) + random.uniform(-0.05, 0.05):
            half = radii[1] * 0.85 * np.sqrt(1 - x**2)
            canvas.line(np.array([(x * radii[0], -half), (x * radii[0] + 0.04, half)]), dark, 0.05)
    elif look in ("spots", "patches"):
        count, reach = (12, 0.045) if look == "spots" else (3, 0.15)
        for _ in range(count):
            angle, away = random.uniform(0, 2 * np.pi), np.sqrt(random.uniform(0, 0.5))
            centre = at + away * np.array([radii[0] * np.cos(angle), radii[1] * np.sin(angle)])
            canvas.polygon(_ellipse(centre, reach, reach * 0.8), dark)


def _draw_wings(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    if look == "feathered":
        for lean in (-0.22, -0.08, 0.06):
            canvas.polygon(_ellipse(_by(at, lean, 0.02), 0.09, 0.28, turn=0.5), _shade(colour, 1.3 + lean))
    elif look == "bat":
        points = np.array([(0.12, 0.25), (0.02, -0.26), (-0.16, -0.02), (-0.28, -0.22), (-0.34, 0.02), (-0.5, -0.06)])
        canvas.polygon(at + np.vstack([points, [(-0.2, 0.25)]]), _shade(colour, 0.5))


def _draw_ears(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    for lean in (-0.10, 0.10):
        root = _by(at, lean, 0.12)
        if look == "round":
            canvas.polygon(_ellipse(root, 0.11, 0.11), _shade(colour, 1.2))
        elif look == "pointed":
            canvas.polygon(root + np.array([(-0.09, 0.08), (lean * 0.5, -0.24), (0.09, 0.08)]), _shade(colour, 0.8))
        elif look == "horns":
            canvas.line(root + np.array([(0, 0.05), (lean, -0.08), (lean * 0.5, -0.2)]), (236, 228, 200), 0.08)
        elif look == "antennae":
            tip = _by(root, lean * 1.2, -0.20)
            canvas.line(np.array([_by(root, 0, 0.05), tip]), (40, 34, 34), 0.035)
            canvas.polygon(_ellipse(tip, 0.06, 0.06), (40, 34, 34))


def _draw_eye(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    canvas.polygon(_ellipse(at, 0.115, 0.115), (244, 244, 240))
    canvas.polygon(_ellipse(at, 0.085, 0.085), EYE_COLOURS[look])


def _draw_mouth(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    if look == "beak":
        canvas.polygon(at + np.array([(-0.07, -0.11), (0.20, 0.0), (-0.07, 0.09)]), (240, 146, 36))
    elif look == "tusk":
        canvas.line(at + np.array([(-0.10, 0.03), (0.03, 0.13), (0.15, -0.02)]), (244, 240, 226), 0.07)
    elif look == "tongue":
        canvas.line(at + np.array([(-0.08, 0.05), (0.08, 0.09), (0.14, 0.22)]), (226, 70, 110), 0.08)


def _draw_chest(canvas: _Canvas, look: str, at: Points, colour: Colour, radii: tuple[float, float]) -> None:
    if look != "none":
        fill = (240, 240, 234) if look == "white" else (44, 34, 34)
        canvas.polygon(_ellipse(at, 0.14, 0.10, turn=0.5), fill)


_PAINTERS: dict[str, Callable[[_Canvas, str, Points, Colour, tuple[float, float]], None]] = {
    "tail": _draw_tail,
    "legs": _draw_legs,
    "body": _draw_body,
    "pattern": _draw_pattern,
    "chest": _draw_chest,
    "wings": _draw_wings,
    "ears": _draw_ears,
    "eye": _draw_eye,
    "mouth": _draw_mouth,
}
