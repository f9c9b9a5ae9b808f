"""`erpcnet data check` and `erpcnet train` refuse the same datasets, in the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from erpcnet.cli import main
from trust.world import matlab_values, write_mat, write_matlab, write_small

Numbers = dict[str, np.ndarray]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Six classes in the project's own format."""
    write_small(tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def matlab(small: Path) -> Path:
    """The same in the form of the Proposed Split."""
    write_matlab(small.parent / "matlab")
    return small.parent / "matlab"


def _told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a command that refuses."""
    capsys.readouterr()
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("erpcnet: ")
    return last.removeprefix("erpcnet: ")


def _train(root: Path, out: Path) -> list[str]:
    return ["train", "--config", "creatures", "--dataset", str(root), "--out", str(out)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda splits: {"test_seen_loc": np.vstack([splits["test_seen_loc"], splits["trainval_loc"][:1]])},
            "ROOT: image 1, 'images/ant/0.png', is in train and in test_seen; an image belongs to one split, once.",
        ),
        (
            lambda splits: {"test_unseen_loc": np.vstack([splits["test_unseen_loc"], splits["test_unseen_loc"][:1]])},
            "ROOT: image 16, 'images/fox/0.png', is in test_unseen and in test_unseen; an image belongs to one split, "
            "once.",
        ),
        (
            lambda splits: {"trainval_loc": np.vstack([splits["trainval_loc"], np.zeros((1, 1), np.uint16)])},
            "ROOT: trainval_loc of att_splits.mat counts an image 0; they are counted 1, 2, 3, ...",
        ),
        (
            lambda splits: {"test_seen_loc": splits["test_seen_loc"].astype(float) * -1},
            "ROOT: test_seen_loc of att_splits.mat counts an image -3; they are counted 1, 2, 3, ...",
        ),
        (
            lambda splits: {"trainval_loc": splits["trainval_loc"] + 18},
            "ROOT: att_splits.mat points at image 32, but only 18 images are listed; the list and the splits are of "
            "different datasets.",
        ),
    ],
    ids=["leaks", "twice", "wraps at 0", "wraps below 0", "beyond the end"],
)
def test_check_and_train_refuse_such_splits_alike(
    change: Callable[[Numbers], Numbers], sentence: str, matlab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = matlab_values()[0]
    write_mat(matlab / "att_splits.mat", {**splits, **change(splits)})
    before, out = sorted(matlab.rglob("*")), matlab.parent / "runs" / "mine"
    for words in (["data", "check", str(matlab)], ["data", "check", str(matlab), "--json"], _train(matlab, out)):
        assert _told(words, capsys) == sentence.replace("ROOT", str(matlab))
    assert not out.parent.exists()
    assert sorted(matlab.rglob("*")) == before  # nor a cache


def test_a_linked_test_image_is_refused_alike(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "ant" / "2.png").unlink()
    (small / "ant" / "2.png").symlink_to("0.png")
    out = small.parent / "mine"
    for words in (["data", "check", str(small)], _train(small, out)):
        assert "'ant/2.png' is a test image and, as 'ant/0.png', a training image; keep one" in _told(words, capsys)
    assert not out.exists()


def test_check_lists_what_train_counts(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, old, new in (
        ("attributes.csv", "class,", "klass,"),
        ("splits.csv", "image,class,split", "image,class,part"),
        ("splits.csv", "elk/0.png,elk,train", "elk/0.png,elk,trian"),
        ("folds.csv", "1,dog", "1,dgo"),
    ):
        text = (small / name).read_text()
        assert text.count(old) == 1
        (small / name).write_text(text.replace(old, new))
    capsys.readouterr()
    assert main(["data", "check", str(small), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.removeprefix(f"{small}/").partition(":")[0] for problem in problems] == [
        *("attributes.csv, line 1", "splits.csv, line 1", "splits.csv, line 14", "folds.csv, line 5")
    ]
    assert main(["data", "check", str(small)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line in problems] == problems
    assert shown[-1] == "4 problems, 0 notes"
    out = small.parent / "mine"
    told = _told(_train(small, out), capsys)
    assert told == f"{problems[0]} And 3 more problems; `erpcnet data check {small}` lists all."
    assert not out.exists()
