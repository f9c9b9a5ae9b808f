"""The one gate that settings pass: names, types, and what is left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from erpcnet.config import load_config
from erpcnet.config.build import build
from erpcnet.errors import InputError


@dataclass
class Inner:
    share: float = 0.5
    sides: tuple[float, float] = (0.0, 1.0)


@dataclass
class Outer:
    count: int = 3
    flag: bool = False
    kind: Literal["a", "b"] = "a"
    crops: Literal[1, 2] = 1
    limit: float | None = None
    name: str = "x"
    inner: Inner = field(default_factory=Inner)


def test_what_is_left_out_keeps_its_default() -> None:
    assert build(Outer, {}) == Outer()
    assert build(Outer, {"inner": None}) == Outer()  # a group of which everything is commented out
    found = build(Outer, {"count": 5, "inner": {"sides": [1, "2e-1"]}, "limit": None})
    assert found == Outer(count=5, inner=Inner(sides=(1.0, 0.2)))


def test_numbers_may_be_written_as_yaml_reads_them() -> None:
    assert build(Outer, {"limit": 2}).limit == 2.0
    assert build(Outer, {"inner": {"share": "1e-3"}}).inner.share == 0.001  # YAML has text there: no dot


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cuont": 1}, "there is no setting 'cuont', perhaps 'count'"),
        ({"inner": {"sahre": 1}}, "there is no setting 'inner.sahre', perhaps 'inner.share'"),
        ({"zebra": 1}, "there is no setting 'zebra'; there are count, flag"),
        ({"inner": [1]}, r"'inner' must hold settings as 'name: value', not \[1\]"),
        ([1], r"a configuration must hold settings as 'name: value', not \[1\]"),
        ({"count": 1.5}, "count is 1.5; it must be a whole number"),
        ({"count": True}, "count is True; it must be a whole number"),
        ({"count": None}, "count is None; it must be a whole number"),
        ({"flag": 1}, "flag is 1; it must be true or false"),
        ({"name": 7}, "name is 7; it must be text"),
        ({"kind": "c"}, "kind is 'c'; it must be one of 'a', 'b'"),
        ({"crops": True}, "crops is True; it must be one of 1, 2"),
        ({"limit": "high"}, "limit is 'high'; it must be a finite number"),
        ({"limit": float("nan")}, "limit is nan; it must be a finite number"),
        ({"limit": float("inf")}, "limit is inf; it must be a finite number"),
        ({"limit": True}, "limit is True; it must be a finite number"),
        ({"limit": [1]}, r"limit is \[1\]; it must be a finite number"),
        ({"inner": {"sides": [1]}}, r"inner.sides is \[1\]; it must be a list of 2 values"),
        ({"inner": {"sides": 1}}, "inner.sides is 1; it must be a list of 2 values"),
    ],
)
def test_what_does_not_fit_is_named(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(Outer, values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 0x" + "f" * 400, "seed is a number of more than 100 digits"),
        ("[a, b]: 3", "the name of a setting is a list or a group"),
        ("seed: 1\nseed: 2", "'seed' stands there twice; keep one."),
        ("seed: [1", "line 1: "),
        ("seed: 2001-99-99", "cannot be read as a number or a date."),
        ('extends: "a\\nb.yaml"', r"a\nb.yaml is not there"),
        ("".join(f"name{number}: 1\n" for number in range(50_000)), "there is no setting 'name0'"),
    ],
)
def test_files_of_other_things_are_refused_in_a_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_config(tmp_path / "mine.yaml")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith(".")
