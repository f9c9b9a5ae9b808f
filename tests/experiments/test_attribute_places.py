"""Where attributes are read, beside loops that are easy to follow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import shared, small_network
from erpcnet.config import DataSettings
from erpcnet.data import ZeroShotDataset
from erpcnet.data.loader import open_loader
from erpcnet.experiments.attribute_places import (
    CUB_GROUPS,
    attribute_places,
    part_found,
    part_groups,
    peaks,
    subject,
    window_holds,
)
from erpcnet.experiments.parts import every_part
from erpcnet.model import Grid
from erpcnet.model.heads import Compatibility
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.preprocessing import preprocessing_for
from erpcnet.model.rollout import rollout
from erpcnet.model.selection import RandomOrder


def test_windows_that_hold_a_place() -> None:
    grid = Grid(14, 14, window=5, stride=3)
    places = torch.tensor([[[0.5, 0.1], [float("nan")] * 2], [[0.99, 0.99], [0.01, 0.01]]])
    found = window_holds(places, grid)
    for image in range(2):
        for cell, (left, upper, right, lower) in enumerate(grid.boxes(1).tolist()):
            inside = [left <= x < right and upper <= y < lower for x, y in places[image].tolist()]
            assert bool(found[image, cell]) == any(inside)


def test_the_peak_is_where_windows_say_most() -> None:
    grid = Grid(14, 14, window=5, stride=3)
    heat = torch.zeros(2, 16)
    heat[0, 5] = 1.0  # rows and columns 3 to 7, whose places 5 alone no other window covers
    heat[1, [0, 1]] = 1.0  # rows 0 to 4 and columns 0 to 7, of which rows 0 to 2 and columns 0 to 5 are theirs alone
    expected = torch.tensor([[5.5, 5.5], [3.0, 1.5]]).double() / 14
    torch.testing.assert_close(peaks(heat, grid), expected)


def test_apns_rule() -> None:
    boxes = torch.tensor([[0.1, 0.1, 0.9, 0.5]]).repeat(4, 1)  # so compared boxes are 0.2 wide and 0.1 high
    places = torch.tensor([[[0.5, 0.3], [0.0, 0.0]]]).repeat(4, 1, 1)
    visible = torch.tensor([[True, False]]).repeat(4, 1)
    # Moved to the side by a share d of its width, a box overlaps by (1 - d) / (1 + d): half at d = 1/3.
    points = torch.tensor([[0.5, 0.3], [0.56, 0.3], [0.57, 0.3], [0.0, 0.0]])
    assert part_found(points, places, visible, boxes).tolist() == [True, True, False, False]
    # Near the edge both boxes are moved into the picture.
    edge = torch.tensor([[[0.99, 0.99]]])
    assert part_found(torch.tensor([[0.91, 0.96]]), edge, torch.tensor([[True]]), boxes[:1]).tolist() == [True]
    # The nearest visible place counts.
    both = torch.tensor([[True, True]])
    assert part_found(torch.tensor([[0.1, 0.05]]), places[:1], both, boxes[:1]).tolist() == [True]


def test_groups_of_cubs_attributes() -> None:
    lines = shared("data", "xlsa17", "CUB", "attributes.txt").read_text().splitlines()
    subjects = {subject(line.split(maxsplit=1)[1]) for line in lines}
    known = {subject for _, own in CUB_GROUPS.values() for subject in own}
    assert known < subjects
    # What is about the whole bird, or about a side of it, belongs to no part.
    assert subjects - known == {"", "primary", "underparts", "upperparts"}
    parts = shared("data", "CUB_200_2011", "parts", "parts.txt").read_text().splitlines()
    grouped = [part for own, _ in CUB_GROUPS.values() for part in own]
    assert sorted(grouped) == sorted(line.split(maxsplit=1)[1] for line in parts)


@pytest.mark.parametrize("hubness", [0.0, 0.3])
def test_records_of_creatures_against_a_loop(dataset: ZeroShotDataset, hubness: float) -> None:
    """Every image by itself: what `erpcnet explain` would say of it, and which window holds the part."""
    network = small_network("pcnet", len(dataset.attribute_names), steps=4, hubness=hubness)
    if hubness:
        network.set_prototypes(torch.rand(len(dataset.seen), len(dataset.attribute_names)))
    preprocessing = preprocessing_for(network.settings.backbone, crop_share=1.0)
    loader = open_loader(dataset, DataSettings(image_size=64), preprocessing, "cpu")
    records = attribute_places(network, dataset, loader, RandomOrder(0), batch_size=len(dataset.test_unseen))
    assert records is not None
    rows = dataset.test_unseen
    groups = part_groups(dataset, rows, loader.preprocessing.crop_share)
    places = every_part(dataset, rows, loader.preprocessing.crop_share)
    assert [one.part for one in records] == [group.name for group in groups]
    (batch,) = loader.centre_crops(rows, len(rows))
    found = rollout(network, DirectLocalities(network, batch.images), RandomOrder(0), keep_localities=True)
    e_g = network.glance(batch.images).e_g
    assert found.e_l is not None
    boxes = network.grid.boxes(1)
    read: dict[str, list[bool]] = {one.part: [] for one in records}
    chance: dict[str, list[float]] = {one.part: [] for one in records}
    unit = torch.from_numpy(dataset.unit_attributes)
    classes = network.classes(unit[dataset.unseen], torch.zeros(len(dataset.unseen), dtype=torch.bool))
    heads = (network.joint_compatibility, network.global_compatibility)
    for image in range(len(rows)):
        parts = network.joint.parts(e_g[image : image + 1], found.e_l[image : image + 1])
        assert parts is not None
        a_j, a_g = found.a_j[image, -1], found.a_g[image]
        logits = network.joint_compatibility(a_j, classes.phi) + network.global_compatibility(a_g, classes.phi)
        answer, other = (logits - 2 * torch.as_tensor(classes.bias)).topk(2).indices
        of_joint, of_global = (_row_difference(head, classes.phi, answer, other) for head in heads)
        by_place = parts[0] / a_j.norm() * of_joint
        by_place[0] += a_g / a_g.norm() * of_global
        for group in groups:
            x, y = places[group.name][image].tolist()
            if not (0 <= x < 1 and 0 <= y < 1):
                continue
            amounts = by_place.sum(dim=0)[group.columns]
            column = group.columns[amounts.abs().argmax()]
            of_places = by_place[1:, column] * by_place[:, column].sum().sign()
            holds = []
            for cell in found.cells[image]:
                left, upper, right, lower = boxes[cell].tolist()
                holds.append(left <= x < right and upper <= y < lower)
            read[group.name].append(holds[int(of_places.argmax())])
            chance[group.name].append(float(np.mean(holds)))
    for one in records:
        assert one.images == len(read[one.part])
        assert one.read == pytest.approx(np.mean(read[one.part]), abs=1.5 / one.images)  # a near tie may turn over
        assert one.selected == pytest.approx(np.mean(chance[one.part]))
        assert one.any_selected >= one.read
        assert one.pcp is None


def _row_difference(head: Compatibility, phi: Tensor, answer: Tensor, other: Tensor) -> Tensor:
    """What the logit of one class over another's multiplies the unit-length attributes with."""
    assert head.log_scale is not None
    towards = [(phi[row] - head.centre) / (phi[row] - head.centre).norm() for row in (answer, other)]
    return head.log_scale.exp() * (towards[0] - towards[1])
