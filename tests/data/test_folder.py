from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import erpcnet.data.dataset
from erpcnet.data import ZeroShotDataset, read_dataset
from erpcnet.data.check import check_dataset
from erpcnet.data.dataset import draw_folds
from erpcnet.data.folder import init_folder
from erpcnet.data.images import find_images
from erpcnet.errors import InputError

ATTRIBUTES = "class,striped,winged\nzebra,1,0\nbird,0,1\nfish,0.5,0.2\nbat,0.1,0.9\nbee,0.9,0.8\n"
SPLITS = """image,class,split
z1.png,zebra,train
b1.png,bird,train
f1.png,fish,train
a1.png,bat,train
a2.png,bat,test_seen
e1.png,bee,test_unseen
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("z1", "b1", "f1", "a1", "a2", "e1"):
        Image.new("RGB", (40, 30), "red").save(tmp_path / f"{name}.png")
    (tmp_path / "attributes.csv").write_text(ATTRIBUTES)
    (tmp_path / "splits.csv").write_text(SPLITS)
    return tmp_path


def _change(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return change


def test_a_folder_is_read_as_written(folder: Path) -> None:
    dataset = read_dataset(folder)
    assert dataset.classes == ("zebra", "bird", "fish", "bat", "bee")
    assert dataset.attribute_names == ("striped", "winged")
    assert [dataset.classes[n] for n in dataset.seen] == ["zebra", "bird", "fish", "bat"]
    assert [dataset.classes[n] for n in dataset.unseen] == ["bee"]
    assert [dataset.image_paths[row] for row in dataset.test_seen] == ["a2.png"]
    np.testing.assert_allclose(np.linalg.norm(dataset.unit_attributes, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(dataset.attributes[2], [0.5, 0.2])
    assert len(dataset.folds) == 2  # of four seen classes, two in each


def test_folds_are_drawn_alike_every_time_or_read(folder: Path) -> None:
    first, second = read_dataset(folder).folds, read_dataset(folder).folds
    assert all(np.array_equal(a.val, b.val) for a, b in zip(first, second, strict=True))
    (folder / "folds.csv").write_text("fold,class\n0,fish\n0,bat\n1,zebra\n")
    folds = read_dataset(folder).folds
    assert [fold.val.tolist() for fold in folds] == [[2, 3], [0]]
    assert folds[0].train.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change("splits.csv", "bee,test_unseen", "wasp,test_unseen"), r"line 7: class 'wasp' has no row in"),
        (_change("attributes.csv", "fish,0.5,0.2", "fish,0.5,nan"), r"line 4: attribute 'winged' is 'nan'"),
        (
            _change("attributes.csv", "fish,0.5,0.2", "fish,0.5,"),
            r"line 4: attribute 'winged' is empty; it must be a finite",
        ),
        (
            _change("attributes.csv", "fish,0.5,0.2", "fish,0.5"),
            r"line 4: class 'fish' has 1 values, but there are 2",
        ),
        (_change("attributes.csv", "fish,0.5,0.2", "fish,0,0"), r"line 4: every attribute of class 'fish' is 0"),
        (_change("attributes.csv", "fish,", "fi\x07sh,"), r"line 4: the name of a class is 'fi.*printable"),
        (_change("attributes.csv", "fish,", "bird,"), r"line 4: class 'bird' has a row already"),
        (
            _change("attributes.csv", ",", "|"),
            r"first line must be 'class' and the attributes' names, separated by comma",
        ),
        (
            _change("splits.csv", "a1.png,bat,train", "a1.png,bee,train"),
            r"line 7: class 'bee' is both seen \(line 5 .* and unseen",
        ),
        (
            _change("splits.csv", "a1.png,bat,train\n", ""),
            r"line 5: class 'bat' has images in test_seen but none in train",
        ),
        (_change("splits.csv", "z1.png", "z9.png"), r"line 2: image 'z9.png' is not there"),
        (_change("splits.csv", "z1.png", "a/Z1.png"), r"line 2: image 'a/Z1.png' is not .*; did you mean 'z1.png'\?"),
        (_change("splits.csv", "a2.png", "./a1.png"), r"line 6: './a1.png' is the image of line 5 already; keep one"),
        (_change("splits.csv", "z1.png", "../z1.png"), r"line 2: '../z1.png' leaves the folder"),
        (_change("splits.csv", "z1.png", "/z1.png"), r"line 2: '/z1.png' leaves the folder"),
        (_change("splits.csv", "a2.png", "a1.png"), r"line 6: 'a1.png' stands in line 5 already"),
        (_change("splits.csv", ",", "|"), r"line 1: there is no column 'image', 'class', 'split'; the first line"),
        (
            _change("splits.csv", "b1.png,bird,train", "b1.png,bird,testing"),
            r"line 3: split 'testing' is none of",
        ),
        (_change("splits.csv", "image,class,split", "image,class,part"), r"no column 'split'"),
        (_change("splits.csv", "e1.png,bee,test_unseen\n", ""), r"no image is in the split 'test_unseen'"),
        (lambda root: (root / "splits.csv").unlink(), r"splits.csv is not there"),
        (lambda root: (root / "attributes.csv").unlink(), r"holds no attributes.csv"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, change: Callable[[Path], None], message: str) -> None:
    change(folder)
    with pytest.raises(InputError, match=message):
        read_dataset(folder)


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a folder"):
        read_dataset(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is empty; `erpcnet data make creatures"):
        read_dataset(tmp_path)


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Five classes of six images, as a person has them: no lists, odd names, several endings."""
    for number, name in enumerate(["Äpfel", "bees, wild", "cats", "dogs", "eels"]):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(6):
            ending = "jpg" if image % 2 else "webp"
            colour = (40 * number, 20 * image, 90)
            Image.new("RGB", (50, 40), colour).save(tmp_path / "photos" / name / f"{image} é.{ending}")
    return tmp_path


def test_init_starts_both_files_and_overwrites_neither(class_folders: Path) -> None:
    attributes, splits = init_folder(class_folders)
    assert splits.read_text(encoding="utf-8").splitlines()[:3] == ["class,split", '"bees, wild",seen', "cats,seen"]
    with pytest.raises(InputError, match=r"line 1: the example column is still there; name your attributes"):
        read_dataset(class_folders)  # they are a person's to give
    assert init_folder(class_folders) == (attributes, splits)  # which changes nothing
    attributes.write_text("class,furry\ncats,1\n")
    with pytest.raises(InputError, match=r"attributes\.csv is there already"):
        init_folder(class_folders)
    assert attributes.read_text() == "class,furry\ncats,1\n"


def test_naming_the_unseen_classes_is_enough(class_folders: Path) -> None:
    init_folder(class_folders)
    rows = ['"bees, wild",1,0', "cats,0,1", "dogs,0.1,0.9", "eels,0.3,0.3", "Äpfel,0.5,0"]
    (class_folders / "attributes.csv").write_text("class,flies,furry\n" + "\n".join(rows) + "\n", encoding="utf-8")
    splits = (class_folders / "splits.csv").read_text(encoding="utf-8").replace("eels,seen", "eels,unseen")
    (class_folders / "splits.csv").write_text(splits, encoding="utf-8")
    dataset, again = read_dataset(class_folders), read_dataset(class_folders)
    assert (len(dataset.train), len(dataset.test_seen), len(dataset.test_unseen)) == (20, 4, 6)
    assert [dataset.classes[n] for n in dataset.unseen] == ["eels"]
    assert np.array_equal(dataset.test_seen, again.test_seen)
    (class_folders / "splits.csv").write_text(splits.replace("cats,seen", "cats,known"), encoding="utf-8")
    with pytest.raises(InputError, match="line 3: split 'known' is none of seen, unseen"):
        read_dataset(class_folders)


def test_a_class_without_images_is_named(class_folders: Path) -> None:
    (class_folders / "attributes.csv").write_text("class,a\ncats,1\nyaks,1\n")
    (class_folders / "splits.csv").write_text("class,split\ncats,seen\nyaks,seen\n")
    with pytest.raises(InputError, match="line 3: there is no image in a folder 'yaks'"):
        read_dataset(class_folders)


def test_another_image_ending_is_taken(folder: Path) -> None:
    Image.open(folder / "z1.png").save(folder / "z1.webp")
    (folder / "z1.png").unlink()
    assert read_dataset(folder).image_paths[0] == "z1.webp"


def test_csv_files_as_spreadsheets_write_them(folder: Path) -> None:
    for name in ("attributes.csv", "splits.csv"):
        text = (folder / name).read_text().replace("\n", "\r\n").replace("zebra,", "zebra ,")
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n,,\r\n")
    assert read_dataset(folder).classes[0] == "zebra"
    (folder / "splits.csv").write_bytes(SPLITS.replace("zebra", "Bär").encode("latin-1"))
    with pytest.raises(InputError, match=r"splits\.csv is not in UTF-8"):
        read_dataset(folder)
    (folder / "splits.csv").write_text(SPLITS.replace("z1.png", ""))
    with pytest.raises(InputError, match="line 2: the column 'image' is empty"):
        read_dataset(folder)
    (folder / "splits.csv").write_text(SPLITS)
    (folder / "folds.csv").write_text(
        "fold,class\n" + "".join(f"0,{name}\n" for name in ("zebra", "bird", "fish", "bat"))
    )
    with pytest.raises(InputError, match="fold '0' holds every seen class"):
        read_dataset(folder)


def test_a_link_back_into_the_folder_adds_no_images(class_folders: Path) -> None:
    before = list(find_images(class_folders))
    (class_folders / "photos" / "loop").symlink_to(class_folders / "photos")
    (class_folders / "photos" / "cats" / "up").symlink_to(class_folders)
    (class_folders / "photos" / "dogs too").symlink_to(class_folders / "photos" / "dogs")
    elsewhere = class_folders.parent / f"{class_folders.name}-elsewhere"
    (elsewhere / "yaks").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(elsewhere / "yaks" / "1.png")
    (elsewhere / "yaks" / "back").symlink_to(elsewhere)
    (class_folders / "more").symlink_to(elsewhere)
    found = [str(path) for path in find_images(class_folders)]
    assert sorted(found) == sorted([*map(str, before), "more/yaks/1.png"])


def test_a_linked_test_image_is_refused(folder: Path) -> None:
    (folder / "a2.png").unlink()
    (folder / "a2.png").symlink_to(folder / "a1.png")
    with pytest.raises(InputError, match=r"'a2\.png' is a test image and, as 'a1\.png', a training image"):
        read_dataset(folder)
    (folder / "a2.png").unlink()
    (folder / "a2.png").hardlink_to(folder / "a1.png")
    with pytest.raises(InputError, match=r"'a2\.png' is a test image"):
        check_dataset(folder)


@pytest.mark.parametrize(("value", "message"), [("1e-30", "is 1e-30; give"), ("1e38", r"is 1e\+38; give")])
def test_attributes_that_have_no_length_are_refused(folder: Path, value: str, message: str) -> None:
    _change("attributes.csv", "fish,0.5,0.2", f"fish,{value},0")(folder)
    with pytest.raises(InputError, match=f"the largest attribute of class 'fish' {message}"):
        read_dataset(folder)
    _change("attributes.csv", f"fish,{value},0", "fish,1e-6,1e6")(folder)
    assert np.isfinite(read_dataset(folder).unit_attributes).all()


def test_drawn_folds_hold_out_no_class_twice() -> None:
    seen = np.arange(30) * 2
    folds = draw_folds(seen)
    assert [len(fold.val) for fold in folds] == [8, 8, 8]
    assert len(np.unique(np.concatenate([fold.val for fold in folds]))) == 24
    for fold in folds:
        assert np.array_equal(np.sort(np.concatenate([fold.train, fold.val])), seen)
    assert draw_folds(seen[:3]) == ()


def test_as_many_folds_as_hold_enough_classes(dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(dataset.folds[0].val)
    assert len(dataset.folds) * size < 20
    assert len(dataset.validation()) == len(dataset.folds)  # all there are
    assert [fold.name for fold in dataset.validation(1)] == [f"{dataset.name}-fold0"]
    with pytest.raises(InputError, match=r"evaluation\.folds is 9"):
        dataset.validation(9)
    monkeypatch.setattr(erpcnet.data.dataset, "ENOUGH_CLASSES", size + 1)
    assert len(dataset.validation()) == 2
    monkeypatch.setattr(erpcnet.data.dataset, "ENOUGH_CLASSES", size)
    assert len(dataset.validation()) == 1
    with pytest.raises(InputError, match="no validation folds"):
        dataclasses.replace(dataset, folds=()).validation()


def test_a_link_to_nothing_is_no_missing_table(creatures: Path, tmp_path: Path) -> None:
    shutil.copytree(creatures, tmp_path / "data")
    (tmp_path / "data" / "folds.csv").unlink(missing_ok=True)
    (tmp_path / "data" / "folds.csv").symlink_to("folds.csv")
    with pytest.raises(InputError, match=r"folds\.csv cannot be read"):
        read_dataset(tmp_path / "data")
