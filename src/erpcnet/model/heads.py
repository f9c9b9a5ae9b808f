"""From embeddings to attributes, and from attributes to classes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CompatibilityKind = Literal["cosine", "dot"]
JointKind = Literal["attention", "concatenation", "mean"]


class Compatibility(nn.Module):
    """How well predicted attributes fit classes: a raw dot product (paper), or a cosine with a scale.

    The cosine is taken from `centre`, the origin until it is set: what all classes have in common tells none apart.
    """

    centre: Tensor

    def __init__(
        self, attributes: int, kind: CompatibilityKind = "cosine", scale: float = 20.0, learned: bool = True
    ) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("centre", torch.zeros(attributes))
        log_scale = torch.tensor(float(scale)).log()
        self.log_scale = nn.Parameter(log_scale, requires_grad=learned) if kind == "cosine" else None

    def forward(self, attributes: Tensor, phi: Tensor) -> Tensor:
        """attributes [..., A], phi [C, A] of unit rows to scores [..., C]."""
        if self.log_scale is None:
            return attributes @ phi.T
        return F.normalize(attributes, dim=-1) @ F.normalize(phi - self.centre, dim=-1).T * self.log_scale.exp()

    def parts(self, attributes: Tensor, phi: Tensor) -> Tensor:
        """What each attribute adds to the score of one class each: attributes [N, A], phi [N, A] to [N, A]."""
        if self.log_scale is None:
            return attributes * phi
        return F.normalize(attributes, dim=-1) * F.normalize(phi - self.centre, dim=-1) * self.log_scale.exp()


class Predictor(nn.Sequential):
    """f_cg and f_cl: FC(|A|)-Dropout."""

    def __init__(self, channels: int, attributes: int, dropout: float) -> None:
        super().__init__(nn.Linear(channels, attributes), nn.Dropout(dropout))


class JointState(NamedTuple):
    """What a joint head has gathered so far; every field's first dimension is the image."""

    given: Tensor  # what e_g contributes
    gathered: Tensor  # a running sum over localities
    weight: Tensor  # what the sum is divided by, or the number of localities


class JointHead(nn.Module):
    """f_cj, fed one locality at a time: `start(e_g)`, `add(state, e_l)`, `read(state)`.

    A locality costs one update of a running sum, whatever came before it.
    """

    def start(self, embedding: Tensor) -> JointState:
        raise NotImplementedError

    def add(self, state: JointState, locality: Tensor, step: int) -> JointState:
        raise NotImplementedError

    def read(self, state: JointState) -> Tensor:
        raise NotImplementedError

    def prefixes(self, embedding: Tensor, localities: Tensor) -> Tensor:
        """e_g [N, D], localities [N, T, D] to the joint attributes after every step, [N, T, A]."""
        state = self.start(embedding)
        read = []
        for step in range(localities.shape[1]):
            state = self.add(state, localities[:, step], step)
            read.append(self.read(state))
        return torch.stack(read, dim=1)


class ConcatenationJoint(JointHead):
    """The paper's f_cj: FC(hidden)-Dropout-FC(|A|)-Dropout on <e_g, e_l,1, ..., e_l,t, 0, ...>.

    The first layer has one block of weights per step, so step t adds W_t e_l,t to a sum; zeros add nothing.
    """

    def __init__(self, channels: int, attributes: int, steps: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(channels * (steps + 1), hidden)
        self.rest = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, attributes), nn.Dropout(dropout))
        self.channels = channels

    def start(self, embedding: Tensor) -> JointState:
        given = F.linear(embedding, self._block(0), self.first.bias)
        return JointState(given, torch.zeros_like(given), given.new_zeros(given.shape[0], 1))

    def add(self, state: JointState, locality: Tensor, step: int) -> JointState:
        return state._replace(gathered=state.gathered + F.linear(locality, self._block(step + 1)))

    def read(self, state: JointState) -> Tensor:
        return self.rest(state.given + state.gathered)

    def _block(self, number: int) -> Tensor:
        return self.first.weight[:, number * self.channels : (number + 1) * self.channels]


class MeanJoint(JointHead):
    """The same two layers with one block of weights shared by all steps, on the mean of the localities."""

    def __init__(
        self,
        channels: int,
        attributes: int,
        hidden: int,
        dropout: float = 0.0,
        global_dropout: float = 0.0,
        global_swap: float = 0.0,
    ) -> None:
        super().__init__()
        self.of_global = nn.Linear(channels, hidden)
        self.of_local = nn.Linear(channels, hidden)
        self.rest = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, attributes), nn.Dropout(dropout))
        self.swap_global, self.drop_global = SwapRows(global_swap), DropRows(global_dropout)

    def start(self, embedding: Tensor) -> JointState:
        given = self.drop_global(self.of_global(self.swap_global(embedding)))
        return JointState(given, torch.zeros_like(given), given.new_zeros(given.shape[0], 1))

    def add(self, state: JointState, locality: Tensor, step: int) -> JointState:
        return state._replace(gathered=state.gathered + self.of_local(locality), weight=state.weight + 1)

    def read(self, state: JointState) -> Tensor:
        return self.rest(torch.relu(state.given + state.gathered / state.weight.clamp_min(1)))


class AttentionJoint(JointHead):
    """Reads every attribute where it is visible.

    A locality predicts the attributes and, for each, how far to trust it here:
    a_j = W e_g + sum_t exp(s g_t) a_t / (1 + sum_t exp(s g_t)), attribute by attribute. It does not depend on the
    order, and `trust` says which window decided which attribute. The 1 is a window that nobody looked at and that
    says nothing: without it, the only window seen would count in full, however little it shows. The sharpness s
    makes g be learned s times faster than the rest. Now and then training hides e_g, or shows that of a similar
    image in its place, so that the localities have to carry the prediction.
    """

    limit = 8.0  # exp stays within float16

    def __init__(
        self,
        channels: int,
        attributes: int,
        dropout: float = 0.0,
        global_dropout: float = 0.0,
        global_swap: float = 0.0,
        sharpness: float = 1.0,
    ) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.of_global = nn.Linear(channels, attributes)
        self.of_local = nn.Linear(channels, attributes)
        self.trust = nn.Linear(channels, attributes)
        self.dropout = nn.Dropout(dropout)
        self.swap_global, self.drop_global = SwapRows(global_swap), DropRows(global_dropout)
        nn.init.zeros_(self.trust.weight)
        nn.init.zeros_(self.trust.bias)

    def start(self, embedding: Tensor) -> JointState:
        given = self.drop_global(self.of_global(self.swap_global(embedding)))
        return JointState(given, torch.zeros_like(given), torch.ones_like(given))

    def add(self, state: JointState, locality: Tensor, step: int) -> JointState:
        weight = (self.sharpness * self.trust(locality)).clamp(-self.limit, self.limit).exp()
        return JointState(state.given, state.gathered + weight * self.of_local(locality), state.weight + weight)

    def read(self, state: JointState) -> Tensor:
        return self.dropout(state.given + state.gathered / state.weight)


class ReplaceRows(nn.Module):
    """Puts another row in a row's place, at random and only in training."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, value: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return value
        replaced = torch.rand(len(value), 1, device=value.device) < self.share
        return torch.where(replaced, self.others(value), value)

    def others(self, value: Tensor) -> Tensor:
        """What each row would be replaced by."""
        raise NotImplementedError


class DropRows(ReplaceRows):
    """Nothing in a row's place; unlike dropout it does not scale the others up."""

    def others(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


class SwapRows(ReplaceRows):
    """The most similar other row of the batch in a row's place.

    What similar images share stays, what tells them apart goes: that has to be found elsewhere.
    """

    def others(self, value: Tensor) -> Tensor:
        return value[most_similar(value.detach())]


def most_similar(rows: Tensor) -> Tensor:
    """For each row, which other one has the largest cosine with it, all measured from their mean."""
    unit = F.normalize(rows - rows.mean(dim=0), dim=1)
    return (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(dim=1)


def create_joint(
    kind: JointKind,
    channels: int,
    attributes: int,
    steps: int,
    hidden: int,
    dropout: float,
    global_dropout: float,
    global_swap: float,
    sharpness: float,
) -> JointHead:
    """The joint head by name."""
    if kind == "concatenation":
        return ConcatenationJoint(channels, attributes, steps, hidden, dropout)
    if kind == "mean":
        return MeanJoint(channels, attributes, hidden, dropout, global_dropout, global_swap)
    return AttentionJoint(channels, attributes, dropout, global_dropout, global_swap, sharpness)
