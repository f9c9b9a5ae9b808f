"""Changes of a table of classes: the same as a table built anew, whatever came before, at the price of the change."""

from __future__ import annotations

import copy
import pickle
import threading
import tracemalloc
from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest

from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, class_table

ATTRIBUTES = ("a", "b", "c")


@dataclass(frozen=True)
class Rebuilt:
    """The slow way: lists of all classes, copied for each change."""

    names: list[str]
    values: list[list[float]]
    seen: list[bool]

    def add(self, new: dict[str, list[float]]) -> Rebuilt:
        return Rebuilt([*self.names, *new], [*self.values, *new.values()], [*self.seen, *[False] * len(new)])

    def change(self, name: str, values: dict[str, float]) -> Rebuilt:
        rows = [list(row) for row in self.values]
        for attribute, value in values.items():
            rows[self.names.index(name)][ATTRIBUTES.index(attribute)] = value
        return replace(self, values=rows)

    def remove(self, names: list[str]) -> Rebuilt:
        left = [row for row, name in enumerate(self.names) if name not in names]
        return Rebuilt(*([own[row] for row in left] for own in (self.names, self.values, self.seen)))  # type: ignore[arg-type]

    def table(self) -> ClassTable:
        """Built anew, with every row checked."""
        return ClassTable(tuple(self.names), np.array(self.values, np.float32), np.array(self.seen), ATTRIBUTES)


def same(found: ClassTable, expected: ClassTable) -> None:
    """All that can be asked of a table."""
    assert found.names == expected.names
    assert len(found) == len(expected) == len(expected.names)
    assert found.attributes.dtype == expected.attributes.dtype
    assert found.seen.dtype == expected.seen.dtype
    np.testing.assert_array_equal(found.attributes, expected.attributes)
    np.testing.assert_array_equal(found.seen, expected.seen)
    np.testing.assert_array_equal(found.phi().numpy(), expected.phi().numpy())
    assert all(name in found for name in expected.names)
    backwards = found.select(expected.names[::-1])
    np.testing.assert_array_equal(backwards.attributes, expected.attributes[::-1])
    np.testing.assert_array_equal(backwards.seen, expected.seen[::-1])


def start(count: int = 5) -> Rebuilt:
    values = np.random.default_rng(0).random((count, 3), dtype=np.float32).tolist()
    return Rebuilt([f"class {number}" for number in range(count)], values, [number % 2 == 0 for number in range(count)])


def some_change(
    random: np.random.Generator, table: ClassTable, slow: Rebuilt, names: list[str]
) -> tuple[ClassTable, Rebuilt]:
    """One of a few names comes, changes or goes, or is refused by both."""
    chosen = [str(name) for name in random.choice(names, size=int(random.integers(1, 4)), replace=False)]
    there, kind = [name for name in chosen if name in slow.names], int(random.integers(3))
    if kind == 0:
        new = {name: random.random(3, dtype=np.float32).tolist() for name in chosen}
        if not there:
            return table.add(new), slow.add(new)
        with pytest.raises(InputError, match=f"class '{there[0]}' is known already"):
            table.add(new)
    elif kind == 1 and there:
        values = {str(name): float(random.integers(1, 9)) for name in random.choice(ATTRIBUTES, 2, replace=False)}
        return table.change(there[0], values), slow.change(there[0], values)
    elif kind == 2 and len(there) == len(chosen) < len(slow.names):
        return table.remove(chosen), slow.remove(chosen)
    else:
        with pytest.raises(InputError, match=r"there is no class|one class at least"):
            table.remove([*chosen, "nobody"])
    return table, slow


@pytest.mark.parametrize("seed", range(4))
def test_any_changes_equal_a_table_built_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_table, "SPARE", 6)  # rows are written anew many times
    random = np.random.default_rng(seed)
    names = [f"class {number}" for number in range(12)]
    kept = [(start().table(), start())]
    for number in range(250):
        # From the latest, or from any earlier one, which others have gone on from.
        own = kept[-1] if random.random() < 0.9 else kept[int(random.integers(len(kept)))]
        kept.append(some_change(random, *own, names))
        if number % 3 == 0:  # the others are read at the end for the first time
            same(kept[-1][0], kept[-1][1].table())
    assert len({tuple(slow.names) for _, slow in kept}) > 30
    for table, slow in kept:
        same(table, slow.table())
        assert [name in table for name in names] == [name in slow.names for name in names]


def test_unseen_candidates_follow_the_changes() -> None:
    table, slow = start().table(), start()
    table = table.add({"new": [1, 2, 3]}).change("class 1", {"a": 2.0}).remove(["class 3"])
    slow = slow.add({"new": [1, 2, 3]}).change("class 1", {"a": 2.0}).remove(["class 3"])
    assert table.select("unseen").names == ("class 1", "new")
    same(table.select("unseen"), slow.table().select("unseen"))


def test_a_name_that_comes_back_is_another_class() -> None:
    before = start().table()
    gone = before.remove(["class 0"])
    back = gone.add({"class 0": [1, 2, 3]})
    assert ("class 0" in before, "class 0" in gone, "class 0" in back) == (True, False, True)
    assert back.names[-1] == "class 0"
    assert back.select(["class 0"]).attributes.tolist() == [[1, 2, 3]]
    assert not back.select(["class 0"]).seen[0]
    assert before.select(["class 0"]).seen[0]


def test_only_new_rows_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    table, checked, check = start(500).table(), set[str](), class_table.check_attribute_row

    def noted(row: np.ndarray, name: str) -> None:
        checked.add(name)
        check(row, name)

    monkeypatch.setattr(class_table, "check_attribute_row", noted)
    table = table.add({"one": [1, 0, 0], "two": [0, 1, 0]}).change("class 7", {"a": 1.0}).remove(["class 8"])
    assert checked == {"one", "two", "class 7"}
    assert len(table.select("unseen")) == 252  # class 8 is a seen one


def test_a_change_takes_the_memory_of_a_row() -> None:
    count = 16_000
    table = start(count).table().add({"first": [1, 1, 1]})  # which makes room for as many again
    tracemalloc.start()
    for number in range(100):
        table = table.add({f"new {number}": [1, 0, number]}).change(f"class {number}", {"b": 2.0})
        table = table.remove([f"class {5000 + number}"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < count * 8 / 4  # a quarter of what a list of the names alone would take
    assert len(table) == len(table.names) == count + 1


def test_classes_that_come_and_go_leave_no_memory() -> None:
    table = start().table()
    tracemalloc.start()
    for number in range(5000):
        table = table.add({f"new {number}": [1, 0, 0]}).change("class 0", {"b": 2.0}).remove([f"new {number}"])
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000  # 15,000 changes
    assert table.names == start().table().names


def test_tables_stay_whole_while_others_go_on() -> None:
    """Readers in threads, of whatever table is the latest, while rows come, change, go and are written anew."""
    values = {f"class {number}": number for number in range(40)}
    names = tuple(values)
    rows = np.array([[number, number, 1] for number in values.values()], np.float32)
    latest, wrong, ended = [ClassTable(names, rows, np.zeros(40, np.bool_), ATTRIBUTES)], list[str](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            table = latest[0]
            own = table.select("all")
            found = dict(zip(own.names, own.attributes.tolist(), strict=True))
            if len(found) != len(table) or any(row[0] != row[1] for row in found.values()):
                wrong.append(f"{len(found)} rows of {len(table)} classes: {found}")
            for name in names[:10]:  # those stay, with one value or another
                (row,) = table.select([name]).attributes.tolist()
                if row != found[name]:
                    wrong.append(f"{name} is {row}, and {found[name]}")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    random = np.random.default_rng(0)
    for number in range(3000):
        table, name = latest[0], f"class {number % 30 + 10}"
        value = float(random.integers(1, 1000))
        table = table.change(f"class {number % 10}", {"a": value, "b": value})
        latest[0] = table.remove([name]) if name in table else table.add({name: [value, value, 1]})
    ended.set()
    for reader in readers:
        reader.join(timeout=60)
    assert wrong == []


def test_threads_that_go_on_from_one_table() -> None:
    """None sees what another has added."""
    base = start().table().add({"new": [1, 1, 1]})
    found: dict[int, ClassTable] = {}

    def go_on(who: int) -> None:
        table = base
        for number in range(200):
            table = table.add({f"{who} {number}": [who, number, 1]})
        found[who] = table

    threads = [threading.Thread(target=go_on, args=(who,)) for who in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for who, table in found.items():
        assert table.names == (*base.names, *(f"{who} {number}" for number in range(200)))
        assert table.attributes[len(base) :].tolist() == [[who, number, 1] for number in range(200)]
    assert len(found) == 4


def test_an_interrupted_change_leaves_the_table_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = start().table().add({"new": [1, 1, 1]})

    class Late(dict[str, np.ndarray]):
        """Rows of which the second is interrupted."""

        def items(self):  # type: ignore[no-untyped-def]
            for number, item in enumerate(super().items()):
                if number:
                    raise KeyboardInterrupt
                yield item

    with pytest.raises(KeyboardInterrupt):
        before._then((), Late(one=np.ones(3, np.float32), two=np.ones(3, np.float32)))
    assert "one" not in before
    expected = start().add({"new": [1, 1, 1]})
    same(before, expected.table())
    same(before.add({"two": [1, 2, 3]}), expected.add({"two": [1, 2, 3]}).table())


def test_a_table_is_copied_and_cannot_be_assigned_to() -> None:
    table = start().table().add({"new": [1, 2, 3]}).remove(["class 2"])
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        same(other, start().add({"new": [1, 2, 3]}).remove(["class 2"]).table())
        assert other.add({"more": [1, 1, 1]}).names == (*table.names, "more")
    for name in ("names", "attributes", "seen", "attribute_names"):
        with pytest.raises(FrozenInstanceError):
            setattr(table, name, ())
