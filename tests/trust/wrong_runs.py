"""Bad runs: stored models, their JSON files, and checkpoints of interrupted trainings."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trust.batches import Maker, Trial, cli
from trust.cases import Row, clean, command, complaint, generator
from trust.damage import HUGE_NUMBERS, ODD_TEXTS, Random, flip_bits, of_bytes, of_text, one_of, pick, truncate
from trust.drawn import drawn_headers, examples
from trust.kills import difference, training_scene
from trust.world import World, plain_json
from trust.wrong_texts import ODD_FILES, replace_file

MODEL = "model.safetensors"


# Stored models.


def models(world: World) -> list[Maker]:
    """What `load` and every command that takes a run read."""
    return [
        *(_odd_model(world, kind) for kind in ODD_FILES),
        *(_header(world, number) for number in range(len(headers(b"x")))),
        *(_tensors(world, name) for name in TENSORS),
        *(_about(world, path, value) for path, values in ABOUT.items() for value in values),
        *([_flipped(world)] * 60),
        *([_damaged_model(world)] * 60),
        *([_random_about(world)] * 50),
        *(_drawn_header(world, content) for content in examples(drawn_headers(), 100, world.seed, "headers")),
    ]


def _read(what: str, world: World, run: Path, random: Random, wrong: bool) -> Trial:
    """By the library or by a command; a model that is accepted is the one that was damaged, or answers soundly."""
    if random.random() < 0.3:
        name = one_of(random, ("predict", "explain", "evaluate", "export"))
        more: dict[str, list[object]] = {"evaluate": ["--dataset", world.data]}
        more |= {"predict": [world.picture], "explain": [world.picture]}
        return cli(what, [name, run, *more.get(name, [])], wrong=wrong, sane=_finite)

    def act() -> Any:
        import erpcnet

        return erpcnet.load(run, "cpu").predict(str(world.picture))

    return Trial(what, act, wrong, lambda found, _: _other(world, found, wrong), library=True)


def _finite(_: object, out: str) -> str | None:
    return "it printed no number" if {"nan", "inf"} & set(out.lower().replace("%", " ").split()) else None


def _other(world: World, found: Any, wrong: bool) -> str | None:
    numbers = [found.confidence, found.glance_confidence, *(chance for _, chance in found.top)]
    return None if all(0 <= number <= 1 for number in numbers) else f"confidences {numbers}"


def _run(work: Path, content: bytes) -> Path:
    (work / "run").mkdir()
    (work / "run" / MODEL).write_bytes(content)
    return work / "run"


def _content(world: World) -> bytes:
    return (world.run / MODEL).read_bytes()


def _odd_model(world: World, kind: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        (work / "run").mkdir()
        ODD_FILES[kind](work / "run" / MODEL)
        return _read(f"a model is {kind}", world, work / "run", random, wrong=True)

    return make


def headers(content: bytes) -> list[tuple[str, bytes]]:
    """Headers of safetensors that promise what is not there."""

    def of(header: object, size: int | None = None, data: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if size is None else size) + text + data

    def one(**changes: object) -> dict[str, object]:
        return {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes},
            "__metadata__": {"erpcnet": "{}"},
        }

    return [
        ("no header", of(b"")),
        ("an endless header", of(b"{}", 2**63)),
        ("a header of 100 MB", of(b"{}", 10**8)),
        ("a header that is no JSON", of(b"{nonsense}")),
        ("a list", of([1])),
        ("a number", of(3)),
        ("deep lists", of(b"[" * 100_000)),
        ("no metadata", of({})),
        ("metadata of numbers", of({"__metadata__": {"erpcnet": 3}})),
        ("metadata that is no JSON", of({"__metadata__": {"erpcnet": "nonsense"}})),
        ("metadata of a list", of({"__metadata__": {"erpcnet": "[]"}})),
        ("deep metadata", of({"__metadata__": {"erpcnet": "[" * 100_000}})),
        ("endless number", of({"__metadata__": {"erpcnet": '{"format": ' + "9" * 5000 + "}"}})),
        ("offsets beyond the end", of(one(data_offsets=[0, 10**15]), data=bytes(8))),
        ("offsets below 0", of(one(data_offsets=[-8, 0]), data=bytes(8))),
        ("offsets the wrong way round", of(one(data_offsets=[8, 0]), data=bytes(8))),
        ("a huge shape", of(one(shape=[2**62, 2**62]), data=bytes(8))),
        ("a shape below 0", of(one(shape=[-2]), data=bytes(8))),
        ("a type that there is not", of(one(dtype="F33"), data=bytes(8))),
        ("half of the data", of(one(), data=bytes(4))),
        (
            "a name twice",
            of(
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
                data=bytes(8),
            ),
        ),
        ("another program's", of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, data=bytes(8))),
        ("a pickle", b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x0ftouch broken-in\x94\x85\x94R\x94."),
        ("twice the model", content * 2),
    ]


def _header(world: World, number: int) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        what, content = headers(_content(world))[number]
        return _read(f"a model with {what}", world, _run(work, content), random, wrong=True)

    return make


def _drawn_header(world: World, content: bytes) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        return _read(f"a model of {content[:80]!r}", world, _run(work, content), random, wrong=True)

    return make


def _resigned(world: World, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """The model with something changed, and a checksum that fits: of somebody who means it."""
    from erpcnet.inference.model_file import _encoded, _read_tensors

    about, state = _read_tensors(world.run / MODEL)
    change(about, state)
    return _encoded(about, state)


def _some_weight(state: dict[str, Any]) -> str:
    return next(name for name in sorted(state) if name.endswith("weight") and state[name].dim() > 1)


def _set(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    def change(_: dict[str, Any], state: dict[str, Any]) -> None:
        key = name or _some_weight(state)
        state[key] = make(state[key]).contiguous()

    return change


def _place(value: float) -> Callable[[Any], Any]:
    def make(tensor: Any) -> Any:
        changed = tensor.clone()
        changed.flatten()[changed.numel() // 2] = value
        changed.view(-1)[changed.numel() // 2] = value
        return changed

    return make


TENSORS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no weight": lambda about, state: state.pop(_some_weight(state)),
    "no attributes": lambda about, state: state.pop("class_attributes"),
    "a weight more": lambda about, state: state.update(more=state["class_attributes"].clone()),
    "another name": lambda about, state: state.update(other=state.pop(_some_weight(state))),
    "NaN": _set("", _place(math.nan)),
    "infinity": _set("", _place(math.inf)),
    "NaN in attributes": _set("class_attributes", _place(math.nan)),
    "a transposed weight": _set("", lambda one: one.transpose(0, 1) if one.shape[0] != one.shape[1] else one[:1]),
    "a weight without a row": _set("", lambda one: one[:-1]),
    "an empty weight": _set("", lambda one: one[:0]),
    "a scalar": _set("", lambda one: one.flatten()[0]),
    "float64": _set("", lambda one: one.double()),
    "int64": _set("", lambda one: one.long()),
    "bool": _set("", lambda one: one > 0),
    "uint8": _set("", lambda one: one.abs().byte()),
    "complex": _set("", lambda one: one * (1 + 1j)),
    "float64 attributes": _set("class_attributes", lambda one: one.double()),
    "int64 attributes": _set("class_attributes", lambda one: (one * 100).long()),
    "attributes of 0": _set("class_attributes", lambda one: one * 0),
    "huge attributes": _set("class_attributes", lambda one: one * 1e30),
    "attributes without a class": _set("class_attributes", lambda one: one[:-1]),
    "attributes without a column": _set("class_attributes", lambda one: one[:, :-1]),
    "attributes of one dimension": _set("class_attributes", lambda one: one[0]),
    "three-dimensional attributes": _set("class_attributes", lambda one: one[None]),
    "no class": lambda about, state: (
        about.update(classes=[], seen=[]),
        state.update(class_attributes=state["class_attributes"][:0]),
    ),
}


def _tensors(world: World, name: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        content = _resigned(world, TENSORS[name])
        return _read(f"a model with {name}", world, _run(work, content), random, wrong=True)

    return make


GONE = object()
# Changes of what a model says of itself, all of which are wrong.
ABOUT: dict[str, tuple[Any, ...]] = {
    "format": (GONE, None, "3", 2, 4, 3.5, True, [3], -1, 10**400),
    "config": (GONE, None, [], "x", 3),
    "config.seed": (-1, 1.5, "x", None, 2**32),
    "config.variant": ("nobody", None, 3, []),
    "config.nonsense": (1,),
    "config.model": ([1], 3, "x"),
    "config.model.steps": (0, -1, 10**9, 1.5, "3", None),
    "config.model.sigma": (-1, "x", [1]),
    "config.model.scale": (0, -1, "x", 1e300),
    "config.model.pooling": (0, -1),
    "config.model.joint.kind": ("nobody", "", 3),
    "config.model.backbone.name": ("nobody", "", 3, "../../x", "timm/nobody", "resnet18"),
    "config.model.policy.width": (0, 1, 65536, -1),
    "config.model.local.kernel": (0, 1001, 2),
    "config.data.image_size": (0, -1, 31, 5000, "64", 64.5),
    "config.data.cache_size": (0, -1, 10**6),
    "config.data.crop_scale": ([1], [0, 1], [2, 1], "x", None),
    "config.data.test_crops": (3, 0, "1", None),
    "operating_point": (GONE, None, [], 3, {}),
    "operating_point.sigma": (GONE, -1, "x", True, [1]),
    "operating_point.delta": (GONE, None, "x", True),
    "operating_point.protocol": (None, "nobody", 3),
    "operating_point.temperature": ([1], [1, 1, 1], [0, 1], [-1, 1], ["x", "y"], 3, None, [1e300, 1]),
    "operating_point.temperature_all": ([1], [0, 0], "xy", None),
    "operating_point.reject": ("x", [1], True),
    "preprocessing": (GONE, None, [], 3),
    "preprocessing.mean": ([1, 1], "xyz", None, [1e9, 0, 0]),
    "preprocessing.std": ([0, 0, 0], [-1, 1, 1], ["x", 1, 1], None),
    "preprocessing.interpolation": ("nobody", 3, None),
    "preprocessing.crop_share": (0, -1, 2, "x", None),
    "preprocessing.nonsense": (1,),
    "classes": (GONE, None, [], "x", 3, {}),
    "classes.0": ("", " ", None, 3, "x" * 400, "a\nb", "\x1b[31m", ["a"], "CLASS 1"),
    "seen": (GONE, None, [99], [-1], [True], [0.5], ["x"], "x", 3, {"a": 1}),
    "attribute_names": (GONE, None, [], "x", 3),
    "attribute_names.0": ("", None, 3, "a\0b", "x" * 400, "ATTRIBUTE 1"),
}


def _about(world: World, path: str, value: Any) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        def change(about: dict[str, Any], _: object) -> None:
            given = value
            if value in ("CLASS 1", "ATTRIBUTE 1"):  # a name that stands there twice
                given = about[path.partition(".")[0]][1]
            put(about, path, given)

        shown = "gone" if value is GONE else str(value)[:40]
        content = _resigned(world, change)
        return _read(f"a model whose {path} is {shown}", world, _run(work, content), random, wrong=True)

    return make


def put(values: Any, path: str, value: Any) -> None:
    """Set what lies at `a.b.c`, or take it out."""
    *above, last = path.split(".")
    for part in above:
        values = values[int(part) if isinstance(values, list) else part]
    if isinstance(values, list):
        values[int(last)] = value
    elif value is GONE:
        values.pop(last)
    else:
        values[last] = value


def leaves(values: Any, above: str = "") -> list[str]:
    """Where every value of nested ones lies."""
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    found = [place for key, value in inside for place in leaves(value, f"{above}.{key}" if above else str(key))]
    return found or ([above] if above else [])


def odd_value(random: Random) -> Any:
    """Anything that JSON can hold."""
    return pick(
        random, (None, True, False, [], {}, [1], {"a": 1}, "", "x", -1, 0, 1, 0.5, *ODD_TEXTS[:12], *HUGE_NUMBERS)
    )


def _random_about(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        told = []

        def change(about: dict[str, Any], _: object) -> None:
            places = [place for place in leaves(about) if not place.rpartition(".")[2].startswith("checksum")]
            top = [place for place in places if place.split(".")[0] not in ("classes", "attribute_names", "seen")]
            path = one_of(random, tuple(top if random.random() < 0.7 else places))
            value = odd_value(random)
            told.append(f"{path} is {str(value)[:40]!r}")
            put(about, path, value)

        content = _resigned(world, change)
        return _read(f"a model whose {told[0]}", world, _run(work, content), random, wrong=False)

    return make


def _flipped(world: World) -> Maker:
    """One flipped bit is told wherever it is, if it changes anything."""

    def make(work: Path, random: Random) -> Trial:
        content = _content(world)
        size = struct.unpack("<Q", content[:8])[0]
        start = 8 + size if random.random() < 0.6 else 0
        head = content if start else content[: 8 + size]
        what, changed = flip_bits(random, head, 1, start)
        changed += content[len(head) :]
        run = _run(work, changed)

        def act() -> Any:
            import erpcnet

            return erpcnet.load(run, "cpu").predict(str(world.picture))

        expected = world.fresh_classifier().predict(str(world.picture))
        return Trial(
            f"a model with {what}",
            act,
            wrong=bool(start),
            sane=lambda found, _: None if found == expected else "another answer than that of the model as it was",
            library=True,
        )

    return make


def _damaged_model(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        content = _content(world)
        size = struct.unpack("<Q", content[:8])[0]
        if random.random() < 0.5:
            what, head = of_bytes(random, content[: 8 + size])
            what, content = f"its header {what}", head + content[8 + size :]
        else:
            what, content = of_bytes(random, content)
        same = content == _content(world)
        return _read(f"a model: {what}", world, _run(work, content), random, wrong=not same)

    return make


# JSON files of a run.


def notes(world: World) -> list[Maker]:
    """metrics.json and validation.json, which later commands read."""
    names = ("metrics.json", "validation.json")
    return [
        *(_odd_note(world, name, kind) for name in names for kind in ODD_FILES),
        *(_written_note(world, name, text) for name in names for text in ODD_JSON),
        *(_deep_note(world, name) for name in names),
        *([_set_note(world)] * 40),
        *([_damaged_note(world)] * 40),
    ]


# All of it is no such file.
ODD_JSON = (
    *(
        "",
        "null",
        "3",
        '"x"',
        "[]",
        "[1]",
        "{",
        "{]",
        "nan",
        "NaN",
        "{'a': 1}",
        '{"a": 1,}',
        "\ufeff{}",
        "{}",
        '{"data": 3}',
    ),
    *('{"data": null}', '{"data": ""}', '{"data": "a\\u0000b"}', '{"data": ["x"]}', '{"data": NaN}', '{"delta": 3}'),
    *(
        '{"delta": {}, "sigma": {}, "attribute_auc": {}, "reject": {}, "plainer": []}',
        "9" * 5000,
        '{"a": ' + "9" * 5000 + "}",
    ),
)


def _noted(what: str, world: World, work: Path, wrong: bool, name: str) -> Trial:
    """A command that reads that file: what is wrong with it is refused, or told where the command does without it."""
    words = ["evaluate", work / "run", *([] if name == "metrics.json" else ["--dataset", world.data])]
    told = []

    def act() -> int:
        code = command([str(word) for word in words])()
        assert isinstance(sys.stderr, io.StringIO)  # of the batch
        told.append(sys.stderr.getvalue())
        return code

    def sane(result: object, out: str) -> str | None:
        if wrong and name not in told[-1]:
            return f"accepted in silence: {out.strip()[-200:]!r}"
        return _finite(result, out)

    return Trial(what, act, wrong=False, sane=sane)


def _copied(world: World, work: Path) -> Path:
    run = work / "run"
    run.mkdir()
    for name in (MODEL, "metrics.json", "validation.json", "run.json", "config.yaml"):
        os.link(world.run / name, run / name)
    return run


def _odd_note(world: World, name: str, kind: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        place = _copied(world, work) / name
        place.unlink()
        ODD_FILES[kind](place)
        # Without what it was chosen by, a run is evaluated all the same.
        absent = name == "validation.json" and kind in (
            "a FIFO",
            "a folder",
            "a link to itself",
            "a link to /dev/zero",
            "a link to nothing",
        )
        return _noted(f"{name} is {kind}", world, work, not absent, name)

    return make


def _written_note(world: World, name: str, text: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        replace_file(_copied(world, work) / name, text.encode())
        return _noted(f"{name} is {text[:40]!r}", world, work, True, name)

    return make


def _deep_note(world: World, name: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        replace_file(_copied(world, work) / name, b"[" * 200_000)
        return _noted(f"{name} is nested", world, work, True, name)

    return make


def _set_note(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        name = one_of(random, ("validation.json", "validation.json", "metrics.json"))
        values = plain_json(world.run / name)
        short = {path.partition(".")[0]: path for path in random.permutation(leaves(values)).tolist()}
        path = one_of(random, tuple(short.values()))
        value = pick(random, (GONE, odd_value(random)))
        if value is GONE and path[-1:].isdigit():
            value = None
        put(values, path, value)
        replace_file(_copied(world, work) / name, json.dumps(values).replace("1e+308", "1e400").encode())
        wrong = path == "data" and value not in (str(world.data),)
        return _noted(f"{name}: {path} is {str(value)[:40]!r}", world, work, wrong, name)

    return make


def _damaged_note(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        name = one_of(random, ("validation.json", "metrics.json"))
        what, content = of_text(random, (world.run / name).read_text())
        replace_file(_copied(world, work) / name, content)
        return _noted(f"{name}: {what}", world, work, False, name)

    return make


# Checkpoints.


def checkpoints(world: World) -> list[Maker]:
    """What a stage is resumed from, damaged in every way: it is set aside, or what it holds is what was written."""
    return [*(_payload(number) for number in range(len(payloads()))), *([_checkpoint(world)] * 90)]


def _small_training() -> Any:
    """A training with a module, an optimizer and a generator, as those of the two stages have them."""
    import torch

    class Small:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.module = torch.nn.Linear(20, 30)
            self.optimizer = torch.optim.Adam(self.module.parameters())
            self.module(torch.ones(1, 20)).sum().backward()
            self.optimizer.step()

        def state_dict(self) -> dict[str, Any]:
            return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])

    return Small()


def _written_checkpoint(path: Path) -> tuple[Any, list[Any]]:
    """Two checkpoints, of epochs 1 and 2, and the weights of both, after those of no epoch."""
    import torch

    from erpcnet.training.checkpoint import Checkpoint

    training, kept = _small_training(), []
    checkpoint = Checkpoint(path, every=0)
    for epochs in (0, 1, 2):
        kept.append(training.module.weight.detach().clone())
        if epochs:
            checkpoint.save(training, epochs)
        with torch.no_grad():
            training.module.weight.add_(1)
    return _small_training(), kept


def _resumed(what: str, path: Path, training: Any, kept: list[Any], wrong: bool) -> Trial:
    from erpcnet.training.checkpoint import Checkpoint

    def act() -> Any:
        return Checkpoint(path).resume(training)

    def sane(epochs: Any, _: str) -> str | None:
        if epochs not in ((0, 1) if wrong else (0, 1, 2)):
            return f"it goes on after {epochs} epochs"
        weight = training.module.weight
        return None if weight.equal(kept[epochs]) else f"other weights than those of epoch {epochs}"

    return Trial(what, act, False, sane, library=True)


def _checkpoint(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        path = work / "stage1.pt"
        training, kept = _written_checkpoint(path)
        both = random.random() < 0.3
        told = []
        for place in (path, path.with_suffix(".previous.pt")) if both else (path,):
            before = place.read_bytes()
            how = pick(random, (of_bytes, truncate, flip_bits))
            what, content = how(random, before)
            place.write_bytes(content)
            told.append(what if content != before else "as it was")
        return _resumed(", ".join(told), path, training, kept, wrong=told[0] != "as it was")

    return make


def payloads() -> list[tuple[str, Any]]:
    """Checkpoints of other versions, and of nobody's, whose checksums are right."""
    good = {"epochs": 2, "training": _small_training().state_dict()}

    def changed(path: str, value: Any) -> Any:
        values = copy.deepcopy(good)
        put(values, path, value)
        return values

    import torch

    return [
        ("None", None),
        ("a list", [1]),
        ("a number", 3),
        ("nothing", {}),
        ("no epochs", {"training": good["training"]}),
        ("epochs below 0", changed("epochs", -1)),
        ("epochs in a text", changed("epochs", "many")),
        ("NaN epochs", changed("epochs", math.nan)),
        ("endless epochs", changed("epochs", math.inf)),
        ("no state", changed("training", None)),
        ("a state of a list", changed("training", [])),
        ("no module", changed("training.module", GONE)),
        ("a module of None", changed("training.module", None)),
        ("another shape", changed("training.module", {"weight": torch.zeros(3, 3), "bias": torch.zeros(30)})),
        ("a weight less", changed("training.module", {"bias": torch.zeros(30)})),
        ("another optimizer", changed("training.optimizer", {"state": {}, "param_groups": []})),
        ("no optimizer", changed("training.optimizer", 3)),
        ("a pickle", b"pickle"),
        ("text", b"text"),
    ]


def _payload(number: int) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        import torch

        from erpcnet.training.checkpoint import MAGIC

        what, stored = payloads()[number]
        path = work / "stage1.pt"
        training, kept = _written_checkpoint(path)
        if what == "a pickle":
            content = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x0ftouch broken-in\x94\x85\x94R\x94."
        elif what == "text":
            content = b"a text"
        else:
            file = io.BytesIO()
            torch.save(stored, file)
            content = file.getvalue()
        path.write_bytes(MAGIC + zlib.crc32(content).to_bytes(4, "big") + content)
        return _resumed(f"a checkpoint of {what}", path, training, kept, wrong=True)

    return make


def interrupted(world: World, seed: int, folder: Path) -> Row:
    """A training that was killed, whose files are damaged: the same command ends as if nothing had happened, or says
    what is in the way."""
    row = Row(
        "inputs",
        "trainings whose checkpoints are damaged",
        "the same command ends with the same weights, or refuses in a sentence",
    )
    scene = training_scene(clean(folder / "training"), world.data)
    moments, expected = scene.expected()
    random = generator(seed, "interrupted")
    steps = [number for number, moment in enumerate(moments) if moment.kind in ("step", "phase")]
    case = 0
    for share in (0.25, 0.5, 0.7, 0.85, 0.97):
        scene.fresh()
        ended = scene.run(steps[int(share * len(steps))])
        kept = folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        if ended.code == 0:
            row.count("it was not killed", f"at {share:.0%}")
            continue
        shutil.copytree(scene.folder / "work", kept)
        for _ in range(7):
            work = scene.folder / "work"
            shutil.rmtree(work)
            shutil.copytree(kept, work)
            files = sorted(path for path in (work / "run").rglob("*") if path.is_file() and "logs" not in path.parts)
            path = files[int(random.integers(len(files)))]
            before = path.read_bytes()
            what, content = of_bytes(random, before)
            path.write_bytes(content)
            ended = scene.run()
            problem = complaint(ended, (0, 2))
            if problem is None and ended.code == 0:
                found = scene.outcome(work)
                wanted = {name: value for name, value in expected.items() if name != "files"}
                problem = difference(found, wanted)
            name = path.relative_to(work).as_posix()
            row.count(problem, f"{case} (at {share:.0%}, {name}: {what})")
            case += 1
    return row
