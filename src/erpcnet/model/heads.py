"""From embeddings to attributes, and from attributes to logits of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.config.model import CompatibilityKind, ModelSettings
from erpcnet.config.ranges import check_name
from erpcnet.errors import InputError


class Compatibility(nn.Module):
    """How well predicted attributes fit classes: a raw dot product (paper), or a cosine with a scale.

    The cosine is taken from `centre`, the origin until it is set: what all classes have in common tells none apart.

    Args:
        attributes: A.
        kind: `cosine` or `dot`.
        scale: What the cosine is multiplied by at first.
        learned: Whether training changes the scale.
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
        """attributes [..., A], phi [C, A] of unit rows to logits [..., C]."""
        if self.log_scale is None:
            return attributes @ phi.T
        return F.normalize(attributes, dim=-1) @ F.normalize(phi - self.centre, dim=-1).T * self.log_scale.exp()

    def contributions(self, attributes: Tensor, phi: Tensor, part: Tensor | None = None) -> Tensor:
        """What each attribute adds to the logit of one class each: attributes [..., A], phi [..., A] to [..., A].

        With a `part` [..., A] of a sum that the attributes are: what that part of them adds.
        """
        part = attributes if part is None else part
        if self.log_scale is None:
            return part * phi
        length = attributes.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return part / length * F.normalize(phi - self.centre, dim=-1) * self.log_scale.exp()


class Predictor(nn.Sequential):
    """f_cg and f_cl: FC(|A|)-Dropout."""

    def __init__(self, channels: int, attributes: int, dropout: float) -> None:
        super().__init__(nn.Linear(channels, attributes), nn.Dropout(dropout))


class JointState(NamedTuple):
    """What a joint head has accumulated so far.

    The first dimension of every field is the image; a head of one's own may put whatever it needs behind that.
    """

    of_global: Tensor  # what e_g contributes
    total: Tensor  # a running sum over localities
    weight: Tensor  # what the sum is divided by, where it is


class JointHead(nn.Module):
    """f_cj, fed one locality at a time: `start(e_g)`, `add(state, e_l, step)`, `read(state)`.

    A locality costs one update of a running sum, whatever came before it. Subclasses take (channels D, attributes A,
    settings) and are found by the name that they are registered with (`register_joint_head`), which `model.joint.kind`
    takes.
    """

    def __init__(self, channels: int, attributes: int, settings: ModelSettings) -> None:
        super().__init__()

    def start(self, e_g: Tensor) -> JointState:
        """The state before any locality, from e_g [N, D]."""
        raise NotImplementedError

    def add(self, state: JointState, e_l: Tensor, step: int) -> JointState:
        """The state after one more locality e_l [N, D], the `step`-th, counted from 0."""
        raise NotImplementedError

    def read(self, state: JointState) -> Tensor:
        """a_j [N, A]."""
        raise NotImplementedError

    def parts(self, e_g: Tensor, e_l: Tensor) -> Tensor | None:
        """What e_g [N, D] and each of the localities [N, T, D] add to a_j, [N, 1 + T, A]; None where a_j is no sum."""
        return None

    def prefixes(self, e_g: Tensor, e_l: Tensor) -> Tensor:
        """e_g [N, D], e_l [N, T, D] to a_j after every step, [N, T, A]."""
        state = self.start(e_g)
        read = []
        for step in range(e_l.shape[1]):
            state = self.add(state, e_l[:, step], step)
            read.append(self.read(state))
        return torch.stack(read, dim=1)


JOINT_HEADS: dict[str, type[JointHead]] = {}
Head = TypeVar("Head", bound=type[JointHead])


def register_joint_head(name: str) -> Callable[[Head], Head]:
    """Make a joint head known by a name that `model.joint.kind` takes.

    Examples:
        >>> @register_joint_head("latest")
        ... class LatestLocality(JointHead): ...
    """

    def register(head: Head) -> Head:
        check_name(name, "a joint head")
        if name in JOINT_HEADS:
            raise InputError(f"there is a joint head '{name}' already.")
        JOINT_HEADS[name] = head
        return head

    return register


def create_joint_head(channels: int, attributes: int, settings: ModelSettings) -> JointHead:
    """The joint head that the settings name."""
    check_joint_kind(settings)
    return JOINT_HEADS[settings.joint.kind](channels, attributes, settings)


def check_joint_kind(settings: ModelSettings) -> None:
    """Refuse a joint head that is not registered."""
    kind = settings.joint.kind
    if kind not in JOINT_HEADS:
        raise InputError(f"there is no joint head '{kind}'; model.joint.kind is one of {', '.join(JOINT_HEADS)}.")


@register_joint_head("concatenation")
class ConcatenationHead(JointHead):
    """The paper's f_cj: FC(hidden)-Dropout-FC(|A|)-Dropout on <e_g, e_l,1, ..., e_l,t, 0, ...>.

    The first layer has one block of weights per step, so step t adds W_t e_l,t to a sum; zeros add nothing.
    """

    def __init__(self, channels: int, attributes: int, settings: ModelSettings) -> None:
        super().__init__(channels, attributes, settings)
        hidden, dropout = settings.joint.hidden, settings.dropout
        self.first = nn.Linear(channels * (settings.steps + 1), hidden)
        self.rest = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, attributes), nn.Dropout(dropout))
        self.channels = channels

    def start(self, e_g: Tensor) -> JointState:
        of_global = F.linear(e_g, self._block(0), self.first.bias)
        return JointState(of_global, torch.zeros_like(of_global), of_global.new_zeros(of_global.shape[0], 1))

    def add(self, state: JointState, e_l: Tensor, step: int) -> JointState:
        return state._replace(total=state.total + F.linear(e_l, self._block(step + 1)))

    def read(self, state: JointState) -> Tensor:
        return self.rest(state.of_global + state.total)

    def _block(self, number: int) -> Tensor:
        return self.first.weight[:, number * self.channels : (number + 1) * self.channels]


@register_joint_head("attention")
class AttentionHead(JointHead):
    """Reads every attribute where it is visible.

    A locality predicts the attributes and, for each, how far to trust it here:
    a_j = W e_g + sum_t exp(s g_t) a_t / (1 + sum_t exp(s g_t)), attribute by attribute. It does not depend on the
    order, and `trust` says which window decided which attribute. The 1 is a window that was not selected and that
    says nothing: without it, the only one selected would count in full, however little it shows. The sharpness s
    makes g be learned s times faster than the rest. Now and then training hides e_g, or shows that of a similar
    image in its place, so that the localities have to carry the prediction.
    """

    limit = 8.0  # exp stays within float16

    def __init__(self, channels: int, attributes: int, settings: ModelSettings) -> None:
        super().__init__(channels, attributes, settings)
        joint = settings.joint
        self.sharpness = joint.sharpness
        self.of_global = nn.Linear(channels, attributes)
        self.of_local = nn.Linear(channels, attributes)
        self.trust = nn.Linear(channels, attributes)
        self.dropout = nn.Dropout(settings.dropout)
        self.swap_global, self.drop_global = SwapRows(joint.global_swap), DropRows(joint.global_dropout)
        nn.init.zeros_(self.trust.weight)
        nn.init.zeros_(self.trust.bias)

    def start(self, e_g: Tensor) -> JointState:
        of_global = self.drop_global(self.of_global(self.swap_global(e_g)))
        return JointState(of_global, torch.zeros_like(of_global), torch.ones_like(of_global))

    def add(self, state: JointState, e_l: Tensor, step: int) -> JointState:
        weight = (self.sharpness * self.trust(e_l)).clamp(-self.limit, self.limit).exp()
        return JointState(state.of_global, state.total + weight * self.of_local(e_l), state.weight + weight)

    def read(self, state: JointState) -> Tensor:
        return self.dropout(state.of_global + state.total / state.weight)

    def parts(self, e_g: Tensor, e_l: Tensor) -> Tensor:
        weight = (self.sharpness * self.trust(e_l)).clamp(-self.limit, self.limit).exp()
        share = weight / (1 + weight.sum(dim=1, keepdim=True))
        return torch.cat([self.of_global(e_g)[:, None], share * self.of_local(e_l)], dim=1)


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
