"""Every locality of every image, computed once: with Stage I frozen an image has only as many as the grid has cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from erpcnet.data import Batch
from erpcnet.model import ERPCNet
from erpcnet.model.walk import ParallelLocalities
from erpcnet.progress import track


@dataclass(frozen=True)
class LocalityTable:
    """e_g [R, D], a_g [R, A], descriptors [R, cells, F], beta [R, cells], localities e_l [R, cells, D].

    `rows` [R] says which instance of the dataset a row is a view of.
    """

    embedding: Tensor
    attributes: Tensor
    descriptors: Tensor
    beta: Tensor
    localities: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Tensor) -> TableLocalities:
        """Some rows of the table, to walk over."""
        return TableLocalities(self, places)


class TableLocalities:
    """Localities looked up; see `erpcnet.model.walk.Localities`."""

    def __init__(self, table: LocalityTable, places: Tensor) -> None:
        self._table, self._places = table, places
        self.embedding, self.attributes = table.embedding[places], table.attributes[places]
        self.descriptors, self.beta = table.descriptors[places], table.beta[places]

    def look(self, rows: Tensor, cells: Tensor) -> Tensor:
        return self._table.localities[self._places[rows], cells]


@torch.inference_mode()
def build_table(network: ERPCNet, batches: Iterable[Batch], total: int, what: str = "Localities") -> LocalityTable:
    """Run the frozen network once over `batches`, every cell of every image."""
    network.eval()
    parts: dict[str, list[Tensor]] = {field.name: [] for field in fields(LocalityTable)}
    for batch in track(batches, total=total, what=what):
        found = ParallelLocalities(network, batch.images)
        for name in ("embedding", "attributes", "descriptors", "beta", "localities"):
            parts[name].append(getattr(found, name))
        parts["rows"].append(batch.rows.to(batch.images.device))
    return LocalityTable(**{name: torch.cat(values) for name, values in parts.items()})
