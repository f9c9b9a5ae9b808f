"""Bad .mat files and lists of the Proposed Split, caches, and files that may not be read or written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trust.batches import Maker, Trial, cli
from trust.cases import NOBODY, TINY_FLAGS, Row, Size, clean, command, complaint, in_child, link_tree
from trust.damage import Random, of_bytes, of_text, one_of
from trust.world import World, cells, matlab_values, unsound_dataset, write_mat
from trust.wrong_texts import DATA, ODD_FILES, replace_file

MATS = ("att_splits.mat", "res101.mat")
LISTS = ("attributes.txt", "trainclasses1.txt", "valclasses1.txt", "image_files.txt", "apascal_train.txt")


def matlab(world: World) -> list[Maker]:
    """att_splits.mat, res101.mat and the lists beside them."""
    return [
        *(_odd_mat(world, name, kind) for name in MATS for kind in ODD_FILES),
        *(_odd_list(world, name, kind) for name in LISTS[:4] for kind in ODD_FILES if kind != "a link to nothing"),
        *(_value(world, key, number) for key in VALUES for number in range(len(VALUES[key]()))),
        *([_damaged_mat(world)] * 70),
        *([_damaged_list(world)] * 50),
        *(_line(world, line) for line in LINES),
    ]


def _copy(world: World, work: Path) -> Path:
    return link_tree(world.matlab, work / DATA)


def _checked(what: str, work: Path, wrong: bool) -> Trial:
    root = work / DATA
    return cli(what, ["data", "check", root], wrong=wrong, wanting=True, sane=lambda *_: unsound_dataset(root))


def _odd_mat(world: World, name: str, kind: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        path = _copy(world, work) / name
        path.unlink()
        ODD_FILES[kind](path)
        return _checked(f"{name} is {kind}", work, wrong=True)

    return make


def _odd_list(world: World, name: str, kind: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        path = _copy(world, work) / name
        path.unlink(missing_ok=True)
        ODD_FILES[kind](path)
        # What is no file is passed over: each of the lists may be missing.
        wrong = kind in ("NUL bytes", "no UTF-8", "5 GiB of zeros")
        return _checked(f"{name} is {kind}", work, wrong)

    return make


def _columns(*values: Any) -> np.ndarray:
    return np.array(values)[:, None]


# What the variables of the two files must not be.
VALUES: dict[str, Callable[[], list[Any]]] = {
    "att": lambda: [
        *(
            np.zeros((4, 6)),
            np.full((4, 6), np.nan),
            np.full((4, 6), np.inf),
            np.ones((4, 5)),
            np.ones((4, 7)),
            np.ones(4),
        ),
        *(
            "text",
            cells(["a"]),
            np.ones((4, 6), dtype=complex),
            np.full((4, 6), 1e300),
            np.zeros((0, 6)),
            np.ones((4, 6, 2)),
        ),
        *(np.ones((4, 6), dtype=np.int64), np.ones((4, 6), dtype=bool), {"a": 1}),
    ],
    "allclasses_names": lambda: [
        *(
            cells(["ant"]),
            cells([]),
            cells([1, 2, 3, 4, 5, 6]),
            np.arange(6.0),
            "text",
            cells(["x"] * 6),
            cells([""] * 6),
        ),
        *(
            cells(["ant", "bee", "cat", "dog", "elk", "elk"]),
            cells(["ant", "bee", "cat", "dog", "elk", "a\nb"]),
            {"a": 1},
        ),
        *(cells([["ant"], ["bee"], ["cat"], ["dog"], ["elk"], [""]]), np.zeros((0, 0))),
    ],
    "trainval_loc": lambda: [
        *(_columns(0), _columns(-1), _columns(19), _columns(2**40), _columns(1.5), _columns(np.nan), _columns(np.inf)),
        *(
            np.zeros((0, 0)),
            "text",
            cells(["a"]),
            _columns(1j),
            _columns(1, 1),
            _columns(18),
            _columns(1e300),
            {"a": 1},
        ),
    ],
    "test_seen_loc": lambda: [_columns(0), _columns(1), _columns(99), "text", _columns(np.nan), _columns(16)],
    "test_unseen_loc": lambda: [_columns(0), _columns(1), _columns(99), np.zeros((0, 0)), _columns(2**63 - 1)],
    "image_files": lambda: [
        *(cells([]), cells(["a"]), "text", np.arange(18.0), cells([""] * 18), cells(["/x/../../../etc/passwd"] * 18)),
        *(cells(["images/ant/0.png"] * 18), cells([1] * 18), cells(["\x00"] * 18), {"a": 1}),
    ],
    "labels": lambda: [
        *(_columns(*[0] * 18), _columns(*[7] * 18), _columns(1), _columns(*[np.nan] * 18), _columns(*[-1] * 18)),
        *("text", cells(["a"] * 18), _columns(*[1.5] * 18), _columns(*[1j] * 18), _columns(*[2**40] * 18), {"a": 1}),
    ],
}


def _value(world: World, key: str, number: int) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _copy(world, work)
        value = VALUES[key]()[number]
        for name, values in zip(MATS, matlab_values(), strict=True):
            if key in values:
                if key == "att":
                    values.pop("original_att")
                (root / name).unlink()
                gone = number == 0 and random.random() < 0.3
                changed = {**values, key: value}
                write_mat(root / name, {one: changed[one] for one in changed if not (gone and one == key)})
        return _checked(f"{key} is {str(value)[:60]!r}", work, wrong=True)

    return make


def _damaged_mat(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _copy(world, work)
        name = one_of(random, MATS)
        if random.random() < 0.3:
            import scipy.io

            values = matlab_values()[MATS.index(name)]
            (root / name).unlink()
            scipy.io.savemat(root / name, values, do_compression=True)
        what, content = of_bytes(random, (root / name).read_bytes())
        replace_file(root / name, content)
        return _checked(f"{name}: {what}", work, wrong=False)

    return make


def _damaged_list(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _copy(world, work)
        name = one_of(random, LISTS)
        images = matlab_values()[1]["image_files"].ravel().tolist()
        text = {
            "image_files.txt": "".join(f"{one.removeprefix('/BS/data/')}\n" for one in images),
            "apascal_train.txt": "".join(f"{Path(one).name} {Path(one).parent.name} 0 0 8 9 1 0\n" for one in images),
        }.get(name) or (root / name).read_text()
        what, content = of_text(random, text)
        replace_file(root / name, content)
        return _checked(f"{name}: {what}", work, wrong=False)

    return make


# Lines of image_files.txt, each of which is wrong.
LINES = (
    *(
        "/etc/passwd",
        "../../../etc/passwd",
        "\0",
        "images/ant/9.png",
        "images/nobody/0.png",
        "x" * 5000,
        "/".join("x" * 3000),
    ),
    *("images/ant/0.png ant 5 5 1 1", "images/ant/0.png ant 100 100 200 200", "images/ant/0.png nobody 0 0 5 5"),
    *(f"images/ant/0.png ant {10**30} 0 5 5", "images/ant/0.png ant -9 -9 -1 -1", "images/ant/0.png ant --1 0 5 5"),
    *("images/ant/0.png ant ² 0 5 5", ".", "..", "/", "\u202e", "images/ant/1.png"),
)


def _line(world: World, line: str) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        root = _copy(world, work)
        images = [one.removeprefix("/BS/data/") for one in matlab_values()[1]["image_files"].ravel().tolist()]
        boxes = " 0 0 5 5" in line or len(line.split()) == 6
        lines = [f"{one} {Path(one).parent.name} 0 0 8 9" if boxes else one for one in images]
        (root / "image_files.txt").write_text("\n".join([line, *lines[1:]]) + "\n", encoding="utf-8")
        return _checked(f"a line of image_files.txt is {line[:50]!r}", work, wrong=True)

    return make


# Caches.


def caches(world: World) -> list[Maker]:
    """A cache that is cut off, damaged, or not a file: it is built again, or a sentence says what is in the way."""
    return [
        *(_odd_cache(world, ending, kind) for ending in (".npy", ".json") for kind in ODD_FILES),
        *([_cache(world)] * 50),
    ]


def _cached(world: World, work: Path) -> Path:
    """The dataset with a cache of its own."""
    root = link_tree(world.data, work / DATA, without=(".erpcnet-cache",))
    folder = root / ".erpcnet-cache"
    shutil.copytree(world.data / ".erpcnet-cache", folder)
    return folder


def _evaluated(what: str, world: World, work: Path) -> Trial:
    """The figures are those of a cache that is right."""
    import json

    def sane(_: object, out: str) -> str | None:
        found, expected = json.loads(out), json.loads((world.run / "metrics.json").read_text())
        return None if found["t1"] == expected["t1"] and found["h"] == expected["h"] else f"other figures: {out[:200]}"

    words = ["evaluate", world.run, "--dataset", work / DATA, "--json"]
    return cli(what, words, wrong=False, sane=sane, leaves=True)


def _odd_cache(world: World, ending: str, kind: str) -> Maker:
    def make(work: Path, _: Random) -> Trial:
        path = next(_cached(world, work).glob(f"*{ending}"))
        path.unlink()
        ODD_FILES[kind](path)
        return _evaluated(f"{ending} of a cache is {kind}", world, work)

    return make


def _cache(world: World) -> Maker:
    def make(work: Path, random: Random) -> Trial:
        files = sorted(one for one in _cached(world, work).iterdir() if one.suffix in (".npy", ".json"))
        path = files[int(random.integers(len(files)))]
        content = path.read_bytes()
        if path.suffix == ".npy" and random.random() < 0.6:
            what, head = of_bytes(random, content[:128])
            content = head + content[128:]
        elif path.suffix == ".json":
            what, content = of_text(random, content.decode())
        else:
            cut = int(random.integers(len(content)))
            what, content = f"cut off after {cut}", content[:cut]
        path.write_bytes(content)
        return _evaluated(f"{path.suffix} of a cache: {what}", world, work)

    return make


# Permissions.


def permissions(world: World, size: Size, folder: Path) -> Row:
    """Another user comes by, who may not read or write: a sentence, or the work is done elsewhere."""
    row = Row("inputs", "files of another user", "one sentence that names the file, or the work is done")
    if os.geteuid() != 0:
        row.note = "not tried: it takes root to be somebody else"
        return row
    folder.chmod(0o777)
    for number, (what, prepare, words, code) in enumerate(_scenes(world)):
        if size == "short" and number % 6:
            continue
        work = clean(folder / "work")
        work.chmod(0o777)
        prepare(work)
        line = [str(word).replace("WORK", str(work)) for word in words]

        def act(line: list[str] = line, work: Path = work) -> int:
            os.chdir(work)
            os.environ["HOME"] = os.environ["TMPDIR"] = str(work)
            return command(line)()

        ended = in_child(act, folder, 60, memory=None, user=NOBODY)
        problem = complaint(ended, code)
        if problem is None and ended.code and "erpcnet: " not in ended.err and "ermission" not in ended.out:
            problem = f"no word of what may not be done: {ended.err[-200:]}"
        row.count(problem, f"{number} ({what})")
    return row


Scene = tuple[str, Callable[[Path], object], list[object], tuple[int, ...]]


def _scenes(world: World) -> list[Scene]:
    def small(work: Path) -> Path:
        return link_tree(world.small, work / "small")

    def data(work: Path) -> Path:
        return link_tree(world.data, work / "data", without=(".erpcnet-cache",))

    def run(work: Path) -> Path:
        return Path(shutil.copytree(world.run, work / "run"))

    def closed(path: Path, mode: int = 0) -> Path:
        if path.is_file() and path.stat().st_nlink > 1:  # a link would close the file for everybody
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
        path.chmod(mode)
        return path

    def open_for_all(path: Path) -> Path:
        for one in (path, *path.rglob("*")):
            if one.is_dir():
                one.chmod(0o777)
        return path

    def a_cache(mode: int) -> Callable[[Path], object]:
        def prepare(work: Path) -> None:
            root = open_for_all(data(work))
            shutil.copytree(world.data / ".erpcnet-cache", root / ".erpcnet-cache")
            for one in (root / ".erpcnet-cache").iterdir():
                one.chmod(mode)
            (root / ".erpcnet-cache").chmod(0o755 if mode else 0o777)

        return prepare

    def without_tables(work: Path) -> None:
        for one in closed(small(work), 0o755).glob("*.csv"):
            one.unlink()

    def unreadable(name: str) -> Callable[[Path], object]:
        return lambda work: closed(small(work) / name)

    run_, picture = str(world.run), str(world.picture)
    train: list[object] = ["train", *TINY_FLAGS, "--dataset"]
    evaluate: list[object] = ["evaluate", run_, "--dataset", "WORK/data"]
    scenes: list[Scene] = [
        *(
            (
                f"{name} may not be read",
                unreadable(name),
                list[object](["data", "check", "WORK/small"]),
                (1, 2),
            )
            for name in ("attributes.csv", "splits.csv", "folds.csv")
        ),
        (
            "a picture may not be read",
            lambda work: closed(small(work) / "ant" / "0.png"),
            ["data", "check", "WORK/small"],
            (1, 2),
        ),
        (
            "a folder may not be listed",
            lambda work: closed(small(work) / "ant"),
            ["data", "check", "WORK/small"],
            (1, 2),
        ),
        ("the dataset may not be entered", lambda work: closed(small(work)), ["data", "check", "WORK/small"], (2,)),
        (
            "the dataset may be listed and not entered",
            lambda work: closed(small(work), 0o744),
            ["data", "check", "WORK/small"],
            (1, 2),
        ),
        (
            "the dataset may be entered and not listed",
            lambda work: closed(small(work), 0o711),
            ["data", "check", "WORK/small"],
            (1, 2),
        ),
        (
            "data init where nothing may be written",
            without_tables,
            ["data", "init", "WORK/small"],
            (2,),
        ),
        ("data init of a closed folder", lambda work: closed(small(work)), ["data", "init", "WORK/small"], (2,)),
        (
            "data make in another's folder",
            lambda work: closed(clean(work / "there"), 0o755),
            ["data", "make", "creatures", "WORK/there/x"],
            (2,),
        ),
        (
            "a picture to predict may not be read",
            lambda work: closed(Path(shutil.copy(picture, work / "x.png"))),
            ["predict", run_, "WORK/x.png"],
            (2,),
        ),
        (
            "a folder to predict may not be listed",
            lambda work: closed(small(work) / "ant"),
            ["predict", run_, "WORK/small/ant"],
            (2,),
        ),
        (
            "a folder in a folder to predict may not be listed",
            lambda work: closed(small(work) / "ant"),
            ["predict", run_, "WORK/small", "--out", "WORK/found.csv"],
            (0, 1, 2),
        ),
        (
            "predict --out into another's folder",
            lambda work: closed(clean(work / "there"), 0o755),
            ["predict", run_, picture, "--out", "WORK/there/x.csv"],
            (2,),
        ),
        (
            "predict --out over another's file",
            lambda work: closed(Path(shutil.copy(picture, work / "x.csv")), 0o644),
            ["predict", run_, picture, "--out", "WORK/x.csv", "--overwrite"],
            (0, 2),
        ),
        (
            "predict --picture into another's folder",
            lambda work: closed(clean(work / "there"), 0o755),
            ["predict", run_, picture, "--picture", "WORK/there/x.png"],
            (2,),
        ),
        (
            "new classes that may not be read",
            lambda work: closed(Path(shutil.copy(world.small / "attributes.csv", work / "new.csv"))),
            ["predict", run_, picture, "--add-classes", "WORK/new.csv"],
            (2,),
        ),
        (
            "explain --out into another's folder",
            lambda work: closed(clean(work / "there"), 0o755),
            ["explain", run_, picture, "--out", "WORK/there/x.html"],
            (2,),
        ),
        (
            "a model that may not be read",
            lambda work: closed(run(work) / "model.safetensors"),
            ["predict", "WORK/run", picture],
            (2,),
        ),
        ("a run that may not be entered", lambda work: closed(run(work)), ["predict", "WORK/run", picture], (2,)),
        (
            "metrics.json may not be read",
            lambda work: closed(run(work) / "metrics.json"),
            ["evaluate", "WORK/run"],
            (0, 2),
        ),
        (
            "validation.json may not be read",
            lambda work: closed(run(work) / "validation.json"),
            ["evaluate", "WORK/run", "--dataset", world.data],
            (0, 2),
        ),
        ("export into another's run", lambda work: closed(run(work), 0o755), ["export", "WORK/run"], (2,)),
        (
            "analyse into another's run",
            lambda work: closed(run(work), 0o755),
            ["analyse", "WORK/run", "--dataset", world.data],
            (2,),
        ),
        (
            "a configuration may not be read",
            lambda work: closed(Path(shutil.copy(world.run / "config.yaml", work / "mine.yaml"))),
            ["train", "--config", "WORK/mine.yaml"],
            (2,),
        ),
        (
            "train into another's folder",
            lambda work: (open_for_all(data(work)), closed(clean(work / "there"), 0o755)),
            [*train, "WORK/data", "--out", "WORK/there/run"],
            (2,),
        ),
        (
            "train into another's run",
            lambda work: (open_for_all(data(work)), closed(run(work), 0o755)),
            [*train, "WORK/data", "--out", "WORK/run", "--overwrite"],
            (2,),
        ),
        (
            "train where no cache may be written",
            lambda work: closed(data(work), 0o755),
            [*train, "WORK/data", "--out", "WORK/run"],
            (2,),
        ),
        ("evaluate where no cache may be written", lambda work: closed(data(work), 0o755), evaluate, (2,)),
        ("another's cache that may be read", a_cache(0o644), evaluate, (0,)),
        ("another's cache that may not be read", a_cache(0o000), evaluate, (0, 2)),
        (
            "ablation --out into another's folder",
            lambda work: closed(clean(work / "there"), 0o755),
            ["ablation", *TINY_FLAGS, "--dataset", world.data, "--out", "WORK/there/x.csv"],
            (2,),
        ),
        (
            "bench --out into another's folder",
            lambda work: closed(clean(work / "there"), 0o755),
            ["bench", "--out", "WORK/there/x.csv"],
            (2,),
        ),
        (
            "weights that may not be read",
            lambda work: closed(Path(shutil.copy(world.run / "model.safetensors", work / "w.pth"))),
            ["baseline", *TINY_FLAGS, "--dataset", world.data, "--model.backbone.weights", "WORK/w.pth"],
            (2,),
        ),
    ]
    return scenes
