"""The best selection order there could be: what knowing the label would gain."""

from __future__ import annotations

import torch
from torch import Tensor

from erpcnet.model import Classes, ERPCNet
from erpcnet.model.localities import Localities
from erpcnet.model.locality_tables import TableLocalities
from erpcnet.model.scoring import class_logits


class OracleOrder:
    """Tries every unvisited cell and selects the one after which the true class is most probable.

    It works on locality tables; `labels` are of all instances of the dataset, as places among the classes.
    """

    def __init__(self, network: ERPCNet, labels: Tensor, classes: Classes) -> None:
        self._network, self._all_labels, self._classes = network, labels, classes

    def begin(self, localities: Localities) -> None:
        assert isinstance(localities, TableLocalities)
        self._localities, self._labels = localities, self._all_labels[localities.rows]
        self._state = self._network.joint.start(localities.e_g)
        self._step = 0

    def select(self, rows: Tensor, previous: Tensor, visited: Tensor) -> Tensor:
        network, cells = self._network, visited.shape[1]
        best = torch.full((len(rows),), -1.0, device=visited.device)
        choice = torch.zeros(len(rows), dtype=torch.long, device=visited.device)
        for cell in range(cells):
            e_l = self._localities.embed(rows, torch.full_like(rows, cell))
            a_j = network.joint.read(network.joint.add(self._state, e_l, self._step))
            logits = class_logits(network, self._localities.a_g, a_j[:, None], self._classes).answer[:, 0]
            chance = logits.softmax(dim=1).gather(1, self._labels[:, None])[:, 0]
            chance = chance.masked_fill(visited[:, cell], -1.0)
            better = chance > best
            best, choice = torch.where(better, chance, best), torch.where(better, cell, choice)
        self._state = network.joint.add(self._state, self._localities.embed(rows, choice), self._step)
        self._step += 1
        return choice
