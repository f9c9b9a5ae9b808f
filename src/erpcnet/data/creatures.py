"""`creatures`: a drawn dataset in which small parts decide.

A class is a distribution over the looks of each part (how often its ears are pointed, its eyes red, ...), and
that distribution is its attribute row. Classes come in families that share everything but one small part, so
what tells siblings apart covers a few pixels of a picture in which other creatures' parts lie about. Whole families
are unseen.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from erpcnet.config.ranges import shorten
from erpcnet.data.creature_pictures import LOOKS, SMALL_PARTS, PictureSettings, draw_creature
from erpcnet.errors import InputError
from erpcnet.utils.files import as_path
from erpcnet.utils.progress import track

FORMAT = 4  # raise it when the same settings would draw something else
NOTE = "creatures.json"

# How looks are spoken of in the names of classes.
PATTERNS = {"plain": "", "spots": "spotted ", "stripes": "striped ", "patches": "patched "}
WINGS = {"none": "wingless", "feathered": "bird-winged", "bat": "bat-winged"}
SPOKEN = {
    "ears": {"none": "earless", "round": "round-eared", "pointed": "pointed-eared", "horns": "horned"}
    | {"antennae": "with antennae"},
    "eye": {"black": "black-eyed", "yellow": "yellow-eyed", "red": "red-eyed"},
    "mouth": {"none": "mouthless", "beak": "beaked", "tusk": "tusked", "tongue": "long-tongued"},
    "tail": {"none": "tailless", "thin": "thin-tailed", "bushy": "bushy-tailed", "forked": "fork-tailed"},
    "legs": {"short": "short-legged", "long": "long-legged", "webbed": "web-footed"},
    "chest": {"none": "plain-chested", "white": "white-chested", "dark": "dark-chested"},
}

Contrast = tuple[str, str, str]  # a part, its look in a family, and that in one sibling


@dataclass(frozen=True)
class CreatureSettings(PictureSettings):
    """How many creatures; the seed decides every pixel. `certainty`: how often a part has its usual look."""

    families: int = 60
    siblings: int = 3
    unseen_families: int = 12
    train_images: int = 5
    test_images: int = 4
    unseen_images: int = 40
    certainty: tuple[float, float] = (0.92, 0.99)
    seed: int = 21

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise InputError(f"the seed is {shorten(self.seed)}; it must be from 0 to {2**32 - 1}.")


@dataclass(frozen=True)
class CreatureClass:
    """One class: the usual look of each part, and how often each look occurs; `code` names the folder of its images."""

    code: str
    name: str
    family: int
    usual: dict[str, str]
    frequency: dict[str, np.ndarray]


def make_creatures(root: str | Path, settings: CreatureSettings | None = None, workers: int | None = None) -> Path:
    """Draw the dataset into `root`, which must be empty or absent; the same settings give the same bytes."""
    settings = settings or CreatureSettings()
    root = as_path(root, "the folder to draw into")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(f"{root} is there and not empty; choose another folder or remove it first.")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{root} cannot be made ({error.strerror}).") from None
    classes = draw_classes(settings)
    # Drawn beside its place and moved there whole: an interrupted run leaves no half dataset, and the next one removes
    # what is left of it.
    work = root.parent / f".{root.name}-drawing"
    lock = work / "lock"
    held = FileLock(lock)
    try:
        work.mkdir(exist_ok=True)
        held.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another command draws into {root}; wait for it.") from None
    try:
        _clear(work, lock)
        jobs = [(work, cls, number, settings) for number, cls in enumerate(classes)]
        with ProcessPoolExecutor(max_workers=workers, initializer=_end_with, initargs=(os.getpid(),)) as pool:
            drawn = list(track(pool.map(_draw_class, jobs), total=len(jobs), what="Drawing creatures"))
        _write_tables(work, classes, drawn, settings)
        (work / NOTE).write_text(_note(settings), encoding="utf-8")
        if root.exists():
            root.rmdir()
        lock.unlink()
        work.rename(root)
    except BrokenProcessPool:
        raise InputError(
            "a process that draws was ended from outside, perhaps for want of memory; give the command again."
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        held.release()
    return root


def _clear(work: Path, lock: Path) -> None:
    """Remove what a drawing that was killed left there."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != lock:
            path.unlink()


def is_creatures(root: Path, settings: CreatureSettings) -> bool:
    """Whether `root` holds exactly what these settings draw."""
    note = root / NOTE
    return note.is_file() and note.read_text(encoding="utf-8") == _note(settings)


def _note(settings: CreatureSettings) -> str:
    return json.dumps({"format": FORMAT, **asdict(settings)}, sort_keys=True) + "\n"


def draw_classes(settings: CreatureSettings) -> list[CreatureClass]:
    """Families of siblings; the last `unseen_families` are unseen, and use looks that seen ones use too."""
    random = np.random.default_rng([settings.seed, 1])
    while True:
        families = _draw_families(settings, random)
        seen = families[: settings.families - settings.unseen_families]
        unseen = families[settings.families - settings.unseen_families :]
        known = {(part, look) for family in seen for usual in family for part, look in usual.items()}
        if all((part, look) in known for family in unseen for usual in family for part, look in usual.items()):
            break
    return [
        CreatureClass(
            code=f"{family:02d}{chr(ord('a') + sibling)}",
            name=_spoken_name(siblings, sibling),
            family=family,
            usual=usual,
            frequency={part: _frequency(part, look, settings, random) for part, look in usual.items()},
        )
        for family, siblings in enumerate(families)
        for sibling, usual in enumerate(siblings)
    ]


def _spoken_name(siblings: Sequence[dict[str, str]], number: int) -> str:
    """What all of a family share, and the small part by which one sibling is told from the others."""
    first, usual = siblings[0], siblings[number]
    family = f"{usual['body']} {PATTERNS[usual['pattern']]}{usual['colour']} {WINGS[usual['wings']]}"
    if len(siblings) == 1:
        return family
    other = siblings[max(number, 1)]
    part = next(part for part in SMALL_PARTS if first[part] != other[part])
    return f"{family} {SPOKEN[part][usual[part]]}"


def _draw_families(settings: CreatureSettings, random: np.random.Generator) -> list[list[dict[str, str]]]:
    families: list[list[dict[str, str]]] = []
    taken: set[tuple[str, ...]] = set()
    deck: list[Contrast] = []
    while len(families) < settings.families:
        first = {part: str(random.choice(looks)) for part, looks in LOOKS.items()}
        coarse = tuple(first[part] for part in LOOKS if part not in SMALL_PARTS)
        if coarse in taken:
            continue
        taken.add(coarse)
        # Every further sibling differs from the first in one small part, each in another.
        contrasts: dict[str, Contrast] = {}
        while len(contrasts) < settings.siblings - 1:
            dealt = _deal(deck, set(contrasts), random)
            contrasts[dealt[0]] = dealt
        first |= {part: look for part, look, _ in contrasts.values()}
        families.append([first, *({**first, part: other} for part, _, other in contrasts.values())])
    return families


def _deal(deck: list[Contrast], without: set[str], random: np.random.Generator) -> Contrast:
    """The next contrast of another part than these. Every pair of looks is dealt before one is dealt again: what no
    siblings differ in, nothing teaches."""
    if all(part in without for part, _, _ in deck):
        pairs = [(part, *pair) for part in SMALL_PARTS for pair in permutations(LOOKS[part], 2)]
        deck.extend(pairs[number] for number in random.permutation(len(pairs)))
    return deck.pop(next(place for place, (part, _, _) in enumerate(deck) if part not in without))


def _frequency(part: str, look: str, settings: CreatureSettings, random: np.random.Generator) -> np.ndarray:
    """How often each look of the part occurs: mostly the usual one, the rest shared at random."""
    looks = LOOKS[part]
    usual = random.uniform(*settings.certainty)
    rest = random.dirichlet(np.full(len(looks) - 1, 0.5)) * (1 - usual)
    return np.insert(rest, looks.index(look), usual)


def _split_of(cls: CreatureClass, number: int, settings: CreatureSettings) -> str:
    if cls.family >= settings.families - settings.unseen_families:
        return "test_unseen"
    return "train" if number < settings.train_images else "test_seen"


def _draw_class(
    job: tuple[Path, CreatureClass, int, CreatureSettings],
) -> list[tuple[list[str], list[list[object]]]]:
    """Draw the images of one class; per image its line of splits.csv and its lines of parts.csv."""
    root, cls, number, settings = job
    folder = root / "images" / cls.code
    folder.mkdir(parents=True)
    lines: list[tuple[list[str], list[list[object]]]] = []
    seen = cls.family < settings.families - settings.unseen_families
    for count in range(settings.train_images + settings.test_images if seen else settings.unseen_images):
        random = np.random.default_rng([settings.seed, 2, number, count])
        looks = {part: str(random.choice(LOOKS[part], p=cls.frequency[part])) for part in LOOKS}
        picture, places = draw_creature(looks, settings, random)
        path = f"images/{cls.code}/{count:03d}.png"
        picture.save(root / path)
        parts = [[path, part, looks[part], round(x, 1), round(y, 1)] for part, (x, y) in places.items()]
        lines.append(([path, cls.name, _split_of(cls, count, settings)], parts))
    return lines


def _end_with(parent: int) -> None:
    """A process that draws ends soon after the one that it draws for, even if that one was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _write_tables(
    root: Path,
    classes: Sequence[CreatureClass],
    drawn: Sequence[list[tuple[list[str], list[list[object]]]]],
    settings: CreatureSettings,
) -> None:
    header = [f"{part}: {look}" for part, looks in LOOKS.items() for look in looks]
    table = [[cls.name, *(f"{v:.4f}" for part in LOOKS for v in cls.frequency[part])] for cls in classes]
    _write_csv(root / "attributes.csv", ["class", *header], table)
    lines = [line for own in drawn for line in own]
    _write_csv(root / "splits.csv", ["image", "class", "split"], [split for split, _ in lines])
    _write_csv(root / "parts.csv", ["image", "part", "look", "x", "y"], [row for _, rows in lines for row in rows])
    seen = settings.families - settings.unseen_families
    held = max(1, seen // 4)
    order = np.random.default_rng([settings.seed, 3]).permutation(seen)
    # Whole families are held out, as whole families are unseen.
    folds = [
        [fold, cls.name]
        for fold in range(min(3, seen // held))
        for cls in classes
        if cls.family in order[fold * held : (fold + 1) * held]
    ]
    _write_csv(root / "folds.csv", ["fold", "class"], folds)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
