"""Where parts are, in the forms that datasets tell it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import shared
from erpcnet.data import ZeroShotDataset
from erpcnet.data.images import image_shape, load_image
from erpcnet.errors import InputError
from erpcnet.experiments.parts import bird_boxes, distinguishing_parts, hits, part_places
from erpcnet.model import Grid


@pytest.fixture
def birds(tmp_path: Path) -> ZeroShotDataset:
    """Two images, half as large as CUB's coordinates say, listed as .jpg and stored as .webp."""
    root = tmp_path / "CUB_200_2011"
    (root / "parts").mkdir(parents=True)
    for name in ("images/001.Ant/a.webp", "images/002.Bee/b.webp"):
        (root / name).parent.mkdir(parents=True)
        Image.new("RGB", (50, 40)).save(root / name)
    (root / "images.txt").write_text("1 001.Ant/a.jpg\n2 002.Bee/b.jpg\n")
    (root / "image_sizes.txt").write_text("1 100 80\n2 100 80\n")
    (root / "bounding_boxes.txt").write_text("1 10 0 40 40\n2 30 20 40 40\n")
    (root / "parts/part_locs.txt").write_text(
        "1 1 50.0 40.0 1\n1 2 10.0 0.0 1\n1 3 0.0 0.0 0\n2 1 2.0 40.0 1\n2 2 0.0 0.0 0\n2 3 70.0 60.0 1\n"
    )
    return ZeroShotDataset(
        name="CUB",
        root=tmp_path,
        classes=("002.Bee", "001.Ant"),
        attribute_names=("wings",),
        attributes=np.ones((2, 1), dtype=np.float32),
        image_paths=("CUB_200_2011/images/002.Bee/b.webp", "CUB_200_2011/images/001.Ant/a.webp"),
        labels=np.array([0, 1]),
        train=np.array([0]),
        test_seen=np.array([], dtype=np.int64),
        test_unseen=np.array([1]),
        extras={"parts": root / "parts/part_locs.txt"},
    )


def test_cubs_parts_are_placed_in_the_view(birds: ZeroShotDataset) -> None:
    places = part_places(birds, np.array([1, 0]), crop_share=1.0)
    # The view is the middle 80 x 80 of 100 x 80: x from 10 to 90.
    expected = torch.tensor([[[0.5, 0.5], [0.0, 0.0], [np.nan] * 2], [[-0.1, 0.5], [np.nan] * 2, [0.75, 0.75]]])
    torch.testing.assert_close(places, expected.double(), equal_nan=True)


def test_without_other_sizes_coordinates_are_of_the_files(birds: ZeroShotDataset) -> None:
    folder = birds.extras["parts"].parent.parent
    (folder / "image_sizes.txt").unlink()
    places = part_places(birds, np.array([1]), crop_share=1.0)
    torch.testing.assert_close(places[0, 1], torch.tensor([5 / 40, 0.0]).double())  # x from 5 to 45 of 50


def test_a_birds_box_is_cut_to_the_view(birds: ZeroShotDataset) -> None:
    boxes = bird_boxes(birds, np.array([1, 0]), crop_share=1.0)
    expected = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.25, 0.25, 0.75, 0.75]]).double()
    torch.testing.assert_close(boxes, expected)


def test_a_dataset_without_parts_says_so(birds: ZeroShotDataset) -> None:
    birds.extras.clear()
    with pytest.raises(InputError, match="says nowhere where parts are"):
        part_places(birds, np.array([0]), crop_share=1.0)


def test_real_birds_parts_lie_in_their_boxes() -> None:
    folder = shared("data", "CUB_200_2011")
    boxes = np.loadtxt(folder / "bounding_boxes.txt")
    parts = np.loadtxt(folder / "parts" / "part_locs.txt")
    visible = parts[parts[:, 4] > 0]
    own = boxes[visible[:, 0].astype(int) - 1]
    inside = (visible[:, 2:4] >= own[:, 1:3] - 2) & (visible[:, 2:4] <= own[:, 1:3] + own[:, 3:5] + 2)
    assert inside.all(axis=1).mean() > 0.99


def test_hits_are_windows_that_hold_the_place() -> None:
    grid = Grid(14, 14, window=5, stride=3)
    cells = torch.tensor([[0, 5, 15], [3, 0, 12]])
    found = hits(cells, torch.tensor([[[0.5, 0.5]], [[0.01, 0.01]]]), grid)
    assert found.tolist() == [[0, 1, 1], [0, 1, 1]]


def test_hits_count_the_parts_in_view_alone() -> None:
    grid = Grid(14, 14, window=5, stride=3)
    nowhere = [float("nan")] * 2
    places = torch.tensor([[[0.1, 0.1], [0.9, 0.9], [1.2, 0.5], nowhere], [nowhere] * 4])
    found = hits(torch.tensor([[0, 15], [0, 15]]), places, grid)
    assert found[0].tolist() == [0.5, 1.0]
    assert found[1].isnan().all()


def test_siblings_differ_in_one_part(dataset: ZeroShotDataset) -> None:
    parts = distinguishing_parts(dataset)
    for first, second in zip(dataset.unseen[0::2], dataset.unseen[1::2], strict=True):  # two siblings a family
        assert parts[int(first)] == parts[int(second)]


def test_shapes_are_those_of_the_turned_picture(birds: ZeroShotDataset) -> None:
    path = birds.root / birds.image_paths[1]
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    for orientation, expected in ((6, (50, 40)), (1, (40, 50))):
        exif[0x0112] = orientation
        Image.new("RGB", (50, 40)).save(path, exif=exif)
        assert image_shape(path) == expected == load_image(path).size[::-1]
    exif[0x0112] = 6
    Image.new("RGB", (50, 40)).save(path, exif=exif)
    folder = birds.extras["parts"].parent.parent
    (folder / "image_sizes.txt").write_text("1 80 100\n2 100 80\n")
    # Now 80 wide and 100 high: the view is its middle 80 x 80, y from 10 to 90; the first part lies at (50, 40).
    places = part_places(birds, np.array([1]), crop_share=1.0)
    torch.testing.assert_close(places[0, 0], torch.tensor([50 / 80, 30 / 80]).double())
