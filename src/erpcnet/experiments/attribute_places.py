"""Where attributes are read: does the locality that decides about an attribute of a part hold that part?

For datasets that know where parts are: CUB, and the embedded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from erpcnet.data import ImageLoader, ZeroShotDataset
from erpcnet.experiments.parts import bird_boxes, every_part
from erpcnet.inference.explanation import evidence_by_place
from erpcnet.model import ERPCNet, Grid
from erpcnet.model.localities import ParallelLocalities
from erpcnet.model.rollout import rollout
from erpcnet.model.scoring import score
from erpcnet.model.selection import SelectionOrder

# CUB's annotated parts in the seven groups that APN (Xu et al., 2020) reports, and what names of their attributes are
# about: `has_upper_tail_color::black` is about the upper tail.
CUB_GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "head": (
        ("beak", "crown", "forehead", "left eye", "nape", "right eye"),
        ("bill", "crown", "eye", "forehead", "head", "nape"),
    ),
    "breast": (("breast", "throat"), ("breast", "throat")),
    "belly": (("belly",), ("belly",)),
    "back": (("back",), ("back",)),
    "wing": (("left wing", "right wing"), ("wing",)),
    "tail": (("tail",), ("tail", "under_tail", "upper_tail")),
    "leg": (("left leg", "right leg"), ("leg",)),
}
BOX_SHARE = 0.25  # of a bird's box, a side of the boxes that are compared, as APN does
OVERLAP = 0.5  # intersection over union from which a part counts as found


class PartGroup(NamedTuple):
    """A part of what is pictured.

    Attributes:
        name: The part.
        columns: The attributes that are about it.
        places: Where it is in each image's centre crop, [N, K, 2] x, y as shares of it; NaN or outside: not visible.
    """

    name: str
    columns: Tensor
    places: Tensor


class PlaceRecord(NamedTuple):
    """How often the place of an attribute holds the part that the attribute is about.

    Attributes:
        part: The part.
        images: In how many images it is visible.
        read: The share of them in which the locality that decides most about the group's most telling attribute, for
            the answer over the runner-up, holds it.
        any_selected: In which any of the T localities does: what choosing among them could give.
        selected: The same for one of the T localities by chance.
        centre: For the window in the middle.
        pcp: APN's percentage of correctly localised parts, where there are boxes of what is pictured; None elsewhere.
        pcp_centre: The same for a box in the middle.
    """

    part: str
    images: int
    read: float
    any_selected: float
    selected: float
    centre: float
    pcp: float | None = None
    pcp_centre: float | None = None


def attribute_places(
    network: ERPCNet, dataset: ZeroShotDataset, loader: ImageLoader, order: SelectionOrder, batch_size: int
) -> list[PlaceRecord] | None:
    """A record for each part, of the test images of unseen classes in their centre crops, all T steps taken.

    Args:
        network: With localities.
        dataset: Which says where parts are.
        loader: Its images.
        order: Selects the localities.
        batch_size: Images at once.

    Returns:
        None where the joint head is no sum over localities, so that nothing says which of them decided.
    """
    rows = dataset.test_unseen
    groups = part_groups(dataset, rows, loader.preprocessing.crop_share)
    found = [
        _read(network, dataset, batch.images, batch.rows, order, groups)
        for batch in loader.centre_crops(rows, batch_size)
    ]
    if any(one is None for one in found):
        return None
    cells, read_at, heat = (torch.cat(parts) for parts in zip(*(one for one in found if one), strict=True))
    boxes = bird_boxes(dataset, rows, loader.preprocessing.crop_share) if _has_boxes(dataset) else None
    return [
        _record(group, network.grid, cells, read_at[:, number], heat[:, number], boxes)
        for number, group in enumerate(groups)
    ]


def part_groups(dataset: ZeroShotDataset, rows: np.ndarray, crop_share: float) -> list[PartGroup]:
    """The parts that some attribute is about, and where they are in these images."""
    places = every_part(dataset, rows, crop_share)
    about = [subject(name) for name in dataset.attribute_names]
    named = CUB_GROUPS if _has_boxes(dataset) else {part: ((part,), (part,)) for part in places}
    groups = []
    for name, (parts, subjects) in named.items():
        columns = torch.tensor([column for column, subject in enumerate(about) if subject in subjects])
        own = [places[part] for part in parts if part in places]
        if len(columns) and own:
            groups.append(PartGroup(name, columns, torch.stack(own, dim=1)))
    return groups


def subject(attribute: str) -> str:
    """What an attribute is about: `has_bill_shape::hooked` about the bill, `ears: pointed` about the ears."""
    if attribute.startswith("has_"):
        return attribute.removeprefix("has_").partition("::")[0].rpartition("_")[0]
    return attribute.partition(":")[0]


def _has_boxes(dataset: ZeroShotDataset) -> bool:
    return dataset.extras["parts"].name == "part_locs.txt"


@torch.inference_mode()
def _read(
    network: ERPCNet,
    dataset: ZeroShotDataset,
    images: Tensor,
    rows: Tensor,
    order: SelectionOrder,
    groups: Sequence[PartGroup],
) -> tuple[Tensor, Tensor, Tensor] | None:
    """For a batch: the cells selected [n, T]; the cell at which each group's most telling attribute was read [n, G];
    and what every cell says of the attribute of the group that the image's class has most of, [n, G, cells].
    """
    localities = ParallelLocalities(network, images)
    found = rollout(network, localities, order)
    selected = localities.e_l.gather(1, found.cells[..., None].expand(-1, -1, localities.e_l.shape[2]))
    parts, everywhere = (network.joint.parts(localities.e_g, e_l) for e_l in (selected, localities.e_l))
    if parts is None or everywhere is None:
        return None
    phi = torch.from_numpy(dataset.unit_attributes).to(found.a_g)
    unseen = torch.from_numpy(dataset.unseen).to(phi.device)
    classes = network.classes(phi[unseen], torch.zeros(len(unseen), dtype=torch.bool, device=phi.device))
    scored = score(network, found.each(lambda tensor: tensor[None]), classes)
    best = unseen[scored.logits[0, :, -1].topk(2, dim=1).indices]
    telling = evidence_by_place(network, found.a_g, found.a_j[:, -1], parts, phi[best[:, 0]], phi[best[:, 1]])
    own = phi[torch.from_numpy(dataset.labels).to(phi.device)[rows.to(phi.device)]]
    mean = phi[torch.from_numpy(dataset.seen).to(phi.device)].mean(dim=0)
    read_at, heat = [], []
    for group in groups:
        columns = group.columns.to(phi.device)
        of_group = telling[:, :, columns]
        amounts = of_group.sum(dim=1)
        most = amounts.abs().argmax(dim=1)[:, None]
        by_step = of_group[:, 1:].gather(2, most[:, None].expand(-1, of_group.shape[1] - 1, 1))[..., 0]
        step = (by_step * amounts.gather(1, most).sign()).argmax(dim=1)[:, None]
        read_at.append(found.cells.gather(1, step)[:, 0])
        had = columns[(own - mean)[:, columns].argmax(dim=1)][:, None, None]
        heat.append(everywhere[:, 1:].gather(2, had.expand(-1, everywhere.shape[1] - 1, 1))[..., 0])
    return found.cells.cpu(), torch.stack(read_at, dim=1).cpu(), torch.stack(heat, dim=1).cpu()


def _record(
    group: PartGroup, grid: Grid, cells: Tensor, read_at: Tensor, heat: Tensor, boxes: Tensor | None
) -> PlaceRecord:
    places = group.places
    visible = ((places >= 0) & (places < 1)).all(dim=2)
    some = visible.any(dim=1)
    held = window_holds(places.masked_fill(~visible[..., None], float("nan")), grid)[some]  # [n, cells]

    def share(hits: Tensor) -> float:
        return float(hits.double().mean())

    selected = held.gather(1, cells[some])
    found = {
        "read": share(held.gather(1, read_at[some][:, None])),
        "any_selected": share(selected.any(dim=1)),
        "selected": share(selected),
        "centre": share(held[:, grid.centre_first()[0]]),
    }
    if boxes is not None:
        seen, own, visible = boxes[some], places[some], visible[some]
        middle = torch.full_like(seen[:, :2], 0.5)
        found |= {
            name: share(part_found(points, own, visible, seen))
            for name, points in (("pcp", peaks(heat[some], grid)), ("pcp_centre", middle))
        }
    return PlaceRecord(group.name, int(some.sum()), **found)


def window_holds(places: Tensor, grid: Grid) -> Tensor:
    """Whether each window holds any of an image's places: [N, K, 2] as shares of the crop to [N, cells]."""
    windows = grid.boxes(1).to(places)
    x, y = places[:, :, None, 0], places[:, :, None, 1]
    inside = (windows[:, 0] <= x) & (x < windows[:, 2]) & (windows[:, 1] <= y) & (y < windows[:, 3])
    return inside.any(dim=1)


def peaks(heat: Tensor, grid: Grid) -> Tensor:
    """Where [N, 2] (x, y, shares of the crop) the windows' values [N, cells] are highest, each spread over its window
    and averaged where windows overlap; the middle of all places that are as high.
    """
    height, width = grid.height, grid.width
    boxes = grid.boxes(1) * torch.tensor([width, height] * 2)
    left, upper, right, lower = boxes[..., None, None].round().unbind(dim=1)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    inside = ((left <= x) & (x < right) & (upper <= y) & (y < lower)).double()  # [cells, H, W]
    covered = inside.sum(dim=0)
    spread = torch.einsum("nc,chw->nhw", heat.double(), inside) / covered.clamp_min(1)
    spread = spread.masked_fill(covered == 0, -torch.inf)
    highest = spread >= spread.amax(dim=(1, 2), keepdim=True) - 1e-9
    counts = highest.sum(dim=(1, 2))
    middles = [(highest * (along + 0.5)).double().sum(dim=(1, 2)) / counts for along in (x, y)]
    return torch.stack(middles, dim=1) / torch.tensor([width, height])


def part_found(points: Tensor, places: Tensor, visible: Tensor, boxes: Tensor) -> Tensor:
    """APN's rule: a box of a quarter of the bird's width and height round the point, and one round the nearest visible
    place of the part, both moved into the picture, overlap by half or more (intersection over union).

    Args:
        points: [N, 2].
        places: [N, K, 2].
        visible: [N, K] bool, one of each image at least.
        boxes: The birds', [N, 4] x1, y1, x2, y2; all as shares of the crop.
    """
    away = (places - points[:, None]).square().sum(dim=2).masked_fill(~visible, torch.inf)
    nearest = places[torch.arange(len(places)), away.argmin(dim=1)]
    size = (boxes[:, 2:] - boxes[:, :2]) * BOX_SHARE
    corners = [torch.minimum((middle - size / 2).clamp_min(0), 1 - size) for middle in (points, nearest)]
    shared = (size - (corners[0] - corners[1]).abs()).clamp_min(0).prod(dim=1)
    return shared >= OVERLAP * (2 * size.prod(dim=1) - shared)
