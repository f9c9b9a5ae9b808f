"""The classes that a classifier chooses from: added, changed and removed, one by one and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, ZeroShotClassifier
from erpcnet.inference.class_files import add_classes_from

ATTRIBUTES = ("striped", "winged", "has a tail")


def table() -> ClassTable:
    """Three classes, of which the last is unseen."""
    values = np.array([[1, 0, 0.5], [0, 2, 0.25], [0.5, 0.5, 0]], dtype=np.float32)
    return ClassTable(("zebra", "owl", "moth"), values, np.array([True, True, False]), ATTRIBUTES)


def rows(found: ClassTable) -> dict[str, tuple[list[float], bool]]:
    """Values and kind of every class, in order."""
    own = zip(found.names, found.attributes.tolist(), found.seen.tolist(), strict=True)
    return {name: (values, seen) for name, values, seen in own}


def test_rows_have_length_one() -> None:
    for row, given in zip(table().phi().tolist(), table().attributes.tolist(), strict=True):
        length = sum(value**2 for value in given) ** 0.5
        assert row == pytest.approx([value / length for value in given], abs=1e-6)


def test_candidates_are_selected_in_the_order_they_are_named() -> None:
    assert table().select("all").names == ("zebra", "owl", "moth")
    assert rows(table().select("unseen")) == {"moth": ([0.5, 0.5, 0], False)}
    named = rows(table().select(["moth", "zebra", "moth"]))  # once each
    assert list(named.items()) == [("moth", ([0.5, 0.5, 0], False)), ("zebra", ([1, 0, 0.5], True))]
    assert table().select(("owl",)).names == ("owl",)


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ("seen", "candidates are 'unseen', 'all' or a list of names, not 'seen'"),
        ("moth", "candidates are 'unseen', 'all' or a list of names, not 'moth'"),
        ([], "the list of candidates is empty; name a class"),
        (3, "candidates are 'unseen', 'all' or a list of names"),
        (None, "candidates are 'unseen', 'all' or a list of names"),
        (["zebra", "owll"], "there is no class 'owll'; did you mean 'owl'"),
        (["unicorn"], "there is no class 'unicorn'; add it with its attributes first"),
        ([7], "there is no class '7'; add it"),
    ],
)
def test_other_candidates_are_refused(candidates: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        table().select(candidates)


def test_unseen_candidates_have_to_be_there() -> None:
    with pytest.raises(InputError, match="there is no unseen class; add one, or choose among 'all'"):
        table().remove(["moth"]).select("unseen")


def test_added_classes_are_unseen_ones() -> None:
    before = table()
    new: dict[str, Any] = {"bat": {"winged": 1, "has a tail": np.float32(0.5)}, "tiger": [1, 0, 1], "ant": np.ones(3)}
    found = before.add(new)
    assert rows(found) == {
        **rows(table()),
        "bat": ([0, 1, 0.5], False),
        "tiger": ([1, 0, 1], False),
        "ant": ([1, 1, 1], False),
    }
    assert found.attributes.dtype == np.float32
    assert rows(before) == rows(table())  # which stays as it was
    assert rows(before.add({})) == rows(before)


def test_changed_attributes_are_those_that_are_named() -> None:
    before = table()
    found = before.change("owl", {"winged": 0.75, "striped": 0.5})
    assert rows(found) == {**rows(table()), "owl": ([0.5, 0.75, 0.25], True)}
    assert rows(found.change("owl", [0, 0, 1])) == {**rows(table()), "owl": ([0, 0, 1], True)}
    assert rows(before) == rows(table())
    assert rows(before.change("owl", {})) == rows(table())
    assert rows(before.change("moth", {"winged": 0})) == {**rows(table()), "moth": ([0.5, 0, 0], False)}


def test_classes_are_removed() -> None:
    assert list(rows(table().remove(["zebra", "moth", "zebra"])).items()) == [("owl", ([0, 2, 0.25], True))]
    assert table().remove("owl").names == ("zebra", "moth")  # a name alone is no list of letters
    assert table().remove([]).names == table().names
    with pytest.raises(InputError, match="one class at least has to stay"):
        table().remove(["zebra", "moth", "owl"])
    with pytest.raises(InputError, match="there is no class 'moths'; did you mean 'moth'"):
        table().remove(["zebra", "moths"])


WRONG: list[tuple[Any, str]] = [
    ({"striqed": 1}, r"there is no attribute 'striqed'; did you mean 'striped'\?"),
    ({"winged": 1, "blue": 1}, r"there is no attribute 'blue'\.$"),
    ({7: 1}, r"there is no attribute '7'\.$"),
    ([1, 0], "it needs 3 numbers, one for each attribute"),
    ([[1, 0, 0]], "it needs 3 numbers"),
    (np.ones((1, 3)), "it needs 3 numbers"),
    ([1, 0, "1"], "it needs 3 numbers"),
    ([1, 0, None], "it needs 3 numbers"),
    ("110", "it needs 3 numbers"),
    (None, "it needs 3 numbers"),
    ({"winged": "1"}, "it needs 3 numbers"),
    ([1, 0, 10**400], "it needs 3 numbers"),
    ([0, 0, 0], "every attribute of class 'moth' is 0"),
    ({"striped": 0, "winged": 0, "has a tail": 0}, "every attribute of class 'moth' is 0"),
    ([1, 0, float("nan")], "an attribute of class 'moth' is nan"),
    ({"winged": float("inf")}, "an attribute of class 'moth' is inf"),
    ([0, 0, 1e-12], "the largest attribute of class 'moth' is 1e-12; give values on an ordinary scale"),
    ([0, 0, -1e12], r"the largest attribute of class 'moth' is 1e\+12"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_attributes_that_are_none_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        table().change("moth", given)
    with pytest.raises(InputError, match=message):
        table().remove(["moth"]).add({"bat": [1, 1, 1], "moth": given})


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b", "x" * 301, 7, None])
def test_names_that_are_none_are_refused(name: Any) -> None:
    with pytest.raises(
        InputError, match=r"the name of a class is .*; it must be a text of up to 300 printable characters"
    ):
        table().add({name: [1, 1, 1]})


def test_a_class_is_there_once() -> None:
    with pytest.raises(InputError, match="class 'owl' is known already"):
        table().add({"bat": [1, 1, 1], "owl": [1, 1, 1]})
    with pytest.raises(InputError, match="new classes are given as"):
        table().add([("bat", [1, 1, 1])])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no class 'bat'"):
        table().change("bat", [1, 1, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ("zebra", "owl", "zebra")}, "class 'zebra' is there twice"),
        ({"attribute_names": ("a", "b", "a")}, "attribute 'a' is there twice"),
        ({"attribute_names": ("a", "b", " ")}, "the name of an attribute is ' '; it must be a text"),
        ({"attribute_names": ("a", "b")}, r"the attributes are \(3, 3\); every class has a value"),
        ({"attributes": np.ones((3, 3))}, r"the attributes are \(3, 3\)"),  # of double precision
        ({"attributes": np.ones((2, 3), np.float32)}, r"the attributes are \(2, 3\)"),
        ({"attributes": np.zeros((3, 3), np.float32)}, "every attribute of class 'zebra' is 0"),
        ({"seen": np.array([True, False])}, "every class is a seen or an unseen one"),
        ({"seen": np.array([1, 0, 1])}, "every class is a seen or an unseen one"),
    ],
)
def test_tables_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    plain = table()
    whole = {name: getattr(plain, name) for name in ("names", "attributes", "seen", "attribute_names")}
    with pytest.raises(InputError, match=message):
        ClassTable(**{**whole, **change})


def test_what_is_changed_is_predicted_with(classifier: ZeroShotClassifier, picture: Path) -> None:
    likely = list(classifier.predict(picture, "unseen").attributes.values())
    away = [-value for value in likely]
    classifier.add_classes({"near": likely, "far": away})
    assert classifier.predict(picture, ["far", "near"]).name == "near"
    classifier.change_class("near", away)
    classifier.change_class("far", dict(zip("abcdefg", likely, strict=True)))
    assert classifier.predict(picture, ["far", "near"]).name == "far"
    classifier.remove_classes(["near"])
    assert classifier.predict(picture).among == 10
    with pytest.raises(InputError, match="there is no class 'near'"):
        classifier.predict(picture, ["far", "near"])


TEXTS = {
    "commas": "class,c,a\nsnow fox,0.5,1\nseal,25 %,0\n",
    "semicolons": 'class;c;a\n"snow fox";0,5;1\nseal;0,25;0\n',
    "tabs": "class\tc\ta\nsnow fox\t0.5\t1\nseal\t0.25\t0\n",
    "spreadsheet": "\ufeffclass;c;a\r\n snow fox ;0,5;1,0\r\n;;\r\nseal;25 %;0\r\n",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_classes_come_from_a_table(kind: str, classifier: ZeroShotClassifier, tmp_path: Path) -> None:
    path = tmp_path / "more.csv"
    path.write_bytes(TEXTS[kind].encode())
    if kind == "commas":
        classifier.add_classes(str(path))
    else:
        assert add_classes_from(classifier, str(path) if kind == "tabs" else path) == ("snow fox", "seal")
    found = rows(classifier.classes)
    assert len(found) == 11
    assert found["snow fox"] == ([1, 0, 0.5, 0, 0, 0, 0], False)
    assert found["seal"] == ([0, 0, 0.25, 0, 0, 0, 0], False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,a,striqed\nfox,1,0\n", r"more\.csv: there is no attribute 'striqed'; did you mean 'striped'\?"),
        ("class,a,A_Tail\nfox,1,0\n", r"there is no attribute 'A_Tail'; did you mean 'a tail'\?"),
        ("class,a,zzz\nfox,1,0\n", "there is no attribute 'zzz'; the run knows the attributes that it was trained"),
        ("class,a,a tail\nfox,1,0\nowl,0,1\n", "class 'owl' is known already"),
        ("class,a\nfox,1\nseal,1\nfox,2\n", r"line 4: class 'fox' has a row already, in line 2; keep one"),
        ("class,a,a\nfox,1,0\n", "attribute 'a' stands in columns 2 and 3; keep one"),
        ("class,a\nfox,much\n", "attribute 'a' is 'much'; it must be a finite number"),
        ("class,a,a tail\nfox,0,0\n", "every attribute of class 'fox' is 0"),
        ("class,a,a tail\nfox,1\n", "class 'fox' has 1 values, but there are 2 attributes"),
        ("class,a\n", "more.csv has no class; it needs a row"),
        ("class\nfox\n", "the first line must be 'class' and the attributes' names"),
        ("name,a\nfox,1\n", "the first line must be 'class' and the attributes' names"),
        ("", "the first line must be 'class'"),
    ],
)
def test_tables_of_other_things_are_refused_whole(text: str, message: str, tmp_path: Path) -> None:
    class Holder:
        """What a table is added to."""

        classes = ClassTable(("owl",), np.ones((1, 3), np.float32), np.array([True]), ("a", "striped", "a tail"))

        def add_classes(self, attributes: dict[str, Any]) -> None:
            self.classes = self.classes.add(attributes)

    path, holder = tmp_path / "more.csv", Holder()
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        add_classes_from(holder, path)  # type: ignore[arg-type]
    assert holder.classes.names == ("owl",)


def test_a_table_has_to_be_there(classifier: ZeroShotClassifier, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv is not there"):
        add_classes_from(classifier, tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="the table of classes is empty; give a path"):
        add_classes_from(classifier, "")
    with pytest.raises(InputError, match="is no plain file; it must be a CSV table"):
        add_classes_from(classifier, tmp_path)


@pytest.mark.parametrize("names", [None, 3, b"", [None], [["class 1"]], np.array("x"), np.zeros((2, 2))])
def test_lists_of_names_that_are_none_are_refused(names: Any, classifier: ZeroShotClassifier) -> None:
    for refuse in (classifier.remove_classes, classifier.classes.select):
        with pytest.raises(InputError, match=r"list of names|there is no class"):
            refuse(names)


def test_a_table_has_a_class_at_least() -> None:
    with pytest.raises(InputError, match="there is no class"):
        ClassTable((), np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=bool), ("a",))
