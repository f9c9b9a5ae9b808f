"""What the bad inputs are made of: small things that are right."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from trust.cases import TINY_FLAGS, clean, command, draw_tiny, generator, import_all, in_child, told_modules

if TYPE_CHECKING:
    from erpcnet.inference import Prediction, ZeroShotClassifier

SMALL_CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox")  # the last is unseen
SMALL_ATTRIBUTES = ("furry", "winged", "large", "striped")


@dataclass(frozen=True)
class World:
    """Small things that are right.

    Attributes:
        folder: Where they lie.
        seed: Of the campaign.
        data: Drawn creatures.
        run: A run that was trained on them.
        small: A dataset of six classes and eighteen pictures, in the project's own format.
        matlab: The same in the form of the Proposed Split.
        picture: One of the creatures.
    """

    folder: Path
    seed: int
    data: Path
    run: Path
    small: Path
    matlab: Path
    picture: Path

    @cached_property
    def classifier(self) -> ZeroShotClassifier:
        """That of the run."""
        import erpcnet

        return erpcnet.load(self.run, "cpu")

    @cached_property
    def classes(self) -> Any:
        """Its classes, as they were stored."""
        return self.classifier.classes

    def fresh_classifier(self) -> ZeroShotClassifier:
        """The classifier with the classes of the run alone."""
        classes, classifier = self.classes, self.classifier
        classifier.classes = classes
        return classifier


def build_world(folder: Path, seed: int) -> World:
    """Draw, train and write what the bad inputs are made of."""
    import multiprocessing.pool  # noqa: F401 - another user may not read where Python lies

    import erpcnet.data.check
    import erpcnet.experiments.ablation
    import erpcnet.training  # noqa: F401 - whatever a case needs is imported once

    data = draw_tiny(folder / "creatures")
    words = ["train", *TINY_FLAGS, "--dataset", str(data), "--out", str(folder / "run")]
    notes = folder / "modules"

    def train() -> int:
        code = command(words)()
        command(["evaluate", str(folder / "run")])()
        notes.write_text(told_modules())
        return code

    ended = in_child(train, folder, 120, memory=None)
    if ended.code != 0:
        raise RuntimeError(f"the training ended with {ended.code}: {ended.err[-2000:]}")
    import_all(notes.read_text().splitlines())
    picture = min((data / "images").glob("*/*.png"))
    world = World(folder, seed, data, folder / "run", folder / "small", folder / "matlab", picture)
    write_small(clean(world.small))
    write_matlab(clean(world.matlab))
    prediction = world.fresh_classifier().predict(str(picture))
    assert unsound(world, prediction) is None
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return world


def write_small(root: Path) -> None:
    """Three pictures of each class, and three tables."""
    random = generator(0, "small")
    for name in SMALL_CLASSES:
        (root / name).mkdir(parents=True)
        for number in range(3):
            pixels = random.integers(0, 256, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    for name, rows in small_tables().items():
        (root / name).write_text(as_csv(rows), encoding="utf-8")


def small_tables() -> dict[str, list[list[str]]]:
    """The rows of its tables."""
    values = generator(0, "small attributes").random((len(SMALL_CLASSES), len(SMALL_ATTRIBUTES))).round(3)
    named = zip(SMALL_CLASSES, values.tolist(), strict=True)
    images = [
        [f"{name}/{number}.png", name, "test_unseen" if name == "fox" else "test_seen" if number == 2 else "train"]
        for name in SMALL_CLASSES
        for number in range(3)
    ]
    return {
        "attributes.csv": [["class", *SMALL_ATTRIBUTES], *([name, *map(str, row)] for name, row in named)],
        "splits.csv": [["image", "class", "split"], *images],
        "folds.csv": [["fold", "class"], ["0", "ant"], ["0", "bee"], ["1", "cat"], ["1", "dog"]],
    }


def by_class() -> list[list[str]]:
    """The other form of splits.csv: a line for each class."""
    return [["class", "split"], *([name, "unseen" if name == "fox" else "seen"] for name in SMALL_CLASSES)]


def as_csv(rows: Sequence[Sequence[str]], delimiter: str = ",") -> str:
    """Rows as a CSV file has them."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_matlab(root: Path) -> None:
    """The six classes in the form of the Proposed Split."""
    for name in SMALL_CLASSES:
        shutil.copytree(root.parent / "small" / name, root / "images" / name)
    splits, order = matlab_values()
    write_mat(root / "att_splits.mat", splits)
    write_mat(root / "res101.mat", order)
    (root / "attributes.txt").write_text("".join(f"{n} {name}\n" for n, name in enumerate(SMALL_ATTRIBUTES, start=1)))
    for number, val in enumerate((["ant", "bee"], ["cat"]), start=1):
        (root / f"valclasses{number}.txt").write_text("\n".join(val))
        rest = [name for name in SMALL_CLASSES[:-1] if name not in val]
        (root / f"trainclasses{number}.txt").write_text("\n".join(rest))


def matlab_values() -> tuple[dict[str, Any], dict[str, Any]]:
    """What its two .mat files hold."""
    images = small_tables()["splits.csv"][1:]
    numbers = {
        f"{key}_loc": np.array([[row + 1] for row, image in enumerate(images) if image[2] == split], dtype=np.uint16)
        for key, split in (("trainval", "train"), ("test_seen", "test_seen"), ("test_unseen", "test_unseen"))
    }
    raw = generator(0, "matlab").uniform(0, 100, (len(SMALL_ATTRIBUTES), len(SMALL_CLASSES)))
    att = raw / np.linalg.norm(raw, axis=0)
    splits = {"att": att, "original_att": raw, "allclasses_names": cells(SMALL_CLASSES), **numbers}
    labels = np.array([[SMALL_CLASSES.index(image[1]) + 1] for image in images])
    return splits, {"image_files": cells([f"/BS/data/images/{image[0]}" for image in images]), "labels": labels}


def write_mat(path: Path, values: dict[str, Any]) -> None:
    """A MATLAB 5 file."""
    import scipy.io

    scipy.io.savemat(path, values)


def cells(values: Sequence[object]) -> np.ndarray:
    """MATLAB's cells."""
    found = np.empty((len(values), 1), dtype=object)
    found[:, 0] = values
    return found


def unsound(world: World, prediction: Prediction | list[Prediction]) -> str | None:
    """What is wrong with a prediction."""
    for one in prediction if isinstance(prediction, list) else [prediction]:
        names = world.classifier.classes.names
        chances = [chance for _, chance in one.top]
        numbers = [one.confidence, one.glance_confidence, *chances, *(found.confidence for found in one.localities)]
        if not all(0 <= number <= 1 for number in numbers) or sum(chances) > 1 + 1e-4:
            return f"confidences {numbers}"
        if one.name not in names or any(name not in names for name, _ in one.top):
            return f"a class '{one.name}' that there is not"
        values = (
            *one.attributes.values(),
            *one.evidence.values(),
            *(edge for box in one.localities for edge in box.box),
        )
        if not np.isfinite(values).all():
            return "an attribute or a window that is no finite number"
    return None


def unsound_dataset(root: Path) -> str | None:
    """What is wrong with a dataset that was accepted: checked from what it says, not as it was read."""
    from erpcnet.data import read_dataset

    dataset = read_dataset(root)
    if not np.isfinite(dataset.attributes).all() or not np.allclose(
        np.linalg.norm(dataset.unit_attributes, axis=1), 1, atol=1e-4
    ):
        return "attributes without a length"
    for names in (dataset.classes, dataset.attribute_names):
        if len(set(names)) != len(names) or not all(name.strip() and name.isprintable() for name in names):
            return f"names {names}"
    rows = np.concatenate([dataset.train, dataset.test_seen, dataset.test_unseen])
    if len(set(rows.tolist())) != len(rows) or rows.min() < 0 or rows.max() >= len(dataset.image_paths):
        return "an image in two splits, or in none that there is"
    if set(dataset.labels[dataset.train]) & set(dataset.labels[dataset.test_unseen]):
        return "a class that is seen and unseen"
    top = root.resolve()
    outside = [path for path in dataset.image_paths if not (root / path).resolve().is_relative_to(top)]
    return f"an image outside of the folder: {outside[0]}" if outside else None


def plain_json(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))
