"""Bad arguments of the library's functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trust.batches import Maker, Trial
from trust.damage import HUGE_NUMBERS, ODD_TEXTS, Random, pick
from trust.world import World, unsound
from trust.wrong_texts import shapes

# What is no name, no number, no list and no path.
NONE = np.zeros(0)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        3.5,
        math.nan,
        math.inf,
        10**30,
        b"",
        b"x",
        "",
        "not-there",
        "\0",
        "x" * 9000,
        "a\nb",
    ),
    *((), [], {}, set(), [None], [[]], {"a": None}, {1: 2}, object(), print, int, ..., range(3), 1j, Path("not-there")),
    *(
        NONE,
        np.array("x"),
        np.array(None),
        np.full((3, 3), np.nan),
        memoryview(b"abc"),
        bytearray(b"x"),
        iter(()),
    ),
)


def calls(world: World) -> list[Maker]:
    """Everything that the package's page names, with what it cannot take."""
    return [
        *(_odd_picture(world, number) for number in range(len(odd_pictures()))),
        *(_one(world, name, place) for name in FUNCTIONS for place in range(len(ODD))),
        *([_array(world)] * 60),
        *([_classes(world)] * 60),
        *([_scores(world)] * 80),
    ]


def _one(world: World, name: str, place: int) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        value = ODD[place]
        call, fine = FUNCTIONS[name]
        wrong = not any(
            value is one or (type(value) is type(one) and not isinstance(one, np.ndarray) and value == one)
            for one in fine
        )
        shown = type(value).__name__ if isinstance(value, np.ndarray) else repr(value)[:60]
        return Trial(f"{name} of {shown}", lambda: call(world, value, work), wrong, library=True)

    return make


Call = Callable[[World, Any, Path], Any]


def _dataset(world: World) -> Any:
    from erpcnet.data import read_dataset

    return read_dataset(world.small)


def _module() -> Any:
    import erpcnet

    return erpcnet


def _quick() -> Any:
    """Settings of a training of a second."""
    sizes = {"data": {"image_size": 64}, "stage1": {"epochs": 1}, "stage2": {"epochs": 1}}
    return _module().load_config("creatures", model={"sigma": 0.5, "delta": 0.1}, **sizes)


# Each with the odd values that it may take.
FUNCTIONS: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "load": (lambda world, value, work: _module().load(value), ()),
    "load with device": (lambda world, value, work: _module().load(world.run, value), (None,)),
    "load with execution": (lambda world, value, work: _module().load(world.run, "cpu", value), ()),
    "load with test_crops": (lambda world, value, work: _module().load(world.run, "cpu", test_crops=value), (None, 1)),
    "read_dataset": (lambda world, value, work: _module().read_dataset(value), ()),
    "load_config": (lambda world, value, work: _module().load_config(value), (None,)),
    "load_config with seed": (lambda world, value, work: _module().load_config("creatures", seed=value), (0, 1)),
    "load_config with model": (lambda world, value, work: _module().load_config("creatures", model=value), (None, {})),
    "Config.from_values": (lambda world, value, work: _module().Config.from_values(value), ({},)),
    "train_run": (lambda world, value, work: _module().train_run(value, world.data, work / "run"), ()),
    "train_run with dataset": (
        lambda world, value, work: _module().train_run(_module().load_config("creatures"), value, work / "run"),
        (),
    ),
    "train_run with out": (
        lambda world, value, work: _module().train_run(_quick(), world.small, value),
        ("not-there", "a\nb", Path("not-there")),
    ),
    "evaluate_run": (lambda world, value, work: _module().evaluate_run(value), ()),
    "evaluate_run with dataset": (lambda world, value, work: _module().evaluate_run(world.run, value), (None,)),
    "evaluate_run with test_crops": (
        lambda world, value, work: _module().evaluate_run(world.run, world.data, value),
        (None, 1),
    ),
    "evaluate_run with delta": (
        lambda world, value, work: _module().evaluate_run(world.run, world.data, None, value),
        (None, 0, 1, -1, 3.5, 10**30),
    ),
    "predict": (lambda world, value, work: world.fresh_classifier().predict(value), ((), [], {}, set(), ODD[-1])),
    "predict with candidates": (
        lambda world, value, work: world.fresh_classifier().predict(str(world.picture), value),
        (),
    ),
    "predict with batch_size": (
        lambda world, value, work: world.fresh_classifier().predict([str(world.picture)], batch_size=value),
        (1, 10**30),
    ),
    "explain": (lambda world, value, work: world.fresh_classifier().explain(value), ()),
    "explain with against": (
        lambda world, value, work: world.fresh_classifier().explain(str(world.picture), "all", value),
        (None,),
    ),
    "add_classes": (lambda world, value, work: world.fresh_classifier().add_classes(value), ({},)),
    "add_classes with attributes": (
        lambda world, value, work: world.fresh_classifier().add_classes({"new": value}),
        (),
    ),
    "change_class": (lambda world, value, work: world.fresh_classifier().change_class(value, [1.0] * 38), ()),
    "change_class with attributes": (
        lambda world, value, work: world.fresh_classifier().change_class(world.classes.names[0], value),
        ({},),
    ),
    "remove_classes": (
        lambda world, value, work: world.fresh_classifier().remove_classes(value),
        ((), [], {}, set(), NONE, ODD[-1]),
    ),
    "save_pretrained": (
        lambda world, value, work: world.fresh_classifier().save_pretrained(value),
        ("not-there", "a\nb", Path("not-there")),
    ),
    "from_pretrained": (lambda world, value, work: type(world.classifier).from_pretrained(value), ()),
    "Prediction.plot": (
        lambda world, value, work: world.fresh_classifier().predict(str(world.picture)).plot(value),
        (None,),
    ),
    "gzsl_metrics": (lambda world, value, work: _module().gzsl_metrics(value, [0, 1], [True, False]), ()),
    "gzsl_metrics with labels": (
        lambda world, value, work: _module().gzsl_metrics(np.eye(2), value, [True, False]),
        (range(3),),
    ),
    "gzsl_metrics with seen": (
        lambda world, value, work: _module().gzsl_metrics(np.eye(2), [0, 1], value),
        (0, 1, True),
    ),
    "gzsl_metrics with delta": (
        lambda world, value, work: _module().gzsl_metrics(np.eye(2), [0, 1], [True, False], value),
        (None, 0, 1, -1, 3.5, 10**30),
    ),
    "ZeroShotDataset.fold": (lambda world, value, work: _dataset(world).fold(value), (0, 1)),
    "ZeroShotDataset.validation": (lambda world, value, work: _dataset(world).validation(value), (None, 1)),
}


def odd_pictures() -> list[tuple[str, Any]]:
    """What is no picture, though it looks like one."""
    import torch

    bytes_ = np.zeros((20, 30, 3), dtype=np.uint8)
    closed = Image.new("RGB", (5, 5))
    closed.close()
    return [
        ("NaN", np.full((20, 30, 3), np.nan, dtype=np.float32)),
        ("infinity", np.full((20, 30, 3), np.inf)),
        ("below 0", np.full((20, 30, 3), -0.1)),
        ("above 1", np.full((20, 30, 3), 1.1)),
        ("NaN in a tensor", torch.full((3, 20, 30), math.nan)),
        ("channels last in a tensor", torch.zeros(20, 30, 3)),
        ("half of NaN", torch.full((3, 20, 30), math.nan, dtype=torch.float16)),
        ("bfloat above 1", torch.full((3, 20, 30), 200, dtype=torch.bfloat16)),
        ("complex", torch.zeros(3, 20, 30, dtype=torch.complex64)),
        ("complex array", bytes_.astype(complex)),
        ("a sparse tensor", torch.zeros(3, 20, 30).to_sparse()),
        ("a tensor on no device", torch.zeros(3, 20, 30, device="meta")),
        ("five dimensions", np.zeros((2, 2, 20, 30, 3), dtype=np.uint8)),
        ("five dimensions of a tensor", torch.zeros(2, 2, 3, 20, 30)),
        ("one dimension", np.zeros(30, dtype=np.uint8)),
        ("no dimension", np.uint8(3)),
        ("no dimension of an array", np.array(3, dtype=np.uint8)),
        ("no dimension of a tensor", torch.tensor(0.5)),
        ("two channels", np.zeros((20, 30, 2), dtype=np.uint8)),
        ("five channels", np.zeros((20, 30, 5), dtype=np.uint8)),
        ("no pixels", np.zeros((0, 30, 3), dtype=np.uint8)),
        ("no height in a tensor", torch.zeros(3, 0, 30)),
        ("whole numbers", bytes_.astype(np.int64)),
        ("whole numbers in a tensor", torch.zeros(3, 20, 30, dtype=torch.int64)),
        ("objects", np.full((20, 30, 3), None)),
        ("texts", np.full((20, 30, 3), "x")),
        ("truths", bytes_.astype(bool)),
        ("times", np.zeros((20, 30, 3), dtype="datetime64[s]")),
        ("a record", np.zeros((20, 30), dtype=[("r", "u1"), ("g", "u1")])),
        ("a closed image", closed),
        ("an image without pixels", Image.new("RGB", (0, 5))),
        ("a batch of NaN", np.full((2, 20, 30, 3), np.nan)),
        ("a list of None", [None]),
        ("a list of lists", [[1, 2], [3, 4]]),
        ("a list in which one is none", [bytes_, "not-there.png"]),
        ("a class", Image.Image),
        ("a file that is read", (world_file := __file__)),
        ("a dictionary of pictures", {"a": 1}),
        ("a text of a folder", str(Path(world_file).parent)),
        ("a whole module", np),
    ]


def _odd_picture(world: World, number: int) -> Maker:
    def make(_: Path, random: Random) -> Trial:
        what, picture = odd_pictures()[number]
        classifier = world.fresh_classifier()
        name = str(pick(random, ("predict", "predict", "explain", "centre_crop")))
        return Trial(f"{name} of {what}", lambda: getattr(classifier, name)(picture), True, library=True)

    return make


def _array(world: World) -> Maker:
    """Arrays of any shape and type; those that are pictures are answered."""

    def make(_: Path, random: Random) -> Trial:
        array = shapes(random)
        classifier = world.fresh_classifier()
        return Trial(
            f"predict of {array.dtype} {array.shape}",
            lambda: classifier.predict(array),
            False,
            lambda found, _: unsound(world, found),
            library=True,
        )

    return make


def _classes(world: World) -> Maker:
    """New classes and other attributes, which may be right; what is refused changes nothing."""

    def make(_: Path, random: Random) -> Trial:
        names = world.classes.attribute_names
        numbers = (
            *HUGE_NUMBERS,
            0,
            1,
            0.5,
            math.nan,
            math.inf,
            None,
            "1",
            True,
            np.float32(1),
            np.float64("nan"),
            1j,
            [1],
        )
        given: Any
        if random.random() < 0.5:
            given = {one: pick(random, numbers) for one in random.choice(names, size=3).tolist()}
            if random.random() < 0.3:
                given[pick(random, (*ODD_TEXTS, 3, None))] = 1.0
        else:
            given = [0.5] * (len(names) + int(random.choice([0, 0, 0, 1, -1])))
            given[int(random.integers(len(given)))] = pick(random, numbers)
            given = pick(random, (given, tuple(given), np.array(given, dtype=object)))
        name: Any = pick(random, (*ODD_TEXTS, "new", "new", "new", world.classes.names[0], None, 3, ("a",)))
        how = str(pick(random, ("add", "add", "change")))

        def act() -> Any:
            classifier = world.fresh_classifier()
            try:
                if how == "add":
                    classifier.add_classes({name: given})
                else:
                    classifier.change_class(world.classes.names[0], given)
            except ValueError:
                assert classifier.classes is world.classes, "classes that were refused"
                raise
            assert np.isfinite(classifier.classes.phi().numpy()).all()
            return classifier.predict(str(world.picture))

        return Trial(
            f"{how} {name!r:.40} {str(given)[:100]}", act, False, lambda found, _: unsound(world, found), library=True
        )

    return make


def _scores(world: World) -> Maker:
    """Score matrices, labels and masks of any shape and type."""

    def make(_: Path, random: Random) -> Trial:
        scores: Any = random.normal(size=(6, 4))
        labels: Any = np.array([0, 1, 2, 3, 0, 2])
        seen: Any = np.array([True, True, False, False])
        delta: Any = None
        what = int(random.integers(4))
        odd: Any = shapes(random) if random.random() < 0.6 else pick(random, (*ODD, *HUGE_NUMBERS))
        if what == 0:
            scores = odd
            if random.random() < 0.6:
                scores = random.normal(size=(6, 4))
                scores.flat[int(random.integers(24))] = pick(
                    random, (math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320)
                )
        elif what == 1:
            labels = (
                odd
                if random.random() < 0.6
                else labels + pick(random, (0.5, 1, -1, 2**40, -(2**62), math.nan, math.inf))
            )
        elif what == 2:
            seen = (
                odd
                if random.random() < 0.6
                else pick(random, ([0, 1, 1, 1], [4], [-1], [0.5], [True], [1, 1, 1, 1], [0, 0]))
            )
        else:
            delta = odd
        shown = [str(one).replace("\n", " ")[:40] for one in (scores, labels, seen, delta)]

        def sane(found: Any, _: str) -> str | None:
            shares = (found.t1, found.u, found.s, found.h, found.h_best, found.ausuc, *found.per_class.values())
            fine = all(0 <= share <= 1 for share in shares) and math.isfinite(found.delta)
            return None if fine else f"figures {found}"

        import erpcnet

        return Trial(
            f"gzsl_metrics of {shown[what]}",
            lambda: erpcnet.gzsl_metrics(scores, labels, seen, delta),
            False,
            sane,
            library=True,
        )

    return make
