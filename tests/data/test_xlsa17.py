"""The Proposed Split: tiny datasets in its on-disk form, and the real files where they are at hand."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from conftest import shared
from erpcnet.config import load_config
from erpcnet.data import open_cache, read_dataset
from erpcnet.data.check import check_dataset
from erpcnet.data.matlab import check_matlab
from erpcnet.data.xlsa17 import KNOWN
from erpcnet.errors import InputError, MissingImagesError
from erpcnet.training import Log, open_context
from erpcnet.training.context import create_network
from erpcnet.training.pipeline import run_stage1

CLASSES = ["bee", "ant", "cat", "dog", "elk", "fox"]  # att's order, which is not the folders'
SEEN = CLASSES[:5]


def _cells(values: list[str]) -> np.ndarray:
    cells = np.empty((len(values), 1), dtype=object)
    cells[:, 0] = values
    return cells


def _write(root: Path, files: list[str], labels: list[str], *, order: str = "res101") -> None:
    """A dataset in which every class but the last is seen; its k-th image is a test image when k is 2."""
    raw = np.random.default_rng(0).uniform(0, 100, (7, len(CLASSES)))
    count = dict.fromkeys(CLASSES, 0)
    parts: dict[str, list[int]] = {"trainval_loc": [], "test_seen_loc": [], "test_unseen_loc": []}
    for row, label in enumerate(labels, start=1):
        count[label] += 1
        own = "test_unseen_loc" if label == "fox" else "test_seen_loc" if count[label] == 2 else "trainval_loc"
        parts[own].append(row)
    splits = {key: np.array(rows, dtype=np.uint16)[:, None] for key, rows in parts.items()}
    att = raw / np.linalg.norm(raw, axis=0)
    scipy.io.savemat(
        root / "att_splits.mat", {"att": att, "original_att": raw, "allclasses_names": _cells(CLASSES), **splits}
    )
    if order == "res101":
        foreign = _cells([f"/BS/somebody/datasets/{file}" for file in files])
        numbers = np.array([[CLASSES.index(label) + 1] for label in labels])
        scipy.io.savemat(root / "res101.mat", {"image_files": foreign, "labels": numbers, "features": np.zeros((4, 9))})
    (root / "attributes.txt").write_text("".join(f"{n + 1} has_part::{n}\n" for n in range(7)))
    for number, val in enumerate((["bee", "ant"], ["cat"], ["dog", "elk"]), start=1):
        (root / f"valclasses{number}.txt").write_text("\n".join(val))
        (root / f"trainclasses{number}.txt").write_text("\n".join(name for name in SEEN if name not in val))


def _draw(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, lossless=True) if path.suffix == ".webp" else Image.new(
        "RGB", size, colour
    ).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three images a class under `pictures/`; the lists say .jpg, half of the files are .webp."""
    files = [f"images/{name}/{name}_{number}.jpg" for name in sorted(CLASSES) for number in range(3)]
    labels = [name for name in sorted(CLASSES) for _ in range(3)]
    _write(tmp_path, files, labels)
    for row, file in enumerate(files):
        path = tmp_path / "pictures" / file
        _draw(path.with_suffix(".webp") if row % 2 else path, (row, 2 * row, 3 * row))
    return tmp_path


def test_foreign_paths_labels_and_order_are_read_right(root: Path) -> None:
    dataset = read_dataset(root)
    assert dataset.classes == tuple(CLASSES)
    assert dataset.attribute_names == tuple(f"has_part::{n}" for n in range(7))
    for row, path in enumerate(dataset.image_paths):
        assert Path(path).parent.name == dataset.classes[dataset.labels[row]]
        assert Path(path).suffix == (".webp" if row % 2 else ".jpg")
    assert [dataset.classes[n] for n in dataset.unseen] == ["fox"]
    assert (len(dataset.train), len(dataset.test_seen), len(dataset.test_unseen)) == (10, 5, 3)
    assert [[dataset.classes[n] for n in fold.val] for fold in dataset.folds] == [
        ["bee", "ant"],
        ["cat"],
        ["dog", "elk"],
    ]
    splits = scipy.io.loadmat(root / "att_splits.mat")
    np.testing.assert_allclose(dataset.unit_attributes.T, splits["att"], atol=1e-6)
    np.testing.assert_allclose(dataset.attributes.T, splits["original_att"], rtol=1e-6)


def test_a_list_of_files_replaces_the_features(root: Path) -> None:
    first = read_dataset(root)
    files = [f"images/{Path(p).parent.name}/{Path(p).stem}.jpg" for p in first.image_paths]
    (root / "res101.mat").unlink()
    (root / "image_files.txt").write_text("\n".join(files) + "\n")
    second = read_dataset(root)
    assert first.image_paths == second.image_paths
    assert np.array_equal(first.labels, second.labels)


def test_nested_scene_folders_spell_their_class(tmp_path: Path) -> None:
    from erpcnet.data.xlsa17 import _class_of

    index = {"bakery_shop": 0, "shop": 1, "abbey": 2}
    assert _class_of("images/b/bakery/shop/sun_a.jpg", index) == "bakery_shop"
    assert _class_of("images/a/abbey/sun_b.jpg", index) == "abbey"
    assert _class_of("images/a/alley/sun_c.jpg", index) == ""


def test_equal_names_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    files = [f"images/{name}/{number}.jpg" for name in sorted(CLASSES) for number in range(3)]
    _write(tmp_path, files, [name for name in sorted(CLASSES) for _ in range(3)])
    for file in files:
        _draw(tmp_path / "deep" / "down" / file, (1, 2, 3))
    dataset = read_dataset(tmp_path)
    assert [f"images/{Path(path).parent.name}/{Path(path).name}" for path in dataset.image_paths] == files


@pytest.mark.parametrize("order", ["image_files.txt", "annotations"])
def test_several_boxes_of_one_image_are_cut_out(tmp_path: Path, order: str) -> None:
    """As in aPY: every image holds a red object on the left and a blue one on the right."""
    names = [f"2008_{n:06d}.jpg" for n in range(9)]
    lines, files, labels = [], [], []
    for number, name in enumerate(names):
        pair = (SEEN[number % 5], "fox") if number < 3 else (SEEN[number % 5], SEEN[(number + 1) % 5])
        for label, box in zip(pair, ("0 0 20 30", "20 0 60 30"), strict=True):
            lines.append(f"{name} {label} {box}")
            files.append(f"VOC/JPEGImages/{name}")
            labels.append(label)
        picture = Image.new("RGB", (60, 30), "blue")
        picture.paste("red", (0, 0, 20, 30))
        (tmp_path / "JPEGImages").mkdir(exist_ok=True)
        picture.save(tmp_path / "JPEGImages" / name, quality=95)
    _write(tmp_path, files, labels, order="res101" if order == "annotations" else "none")
    if order == "annotations":
        (tmp_path / "apascal_train.txt").write_text("\n".join(f"{line} 0 1 0" for line in lines))
    else:
        (tmp_path / "image_files.txt").write_text("# image class x1 y1 x2 y2\n" + "\n".join(lines))
    dataset = read_dataset(tmp_path)
    assert [dataset.classes[label] for label in dataset.labels] == labels
    cache = open_cache(dataset, 16)
    assert cache.shapes[:2].tolist() == [[30, 20], [30, 40]]
    assert (cache.pixels[0::2, 0, 2:-2, 2:-2] > 200).all()  # red
    assert (cache.pixels[1::2, 2, 2:-2, 2:-2] > 200).all()  # blue


def test_what_is_wrong_is_named(root: Path) -> None:
    kept = root.parent / "kept"
    shutil.copytree(root, kept)

    def broken() -> Path:
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        return root

    (broken() / "res101.mat").unlink()
    with pytest.raises(InputError, match=r"neither res101\.mat nor image_files\.txt"):
        read_dataset(root)
    (broken() / "att_splits.mat").write_bytes(b"MATLAB 7.3 it is not")
    with pytest.raises(InputError, match=r"att_splits\.mat is no MATLAB 5 file"):
        read_dataset(root)
    (broken() / "attributes.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match=r"names 2 attributes, but att_splits\.mat has 7"):
        read_dataset(root)
    (broken() / "valclasses2.txt").write_text("fox")
    with pytest.raises(InputError, match=r"valclasses2\.txt: class 'fox' is not one of the seen"):
        read_dataset(root)
    shutil.rmtree(broken() / "pictures" / "images" / "cat")
    with pytest.raises(MissingImagesError, match=r"cat_0\.jpg' and 2 more is not there") as caught:
        read_dataset(root)
    assert len(caught.value.missing) == 3


@pytest.mark.parametrize("name", ["CUB", "SUN", "AWA2", "APY"])
def test_the_real_splits_have_the_known_counts(name: str, tmp_path: Path) -> None:
    """With empty files in the images' place: reading needs their names only."""
    source = shared("data", "xlsa17", name)
    root = tmp_path / name
    shutil.copytree(source, root)
    listed = [line for line in (root / "image_files.txt").read_text().splitlines() if not line.startswith("#")]
    for line in listed:
        path = root / (line.split()[0] if name == "APY" else line)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    dataset = read_dataset(root)
    counts = KNOWN[len(dataset.classes), len(dataset.attribute_names)][1]
    assert (len(dataset.train), len(dataset.test_seen), len(dataset.test_unseen)) == counts
    assert len(np.unique(np.concatenate([dataset.train, dataset.test_seen, dataset.test_unseen]))) == sum(counts)
    # The class lists are an independent witness of which classes are seen, and so of order and labels.
    named = set((root / "testclasses.txt").read_text().split())
    assert {dataset.classes[n] for n in dataset.unseen} == named
    assert {dataset.classes[n] for n in dataset.seen} == set((root / "trainvalclasses.txt").read_text().split())
    assert len(dataset.folds) == 3
    splits = scipy.io.loadmat(root / "att_splits.mat")
    np.testing.assert_allclose(dataset.unit_attributes.T, splits["att"], atol=1e-4)


@pytest.mark.slow
def test_real_cub_passes_the_check_whole_and_training_starts(tmp_path: Path) -> None:
    """All 11,788 images decode; Stage I takes a step from the real weights on some of them."""
    source = shared("data", "CUB_200_2011")
    shutil.copytree(shared("data", "xlsa17", "CUB"), tmp_path, dirs_exist_ok=True)
    for archive in sorted(source.glob("images-*.tar")):
        with tarfile.open(archive) as file:
            file.extractall(tmp_path / "CUB_200_2011" / "images", filter="data")
    report = check_dataset(tmp_path)
    assert report.problems == []
    assert (report.facts["train"], report.facts["test_seen"], report.facts["test_unseen"]) == (7057, 1764, 2967)
    weights = str(shared("weights", "resnet50_v1_imagenet.safetensors"))
    config = load_config(
        "cub",
        variant="pcnet",
        data={"image_size": 64},
        model={"backbone": {"name": "resnet50_v1", "weights": weights}},
        stage1={"epochs": 1, "batch_size": 8},
    )
    dataset = read_dataset(tmp_path)
    first = np.array([dataset.train[dataset.labels[dataset.train] == label][0] for label in dataset.seen[:16]])
    kept = np.concatenate([first, dataset.test_unseen[:4]])
    few = replace(
        dataset,
        image_paths=tuple(dataset.image_paths[row] for row in kept),
        labels=dataset.labels[kept],
        train=np.arange(16),
        test_seen=np.arange(0),
        test_unseen=np.arange(16, 20),
        folds=(),
    )
    context = open_context(config, few)
    start = create_network(config, 312).state_dict()
    network = run_stage1(context, few, Log())
    assert not torch.equal(network.state_dict()["global_predictor.0.weight"], start["global_predictor.0.weight"])


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        (
            "test_seen_loc",
            lambda own, train: np.append(own, train[0]),
            r"is in train and in test_seen; an image",
        ),
        ("test_unseen_loc", lambda own, train: np.append(own, own[0]), r"is in test_unseen and in test_unseen"),
        ("trainval_loc", lambda own, train: np.append(own, 0), r"trainval_loc of att_splits\.mat counts an image 0"),
        ("trainval_loc", lambda own, train: np.append(own.astype(float), -1), r"counts an image -1; they are counted"),
        ("test_seen_loc", lambda own, train: own + 0.5, r"test_seen_loc of att_splits\.mat counts an image \d+\.5"),
    ],
)
def test_splits_that_leak_or_wrap_are_refused(
    root: Path, key: str, change: Callable[[np.ndarray, np.ndarray], np.ndarray], message: str
) -> None:
    splits = scipy.io.loadmat(root / "att_splits.mat")
    splits[key] = change(splits[key].ravel(), splits["trainval_loc"].ravel())[:, None]
    kept = {name: value for name, value in splits.items() if not name.startswith("__")}
    scipy.io.savemat(root / "att_splits.mat", kept)
    with pytest.raises(InputError, match=message):
        read_dataset(root)


def test_validation_classes_that_are_trained_on_are_refused(root: Path) -> None:
    shutil.copy(root / "trainclasses2.txt", root / "valclasses2.txt")
    with pytest.raises(InputError, match="is a training and a validation class of fold 1"):
        read_dataset(root)


def test_files_that_fit_a_line_equally_well_are_named(root: Path) -> None:
    first = read_dataset(root).image_paths[0]
    (root / "copies" / Path(first).parent).mkdir(parents=True)
    shutil.copy(root / first, root / "copies" / first)
    with pytest.raises(InputError, match=r"of the list may be 'copies/.*' or 'pictures/.*'; keep one|or the folders"):
        read_dataset(root)


def test_awa2s_own_list_of_attribute_names_is_read(root: Path) -> None:
    names = ["black", "white", "blue", "new world", "smelly", "fast", "furry"]
    (root / "attributes.txt").unlink()
    assert read_dataset(root).attribute_names[0] == "attribute 1"
    (root / "predicates.txt").write_text("".join(f"{number:>5}\t{name}\n" for number, name in enumerate(names, 1)))
    assert read_dataset(root).attribute_names == tuple(names)


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_files_are_never_read_past_their_end(root: Path, compressed: bool) -> None:
    path = root / "att_splits.mat"
    names = ("att", "allclasses_names", "trainval_loc", "test_seen_loc", "test_unseen_loc")
    values = {name: value for name, value in scipy.io.loadmat(path).items() if name in names}
    scipy.io.savemat(path, values, do_compression=compressed)
    check_matlab(path, names)
    content = path.read_bytes()
    refused = 0
    for place in range(128, len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            check_matlab(path, names)
            scipy.io.loadmat(path, variable_names=names)  # which ends the process, if the check lets the wrong ones by
        except Exception:
            refused += 1
    assert refused > len(content) // 8


@pytest.mark.parametrize("text", ["ant\0bee", "bee\nnobody"])
def test_lists_of_other_things_are_refused(root: Path, text: str) -> None:
    (root / "valclasses1.txt").write_text(text)
    with pytest.raises(InputError, match=r"valclasses1\.txt"):
        read_dataset(root)


@pytest.mark.parametrize("number", [np.inf, 1e300, 2.0**60])
def test_numbers_beyond_all_images_are_refused(root: Path, number: float) -> None:
    values = scipy.io.loadmat(root / "att_splits.mat")
    values["trainval_loc"] = np.array([[number]])
    scipy.io.savemat(root / "att_splits.mat", {name: one for name, one in values.items() if name[0] != "_"})
    with pytest.raises(InputError, match="trainval_loc"):
        read_dataset(root)
