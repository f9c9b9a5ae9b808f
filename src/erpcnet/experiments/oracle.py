"""The best order there could be: what knowing the label would gain."""

from __future__ import annotations

import torch
from torch import Tensor

from erpcnet.model import Classes, ERPCNet
from erpcnet.model.heads import JointState
from erpcnet.model.locality_tables import TableLocalities
from erpcnet.model.walk import Localities


class OracleOrder:
    """Looks at every unvisited cell and takes the one after which the true class is most probable.

    It walks over tables; `labels` are of all instances of the dataset, as places among the classes.
    """

    def __init__(self, network: ERPCNet, labels: Tensor, classes: Classes) -> None:
        self._network, self._all_labels, self._classes = network, labels, classes

    def begin(self, localities: Localities) -> None:
        assert isinstance(localities, TableLocalities)
        self._localities, self._labels = localities, self._all_labels[localities.rows]
        self._state = self._network.joint.start(localities.embedding)
        self._whole = self._network.global_fit(localities.attributes, self._classes.phi)
        self._step = 0

    def choose(self, rows: Tensor, latest: Tensor, visited: Tensor) -> Tensor:
        network, cells, (phi, handicap) = self._network, visited.shape[1], self._classes
        best = torch.full((len(rows),), -1.0, device=visited.device)
        choice = torch.zeros(len(rows), dtype=torch.long, device=visited.device)
        for cell in range(cells):
            seen = self._localities.look(rows, torch.full_like(rows, cell))
            joint = network.joint.read(network.joint.add(self._state, seen, self._step))
            scores = network.combine(self._whole, network.joint_fit(joint, phi), self._step + 1, handicap)
            sure = scores.softmax(dim=1).gather(1, self._labels[:, None])[:, 0]
            sure = sure.masked_fill(visited[:, cell], -1.0)
            better = sure > best
            best, choice = torch.where(better, sure, best), torch.where(better, cell, choice)
        self._state = JointState(*network.joint.add(self._state, self._localities.look(rows, choice), self._step))
        self._step += 1
        return choice
