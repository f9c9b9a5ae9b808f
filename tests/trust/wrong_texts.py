"""Bad tables, configurations and command lines."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import yaml

from trust.batches import Maker, Trial, cli
from trust.cases import TINY_FLAGS, generator, link_tree
from trust.damage import HUGE_NUMBERS, NO_NUMBERS, ODD_TEXTS, Random, of_text, one_of, pick
from trust.drawn import Table, drawn_configurations, examples, odd_tables, right_tables
from trust.world import SMALL_ATTRIBUTES, SMALL_CLASSES, World, as_csv, by_class, small_tables, unsound, unsound_dataset

Rows = list[list[str]]
DATA = "data"  # the folder of a case's dataset


# Tables of a dataset.


def tables(world: World) -> list[Maker]:
    """attributes.csv, splits.csv and folds.csv."""
    return [
        *(_odd_file(world, name, kind) for name in small_tables() for kind in ODD_FILES),
        *([_odd_cell(world)] * 160),
        *([_odd_structure(world)] * 60),
        *([_odd_table(world)] * 110),
        *(_drawn_table(world, name, one) for name in small_tables() for one in _drawn_tables(world, name)),
        *(_right_table(world, one) for one in _right_tables(world)),
    ]


def _checked(what: str, work: Path, wrong: bool) -> Trial:
    """`erpcnet data check` of the case's dataset."""
    root = work / DATA
    return cli(what, ["data", "check", root], wrong=wrong, wanting=True, sane=lambda *_: unsound_dataset(root))


def _dataset(world: World, work: Path) -> Path:
    return link_tree(world.small, work / DATA)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that shares no bytes with what it is a link to."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_loop(path: Path) -> None:
    path.symlink_to(path.name)


def as_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 * 2**30)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": as_fifo,
    "a folder": Path.mkdir,
    "a link to itself": as_loop,
    "a link to /dev/zero": as_endless,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "empty": Path.touch,
    "5 GiB of zeros": as_sparse,
    "NUL bytes": lambda path: path.write_bytes(bytes(3000)),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfd" * 40),
}


def _odd_file(world: World, name: str, kind: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        root = _dataset(world, work)
        (root / name).unlink()
        ODD_FILES[kind](root / name)
        # folds.csv may be missing, and a link to nothing is that.
        return _checked(f"{name} is {kind}", work, wrong=(name, kind) != ("folds.csv", "a link to nothing"))

    return make


def _odd_cell(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _dataset(world, work)
        name, rows = _some_table(random)
        row, column = int(random.integers(len(rows))), int(random.integers(len(rows[0])))
        number = name == "attributes.csv" and row > 0 and column > 0
        odd = one_of(random, NO_NUMBERS if number else ODD_TEXTS)
        before, rows[row][column] = rows[row][column], odd
        replace_file(root / name, as_csv(rows).encode("utf-8", "surrogatepass"))
        # The name of a fold may be any, and that of an attribute any that can be printed, whatever is around it.
        free = (name == "attributes.csv" and row == 0 and column > 0) or (name == "folds.csv" and column == 0 and row)
        fine = free and bool(odd.strip() or name == "folds.csv") and odd.strip().isprintable() and len(odd) <= 300
        same = odd.strip() == before.strip()
        wrong = not (fine or same or (free and name == "folds.csv" and odd.strip()))
        return _checked(f"{name}, {row}, {column} is {odd!r}", work, wrong)

    return make


def _some_table(random: Random) -> tuple[str, Rows]:
    found = small_tables()
    name = one_of(random, tuple(found))
    if name == "splits.csv" and random.random() < 0.4:
        return name, by_class()
    return name, found[name]


def _odd_structure(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _dataset(world, work)
        what, name, rows = _structure(random)
        replace_file(root / name, as_csv(rows).encode())
        return _checked(f"{name}: {what}", work, wrong=True)

    return make


def _structure(random: Random) -> tuple[str, str, Rows]:
    """A table in which something stands twice, is missing, or is of another kind; all of it is wrong."""
    found = small_tables()
    rows = found["attributes.csv"]
    row, column = int(random.integers(1, len(rows))), int(random.integers(1, len(rows[0])))
    number = int(random.integers(12))
    splits, folds = found["splits.csv"], found["folds.csv"]
    if number == 0:
        return f"row {row} twice", "attributes.csv", [*rows, rows[row]]
    if number == 1:
        return f"column {column} twice", "attributes.csv", [[*line, line[column]] for line in rows]
    if number == 2:
        return f"no cell {row}, {column}", "attributes.csv", [*rows[:row], rows[row][:-1], *rows[row + 1 :]]
    if number == 3:
        return f"one cell more in {row}", "attributes.csv", [*rows[:row], [*rows[row], "1"], *rows[row + 1 :]]
    if number == 4:
        return f"no row {row}", "attributes.csv", [*rows[:row], *rows[row + 1 :]]
    if number == 5:
        value = one_of(random, ("0", "1e300", "1e-300", "-0", "1e12"))
        flat = [[line[0], *[value] * (len(line) - 1)] if place == row else line for place, line in enumerate(rows)]
        return f"row {row} all {value}", "attributes.csv", flat
    if number == 6:
        other = row % (len(rows) - 1) + 1
        return (
            f"row {row} like {other}",
            "attributes.csv",
            [*rows[:row], [rows[row][0], *rows[other][1:]], *rows[row + 1 :]],
        )
    if number == 7:
        return "an image twice", "splits.csv", [*splits, splits[int(random.integers(1, len(splits)))]]
    if number == 8:
        image, name, split = splits[int(random.integers(1, len(splits)))]
        second = "train" if split != "train" else "test_unseen"
        return "an image in two splits", "splits.csv", [*splits, [f"./{image}", name, second]]
    if number == 9:
        kept = one_of(random, ("train", "test_unseen", "test_seen"))
        return f"only {kept}", "splits.csv", [line for line in splits if line[2] in ("split", kept)]
    if number == 10:
        return (
            "all classes in one fold",
            "folds.csv",
            [folds[0], *(["0", name] for name in ("ant", "bee", "cat", "dog", "elk"))],
        )
    return "an unseen class in a fold", "folds.csv", [*folds, ["1", "fox"]]


def _odd_table(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _dataset(world, work)
        name, rows = _some_table(random)
        what, content = of_text(random, as_csv(rows, one_of(random, (",", ";", "\t"))))
        replace_file(root / name, content)
        return _checked(f"{name}: {what}", work, wrong=no_text(content))

    return make


def _drawn_tables(world: World, name: str) -> list[Table]:
    return examples(odd_tables(small_tables()[name]), 30, world.seed, name)


def _drawn_table(world: World, name: str, table: Table) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        replace_file(_dataset(world, work) / name, table.content)
        return _checked(f"{name}: {table.content[:80]!r}", work, wrong=False)

    return make


def _right_tables(world: World) -> list[Table]:
    return examples(right_tables(SMALL_CLASSES, SMALL_ATTRIBUTES), 40, world.seed, "right tables")


def _right_table(world: World, table: Table) -> Maker:
    """Nothing is wrong with it: it is read as it is meant."""

    def make(work: Path, _: Random) -> Trial:
        root = _dataset(world, work)
        replace_file(root / "attributes.csv", table.content)

        def act() -> Any:
            from erpcnet.data import read_dataset
            from erpcnet.errors import InputError

            try:
                return read_dataset(root)
            except InputError as error:
                return f"refused: {error}"

        what = f"attributes.csv, in which nothing is wrong: {table.content[:60]!r}"
        return Trial(what, act, False, lambda found, _: _otherwise(found, table), library=True)

    return make


def _otherwise(found: Any, table: Table) -> str | None:
    """What a dataset has otherwise than its table."""
    if isinstance(found, str):
        return found
    (_, *names), *rows = table.rows
    values = np.array([[float(cell) for cell in row[1:]] for row in rows], dtype=np.float32)
    if (found.classes, found.attribute_names) != (tuple(row[0] for row in rows), tuple(names)):
        return f"other names: {found.classes}, {found.attribute_names}"
    return None if np.array_equal(found.attributes, values) else f"other values: {found.attributes.tolist()}"


def no_text(content: bytes) -> bool:
    """Whether bytes are neither UTF-8 nor UTF-16 with its mark."""
    try:
        return "\0" in content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    except UnicodeDecodeError:
        return True


# Tables of new classes.


def new_classes(world: World) -> list[Maker]:
    """What `--add-classes` takes."""
    rows = _new_rows(world, generator(world.seed, "drawn classes"))
    return [
        *(_new_file(world, kind) for kind in ODD_FILES),
        *([_new_cell(world)] * 50),
        *([_new_table(world)] * 60),
        *(_drawn_classes(world, one) for one in examples(odd_tables(rows), 40, world.seed, "new classes")),
    ]


def _new_rows(world: World, random: Random) -> Rows:
    names = [str(name) for name in random.choice(world.classes.attribute_names, size=4, replace=False)]
    values = random.uniform(0.1, 1, (3, 4)).round(3)
    return [["class", *names], *([f"new {number}", *map(str, row)] for number, row in enumerate(values))]


def _added(what: str, world: World, work: Path, random: Random, wrong: bool) -> Trial:
    """By the library, or by a command."""
    path = work / "new.csv"
    if random.random() < 0.3:
        words = ["predict", world.run, world.picture, "--add-classes", path]
        return cli(what, words, wrong=wrong, sane=lambda _, out: "nan" if "nan" in out.lower().split() else None)

    def act() -> Any:
        from erpcnet.inference.class_files import add_classes_from

        classifier = world.fresh_classifier()
        try:
            names = add_classes_from(classifier, path)
        except ValueError:
            assert classifier.classes is world.classes, "classes of a table that was refused"
            raise
        assert set(names) <= set(classifier.classes.names)
        return classifier.predict(str(world.picture))

    return Trial(what, act, wrong, lambda found, _: unsound(world, found), library=True)


def _new_file(world: World, kind: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        ODD_FILES[kind](work / "new.csv")
        return _added(f"new.csv is {kind}", world, work, random, wrong=True)

    return make


def _new_cell(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        rows = _new_rows(world, random)
        row, column = int(random.integers(len(rows))), int(random.integers(len(rows[0])))
        odd = one_of(random, NO_NUMBERS if row and column else ODD_TEXTS)
        if not row and column:
            odd = one_of(random, (*ODD_TEXTS, rows[0][column % 4 + 1]))
        if row and not column:
            odd = one_of(random, (*ODD_TEXTS, world.classes.names[0], "new 0" if row > 1 else "new 1"))
        rows[row][column] = odd
        (work / "new.csv").write_text(as_csv(rows), encoding="utf-8")
        name = odd.strip()
        own = row and not column
        fine = own and name and name.isprintable() and len(name) <= 300 and name not in world.classes.names
        return _added(f"{row}, {column} is {odd!r}", world, work, random, not fine or name in ("new 0", "new 1"))

    return make


def _new_table(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        what, content = of_text(random, as_csv(_new_rows(world, random)))
        (work / "new.csv").write_bytes(content)
        return _added(what, world, work, random, no_text(content))

    return make


def _drawn_classes(world: World, table: Table) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        (work / "new.csv").write_bytes(table.content)
        return _added(f"new.csv: {table.content[:80]!r}", world, work, random, wrong=False)

    return make


# Settings, in YAML and by flags.


def all_settings() -> dict[str, tuple[Any, Any]]:
    """Every setting by its name, with its type and its range, if it has one."""
    from erpcnet.config import Config

    found: dict[str, tuple[Any, Any]] = {}

    def walk(kind: type, above: str) -> None:
        hints = get_type_hints(kind)
        for one in fields(kind):
            if is_dataclass(hints[one.name]):
                walk(hints[one.name], f"{above}{one.name}.")
            else:
                found[f"{above}{one.name}"] = (hints[one.name], one.metadata.get("range"))

    walk(Config, "")
    return found


def _is_number(kind: Any) -> bool:
    return any(one in (int, float) for one in (kind, *get_args(kind)))


def _bad_values(kind: Any, allowed: Any) -> list[Any]:
    """Values that no such setting may have."""
    if kind is bool:
        return ["maybe", 2, -1, 1.5, [True], {"a": 1}, "", "yes please", math.nan]
    if _is_number(kind):
        odd: list[Any] = [
            "many",
            "",
            [1],
            {"a": 1},
            math.nan,
            math.inf,
            -math.inf,
            "1e",
            True,
            10**400,
        ]
        if int in (kind, *get_args(kind)):
            odd += [1.5, "3.7", 1e300]
        if allowed is not None:
            odd += [
                allowed.low - 1,
                allowed.high + max(1, abs(allowed.high)),
                1e39 if float in (kind, *get_args(kind)) else 10**30,
            ]
            odd += [allowed.low] if allowed.low_open else []
            odd += [allowed.high] if allowed.high_open else []
        return odd
    if kind is str:
        return ["", " ", [1], {"a": 1}, "x" * 5000, "a\nb", "a\x1b[31mb", "\u202e"]
    if getattr(kind, "__origin__", None) is tuple:
        return [[1], [1, 2, 3], "ab", [0, 1], [0.5, 0.1], [0.5, 2], [math.nan, 1], {"a": 1}, [-1, 1], [[1], [1]], 7]
    return ["none such", "", 7, -1, [1], {"a": 1}, math.nan, "x" * 3000]  # one of some


def configurations(world: World) -> list[Maker]:
    """What `--config FILE` takes."""
    return [
        *(_odd_config(world, kind) for kind in ODD_FILES if kind not in ("empty",)),
        *(_written_config(world, text) for text in ODD_CONFIGS),
        *([_set_config(world)] * 90),
        *([_damaged_config(world)] * 90),
        *(_drawn_config(text) for text in examples(drawn_configurations(all_settings()), 120, world.seed, "YAML")),
    ]


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
# Files of settings, all of which are wrong.
ODD_CONFIGS = (
    BOMB,
    "model: &m\n  local: *m\n",
    "&a [*a]\n",
    "seed: &s 1\nmodel: {steps: *s}\n",
    "base: &b {steps: 3}\nmodel:\n  <<: *b\n",
    "model: !!python/object/apply:os.system ['touch broken-in']\n",
    "seed: !!python/name:os.system\n",
    "!!python/object/new:subprocess.Popen [['touch', 'broken-in']]\n",
    "seed: !!binary aGVsbG8=\n",
    "variant: !!set {erpcnet}\n",
    "seed: 2001-01-01\n",
    "seed: 2001-99-99\n",
    "seed: !!int x\n",
    "model: !!omap [a: 1]\n",
    "seed: !mine 3\n",
    "[1, 2]\n",
    "3\n",
    "just text\n",
    "seed: 1\n---\nseed: 2\n",
    "%YAML 9.9\n---\nseed: 1\n",
    "seed: 1\nseed: 2\n",
    "model: {steps: 1, steps: 2}\n",
    "1: 2\n",
    "null: 3\n",
    "[a, b]: 3\n",
    "{a: b}: 3\n",
    "? [x]\n: 1\n",
    "true: 1\n",
    "model: [1]\n",
    "model: 3\n",
    "model: ''\n",
    "model: false\n",
    "data: []\n",
    "stage1: {loss_weights: [1, 1]}\n",
    "\tseed: 1\n",
    "seed: 1\n  model: 2\n",
    "seed: '1\n",
    "seed: [1\n",
    "seed: }\n",
    "@\n",
    "seed: 1\0\n",
    "\ufeff\ufeffseed: 1\n",
    "seed: " + "9" * 5000 + "\n",
    "seed: 0x" + "f" * 5000 + "\n",
    "model: {delta: 1e" + "9" * 3000 + "}\n",
    "model: " * 3000 + "1\n",
    "{model: " * 200 + "1" + "}" * 200,
    "[" * 20000,
    "- " * 20000,
    "x" * 2_000_000,
    "x: 1\n" * 100_000,
    "extends: mine.yaml\n",
    "extends: nobody\n",
    "extends: /etc/passwd\n",
    "extends: ../../../etc/passwd.yaml\n",
    "extends: [creatures]\n",
    "extends: {a: creatures}\n",
    "extends: 3\n",
    "extends: ''\n",
    "extends: " + "a" * 5000 + "\n",
    "extends: " + "a" * 5000 + ".yaml\n",
    'extends: "a\\0b.yaml"\n',
    'extends: "a\\nb.yaml"\n',
    'extends: "a\\nb"\n',
    'extends: "\\e[31m"\n',
    '"\\e[31m": 1\n',
    '"\\0": 1\n',
    "extends: .\n",
    "extends: _paper\nmodel: {sigma: .nan}\n",
    "extends: /dev/zero\n",
    "measured: 3\n",
    "measured: {name: 1}\n",
    "measured: [name, weights]\n",
    "_x: 1\n",
    "__class__: 1\n",
    "model.steps: 3\n",
    "Seed: 1\n",
    "model: {steps: .inf}\n",
    "model: {steps: 1:30.5}\n",
    "variant: yes\n",
    "data: {crop_scale: 1}\n",
    "model: {backbone: resnet50}\n",
    "model: {backbone: {name: [a]}}\n",
    "model: {joint: {kind: ''}}\n",
)


def _configured(what: str, work: Path, random: Random, wrong: bool, path: Path | None = None) -> Trial:
    """Read by the library, or by a command whose dataset is not there: what it then complains of is the dataset."""
    path = path or work / "mine.yaml"
    if random.random() < 0.5:

        def act() -> Any:
            import erpcnet

            return erpcnet.load_config(path)

        return Trial(what, act, wrong, lambda found, _: unsound_config(found), library=True)
    name = one_of(random, ("train", "baseline", "ablation"))
    words = [name, "--config", str(path), "--dataset", "not-there"]
    return Trial(what, lambda: settled(words), wrong, _nothing_broken_in)


def _nothing_broken_in(*_: object) -> str | None:
    return "it ran what the file said" if Path("broken-in").exists() else None


def settled(words: Sequence[str]) -> int:
    """The exit code of a command, 0 if it only missed its dataset: then it took everything else."""
    from erpcnet.cli import main

    code = main(list(words))
    assert isinstance(sys.stderr, io.StringIO)  # of the batch
    told = " ".join(sys.stderr.getvalue().split())
    return 0 if code == 2 and "not-there is not a folder" in told else code


def unsound_config(config: Any) -> str | None:
    """What is wrong with settings that were accepted."""
    from erpcnet.config import Config
    from erpcnet.config.config import flatten

    values = flatten(config.to_values())
    for name, (kind, allowed) in all_settings().items():
        value = values[name]
        if value is None and type(None) not in get_args(kind):
            return f"{name} is None"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}"
        if allowed is not None and value is not None and not allowed.low <= value <= allowed.high:
            return f"{name} is {value}, beyond {allowed}"
        if kind in (int, float, bool, str) and type(value) is not kind:
            return f"{name} is {value!r}, which is no {kind.__name__}"
    again = Config.from_values(yaml.safe_load(config.to_yaml()))
    return None if again == config else "the settings are not those that they are written as"


def _odd_config(world: World, kind: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        ODD_FILES[kind](work / "mine.yaml")
        return _configured(f"a configuration is {kind}", work, random, wrong=True)

    return make


def _written_config(world: World, text: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        (work / "mine.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        return _configured(f"YAML {text[:60]!r}", work, random, wrong=True)

    return make


def _set_config(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        known = all_settings()
        name = one_of(random, tuple(known))
        value: Any = pick(random, _bad_values(*known[name]))
        allowed_text = known[name][0] is str and value not in ("", " ") and isinstance(value, str)
        nested: Any = value
        for part in reversed(name.split(".")):
            nested = {part: nested}
        base = {"extends": "creatures"} if random.random() < 0.5 else {}
        dumped = yaml.safe_dump({**base, **nested}, allow_unicode=True, sort_keys=False)
        (work / "mine.yaml").write_text(dumped, encoding="utf-8")
        wrong = not (allowed_text and value.isprintable() and len(value) < 4096)
        return _configured(f"YAML {name}: {str(value)[:60]!r}", work, random, wrong=wrong)

    return make


def _damaged_config(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        what, content = of_text(random, (world.run / "config.yaml").read_text())
        (work / "mine.yaml").write_bytes(content)
        try:
            content.decode()
            wrong = False
        except UnicodeDecodeError:
            wrong = True
        return _configured(f"config.yaml: {what}", work, random, wrong)

    return make


def _drawn_config(text: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        (work / "mine.yaml").write_text(text, encoding="utf-8")
        return _configured(f"YAML {text[:80]!r}", work, random, wrong=False)

    return make


def settings(world: World) -> list[Maker]:
    """Every setting by its flag."""
    known = all_settings()
    return [
        *(_flag(name, turn) for name in known for turn in range(4)),
        *(_extreme(world, words) for words in EXTREMES),
    ]


def _flag(name: str, turn: int) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        kind, allowed = all_settings()[name]
        bad = [value for value in _bad_values(kind, allowed) if not _fits_as_text(kind, value)]
        value = bad[(int(random.integers(len(bad))) + turn * 3) % len(bad)]
        text = value if isinstance(value, str) else str(value)
        command = one_of(random, ("train", "baseline", "ablation"))
        words = [command, "--config", "creatures", "--dataset", "not-there", f"--{name}={text}"]
        return Trial(f"--{name}={text[:60]}", lambda: settled(words), True)

    return make


def _fits_as_text(kind: Any, value: Any) -> bool:
    """Whether a value that YAML may not hold is one that a flag may."""
    text = value if isinstance(value, str) else str(value)
    if kind is str:
        return bool(text.strip()) and text.isprintable() and len(text) < 4096
    if kind is bool:
        return text.lower() in ("yes", "no", "true", "false")
    if getattr(kind, "__origin__", None) is tuple:
        return False
    try:
        return (
            _is_number(kind)
            and type(value) is str
            and math.isfinite(float(text))
            and int not in (kind, *get_args(kind))
        )
    except ValueError:
        return False


# Settings that are allowed one by one, and may not go together, or not with this dataset, or not into memory.
EXTREMES: tuple[tuple[str, ...], ...] = (
    ("--data.image_size", "32"),
    ("--data.image_size", "33"),
    ("--data.image_size", "4096"),
    ("--data.cache_size", "1"),
    ("--data.cache_size", "8192"),
    ("--data.crop_scale", "[0.000001,0.000002]"),
    ("--data.crop_share", "0.0001"),
    ("--data.flip", "1"),
    ("--data.test_crops", "4", "--model.local.zoom", "4"),
    ("--model.local.window", "64"),
    ("--model.local.window", "1", "--model.local.kernel", "1"),
    ("--model.local.stride", "64"),
    ("--model.local.padding", "8"),
    ("--model.local.kernel", "31"),
    ("--model.local.kernel", "31", "--model.local.kernel_mode", "valid"),
    ("--model.local.kernel", "2", "--model.local.kernel_mode", "valid"),
    ("--model.local.kernel_kind", "full", "--model.local.kernel", "31"),
    ("--model.steps", "1024"),
    ("--model.steps", "1"),
    ("--model.policy.width", "1", "--model.policy.memory", "1"),
    ("--model.policy.width", "65536", "--model.policy.memory", "65536"),
    ("--model.joint.kind", "concatenation", "--model.joint.hidden", "1"),
    ("--model.joint.global_dropout", "1", "--model.joint.global_swap", "1"),
    ("--model.joint.sharpness", "1000"),
    ("--model.scale", "10000"),
    ("--model.scale", "1e-30"),
    ("--model.pooling", "100"),
    ("--model.hubness", "100"),
    ("--model.sigma", "0", "--model.delta", "1e6"),
    ("--model.sigma", "1000", "--model.delta", "-1e6"),
    ("--model.dropout", "0.999999"),
    ("--model.backbone.name", "none_such"),
    ("--model.backbone.name", "timm/none_such"),
    ("--model.backbone.name", "alexnet", "--model.backbone.weights", "none"),
    ("--model.backbone.weights", "not-there.pth"),
    ("--model.backbone.weights", "."),
    ("--model.backbone.weights", "/dev/zero"),
    ("--stage1.lr", "100"),
    ("--stage1.lr", "100", "--stage1.backbone_lr", "1000", "--stage1.momentum", "0.99999"),
    ("--stage1.lr", "0"),
    ("--stage1.batch_size", "1"),
    ("--stage1.batch_size", "65536"),
    ("--stage1.mixup", "100"),
    ("--stage1.weight_decay", "10"),
    ("--stage1.ema_decay", "0"),
    ("--stage1.loss_weights.global_subnet", "1e6", "--stage1.lr", "1"),
    ("--stage1.loss_weights.global_subnet", "0", "--stage1.loss_weights.joint_subnet", "0"),
    ("--stage2.lr", "10"),
    ("--stage2.gamma", "0"),
    ("--stage2.minibatch_size", "1"),
    ("--stage2.reward_temperature", "0.001"),
    ("--stage2.value_coef", "1e4", "--stage2.entropy_coef", "1e4"),
    ("--stage2.crops", "64"),
    ("--evaluation.folds", "1000"),
    ("--evaluation.batch_size", "65536"),
    ("--variant", "globalnet"),
    ("--variant", "hardnet"),
    ("--variant", "hardnet", "--data.image_size", "32"),
    ("--seed", "4294967295"),
    ("--checkpoint_minutes", "1000000"),
)


# Without validation, in a step or two.
QUICK = ("--model.sigma", "0.5", "--model.delta", "0.1", "--stage1.epochs", "1", "--stage2.epochs", "1")


def _extreme(world: World, flags: Sequence[str]) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        out = work / "run"
        late = any(flag.startswith("--stage") for flag in flags)  # refused after many steps, from which it is resumed
        words = ["train", *TINY_FLAGS, *QUICK, *flags, "--dataset", str(world.data), "--out", str(out)]
        os.environ["ERPCNET_CACHE"] = str(work.parent / "cache")
        return cli(
            " ".join(flags), words, wrong=False, sane=lambda *_: unsound_run(world, out), heavy=True, leaves=late
        )

    return make


def unsound_run(world: World, run: Path) -> str | None:
    """What is wrong with a run that was trained."""
    import erpcnet
    from trust.world import plain_json

    metrics = plain_json(run / "metrics.json")
    shares = [metrics[name] for name in ("t1", "u", "s", "h", "ausuc", "ece")]
    if not all(0 <= share <= 1 for share in shares):
        return f"figures {shares}"
    model = erpcnet.load(run, "cpu")
    return unsound(world, model.predict(str(world.picture)))


# Flags and words.


def words(world: World) -> list[Maker]:
    """Every flag of every other command, and command lines that are none."""
    return [
        *(_words(world, line) for line in odd_lines(world)),
        *([_random_flag(world)] * 120),
        *([_scrambled(world)] * 60),
    ]


def odd_lines(world: World) -> list[list[str]]:
    """Command lines that are all wrong."""
    run, picture, data = str(world.run), str(world.picture), str(world.data)
    long, deep = "x" * 300, "/".join(["x" * 100] * 60)
    places = [
        "",
        " ",
        "not-there",
        "/dev/null",
        "/dev/zero",
        picture,
        "\0",
        "a\0b",
        long,
        deep,
        "-",
        "/proc/self/mem",
        "\udcff",
    ]
    lines: list[list[str]] = [
        ["nonsense"],
        ["--nonsense"],
        ["data"],
        ["data", "nonsense"],
        ["data", "make"],
        ["\0"],
        ["x" * 100_000],
        [""],
    ]
    lines += [
        ["data", "make", "nonsense", "x"],
        ["data", "make", "creatures"],
        ["data", "check"],
        ["data", "init"],
        ["train", "--dataset"],
    ]
    lines += [["data", "check", place] for place in places]
    lines += [["data", "init", place] for place in places if place not in ("/dev/null",)]
    lines += [["data", "make", "creatures", "x", "--seed", seed] for seed in ("-1", "1.5", "x", str(2**64), "nan", "")]
    lines += [["data", "make", "creatures", place] for place in ("", picture, long, deep, "/proc/x", data)]
    for place in places:
        lines += [[name, place] for name in ("evaluate", "export", "analyse")]
        lines += [["predict", place, picture], ["explain", place, picture], ["serve", place, "--port", "0"]]
        lines += [["predict", run, place], ["explain", run, place]] if place != picture else []
        lines += [["evaluate", run, "--dataset", place], ["analyse", run, "--dataset", place]]
        lines += [["train", "--config", "creatures", "--dataset", place, "--out", "run"]]
        lines += [["baseline", "--config", "creatures", "--dataset", place]]
        if place not in ("not-there", " ", "-", long):
            lines += [["train", *TINY_FLAGS, "--dataset", data, "--out", place]]
    for device in ("cuda", "cuda:99", "gpu", "", "cpu:7", "meta", "mps", "CPU", "cuda:-1", "1", "xla"):
        lines += [["predict", run, picture, "--device", device], ["evaluate", run, "--device", device]]
    for crops in ("0", "3", "-1", "1.0", "many", "", "nan"):
        lines += [["predict", run, picture, "--crops", crops], ["evaluate", run, "--crops", crops]]
        lines += [["predict", run, picture, "--top", crops if crops != "3" else "6"]]
    for classes in ("", ",", ";", "nobody", "all,unseen", "\0", "x" * 5000, "unseen;", "\x1b[31m"):
        lines += [["predict", run, picture, "--classes", classes], ["explain", run, picture, "--classes", classes]]
    for delta in ("nan", "inf", "-inf", "x", "", "1e400", "1,5"):
        lines += [["evaluate", run, "--delta", delta]]
    for out in ("x.txt", "x", "/dev/null", "/dev/full", "/proc/x.csv", deep + ".csv", long + ".csv", "", picture):
        lines += [["predict", run, picture, "--out", out], ["predict", run, picture, "--picture", out]]
        lines += [["explain", run, picture, "--out", out]] if out else []
        lines += [["export", run, "--out", out]] if out else []
    lines += [["explain", run, picture, "--against", name] for name in ("nobody", "\0", "x" * 5000)]
    lines += [["explain", run, picture, "--classes", world.classes.names[0]]]
    lines += [["export", run, "--format", name] for name in ("pt", "", "onnxx")]
    lines += [["export", run, "--format", "pt2", "--out", "x.onnx"]]
    for port in ("-1", "65536", "x", "", "1.5", "99999999999999999999"):
        lines += [["serve", run, "--port", port]]
    lines += [
        ["serve", run, "--port", "0", "--host", host] for host in ("", "not a host", "999.1.1.1", "\0", "x" * 300)
    ]
    for seeds in ("", "x", "1.5", "-1", "1,,2", "4294967296", "nan", "0,0", " "):
        lines += [["ablation", *TINY_FLAGS, "--dataset", data, "--seeds", seeds, "--methods", "GlobalNet"]]
    lines += [
        ["ablation", *TINY_FLAGS, "--dataset", data, "--methods", methods]
        for methods in ("", ";", "nobody", "PCNet; ", "x" * 5000)
    ][:5]
    lines += [
        ["ablation", *TINY_FLAGS, "--dataset", data, "--out", out]
        for out in ("/dev/null", picture, data, "/proc/x.csv")
    ]
    for flag, values in BENCH.items():
        lines += [["bench", f"--{flag}", value] for value in values]
    lines += [
        ["presets", "x"],
        ["presets", "--x"],
        ["train", "--config", "nobody"],
        ["train", "--config", ""],
    ]
    lines += [
        ["train", *flags]
        for flags in (("--model", "x"), ("--model", "[1]"), ("--data", data), ("--stage1", "{}"), ("--epochs", "3"))
    ]
    return [line for line in lines if line != ["ablation", *TINY_FLAGS, "--dataset", data, "--methods", "PCNet; "]]


BENCH = {
    "image-size": ("0", "-1", "x", "1.5", "10", "1000000000", ""),
    "batches": ("0", "-1", "x", "", "1,,2", "1.5", "10000000000"),
    "stage1-batches": ("0", "-1", "x", ""),
    "stage2-images": ("0", "-1", "x", "1.5"),
    "repeats": ("0", "-1", "x", "1.5"),
    "backbone": ("nobody", "", "timm/nobody", "\x1b[31m"),
    "out": ("/dev/full/x", "/proc/x.csv", "."),
}


def _words(world: World, line: list[str]) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        # A second look at a run, and what is drawn already, are no mistakes.
        wanting = line[:2] == ["data", "check"]
        short = " ".join(word if len(word) < 40 else f"{word[:12]}...{word[-22:]}" for word in line)
        fine = line[:3] == ["data", "make", "creatures"] and line[-1] == str(world.data)
        return cli(short, line, wrong=not fine, wanting=wanting, several=line[0] == "predict")

    return make


def _random_flag(world: World) -> Maker:
    """A flag of a command with a value that it may not have, or may."""

    def make(work: Path, random: Random) -> Trial:
        run, picture = str(world.run), str(world.picture)
        command, flag = VALUED[int(random.integers(len(VALUED)))]
        value = str(pick(random, (*ODD_TEXTS, *NO_NUMBERS, *HUGE_NUMBERS)))
        given = {"predict": [run, picture], "explain": [run, picture], "evaluate": [run]}[command]
        # Files that may be written are written into the folder of the case.
        return cli(
            f"{command} {flag}={value[:60]!r}",
            [command, *given, f"{flag}={value}"],
            wrong=False,
            sane=_finite,
            leaves=True,
        )

    return make


VALUED: tuple[tuple[str, str], ...] = (
    *(
        ("predict", flag)
        for flag in ("--classes", "--add-classes", "--top", "--out", "--picture", "--device", "--crops")
    ),
    *(("explain", flag) for flag in ("--classes", "--against", "--crops", "--out", "--device")),
    *(("evaluate", flag) for flag in ("--dataset", "--delta", "--device", "--crops")),
)


def _finite(_: object, out: str) -> str | None:
    found = out.lower().replace("|", " ").replace("│", " ").replace("%", " ").split()
    return f"it printed {out[-200:]!r}" if {"nan", "inf", "-inf"} & set(found) else None


def _scrambled(world: World) -> Maker:
    """Words of a good command line, dropped, doubled, swapped, or cut."""

    def make(work: Path, random: Random) -> Trial:
        run, picture, data = str(world.run), str(world.picture), str(world.data)
        lines = (
            ["predict", run, picture, "--classes", "all", "--top", "3", "--json"],
            ["evaluate", run, "--dataset", data, "--delta", "0.3", "--json"],
            ["explain", run, picture, "--classes", "unseen", "--out", "why.html", "--overwrite"],
            ["data", "check", data, "--json"],
            ["train", "--config", "creatures", "--dataset", "not-there", "--out", "run", "--model.sigma", "0.5"],
        )
        line = list(pick(random, lines))
        for _ in range(int(random.integers(1, 4))):
            place = int(random.integers(len(line)))
            how = int(random.integers(5))
            word = line[place]
            if how == 0 and len(line) > 1:
                line.pop(place)
            elif how == 1:
                line.insert(place, word)
            elif how == 2:
                other = int(random.integers(len(line)))
                line[place], line[other] = line[other], word
            elif how == 3:
                line[place] = word[: int(random.integers(len(word) + 1))]
            else:
                line.insert(place, one_of(random, ODD_TEXTS))
        return cli(" ".join(line)[:150], line, wrong=False, sane=_finite, wanting=True, several=True, leaves=True)

    return make


def shapes(random: Random) -> np.ndarray:
    """An array of any shape and type."""
    shape = tuple(int(one) for one in random.integers(0, 6, size=int(random.integers(0, 5))))
    kind: Any = pick(random, (np.float32, np.float64, np.uint8, np.int64, bool, complex, object, "U4", np.float16))
    return np.asarray(random.integers(0, 3, size=shape)).astype(kind)
