"""A network for prediction alone: fewer and cheaper steps for the same answers."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse as fold_norms
from torch.fx.proxy import TraceError

from erpcnet.model.network import ERPCNet

ADDITIONS = (operator.add, operator.iadd, torch.add)
RELUS = (torch.relu, F.relu, "relu", "relu_")
# cuDNN's joined kernels are slow on the few channels of an image.
LEAST_CHANNELS = 8


def freeze(network: ERPCNet) -> ERPCNet:
    """Fold batch norms into the convolutions before them; on a GPU in half precision, join what follows to them too.

    There weights are kept in the precision they are used in. In place, and for good: a frozen network neither trains
    nor gives back the weights that it was loaded from. Norms that tracing does not find as modules of their own, as in
    some backbones of timm, stay.
    """
    network.eval().requires_grad_(False)
    parts: list[tuple[nn.Module, str]] = [(network.backbone, "trunk"), (network.backbone, "last")]
    if network.local is not None:
        parts += [(network.local, name) for name in ("partial", "extractor") if hasattr(network.local, name)]
    half = next(network.parameters()).is_cuda and network.precision is not None
    folded = [_folded(getattr(holder, name)) for holder, name in parts]
    _put(parts, folded)
    if half:
        _cast(folded, network.precision)
        _put(parts, [join_convolutions(part) for part in folded])
        if not _runs(network):
            _put(parts, folded)
    return network


def _put(places: Iterable[tuple[nn.Module, str]], parts: Iterable[nn.Module]) -> None:
    for (holder, name), part in zip(places, parts, strict=True):
        setattr(holder, name, part)


def _cast(parts: Iterable[nn.Module], precision: torch.dtype | None) -> None:
    """The weights of what autocast would cast at every call; norms that could not be folded stay as they are."""
    for part in parts:
        for module in part.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(precision)


@torch.inference_mode()
def _runs(network: ERPCNet) -> bool:
    """Whether this GPU has the kernels that joined convolutions need."""
    device = next(network.parameters()).device
    images = torch.zeros(1, 3, network.image_size, network.image_size, device=device)
    try:
        surface = network.glance(images.contiguous(memory_format=torch.channels_last)).surface
        if network.steps:
            network.look(surface, torch.zeros(1, 1, dtype=torch.long, device=device))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False
    return True


def _folded(part: nn.Module) -> nn.Module:
    try:
        fx.symbolic_trace(part)
    except (TraceError, TypeError):  # control flow, or loops over shapes, as in some backbones of timm
        return part
    return fold_norms(part)


class JoinedConvolution(nn.Module):
    """relu(convolution + bias + added) as one kernel on a GPU; apart, each of them passes over the whole map."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        assert not isinstance(convolution.padding, str)
        self._how = (convolution.stride, convolution.padding, convolution.dilation, convolution.groups)

    def take_bias(self, other: nn.Conv2d | None) -> None:
        """Add the bias of the convolution that gives what is added, so that it need not."""
        if other is not None and other.bias is not None and self.bias is not None:
            self.bias, other.bias = nn.Parameter(self.bias + other.bias, requires_grad=False), None

    def forward(self, value: Tensor, added: Tensor | None = None) -> Tensor:
        if not value.is_cuda:
            found = F.conv2d(value, self.weight, self.bias, *self._how)
            return torch.relu(found if added is None else found + added)
        if added is None:
            return torch.cudnn_convolution_relu(value, self.weight, self.bias, *self._how)
        return torch.cudnn_convolution_add_relu(value, self.weight, added, 1.0, self.bias, *self._how)


def join_convolutions(part: nn.Module) -> nn.Module:
    """A copy with every convolution joined to the relu, or the sum and the relu, that alone takes what it gives.

    What is not traced stays as it is.
    """
    if not isinstance(part, fx.GraphModule):
        return part
    traced = copy.deepcopy(part)
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        convolution = modules.get(node.target) if node.op == "call_module" else None
        if not (isinstance(convolution, nn.Conv2d) and _joinable(convolution)):
            continue
        last, added = _following(node, modules)
        if last is None:
            continue
        name, joined = f"joined_{node.name}", JoinedConvolution(convolution)
        for other in added:
            joined.take_bias(_convolution_before(other, modules))
        traced.add_submodule(name, joined)
        with traced.graph.inserting_before(last):
            last.replace_all_uses_with(traced.graph.call_module(name, (node.args[0], *added)))
        traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _joinable(convolution: nn.Conv2d) -> bool:
    plain = convolution.padding_mode == "zeros" and not isinstance(convolution.padding, str) and convolution.groups == 1
    return plain and convolution.bias is not None and convolution.in_channels >= LEAST_CHANNELS


def _following(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[fx.Node | None, list[fx.Node]]:
    """The relu that ends what can be joined to this convolution, if there is one, and what is added on the way."""
    after = _only_user(node)
    if after is None or _is_relu(after, modules):
        return after, []
    if after.target in ADDITIONS and len(after.args) == 2 and not after.kwargs:
        added = [other for other in after.args if other is not node]
        end = _only_user(after)
        if len(added) == 1 and isinstance(added[0], fx.Node) and end is not None and _is_relu(end, modules):
            return end, [added[0]]
    return None, []


def _convolution_before(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Conv2d | None:
    """The convolution that gives this to one user alone, as on the way past a block that halves the map."""
    found = modules.get(str(node.target)) if node.op == "call_module" else None
    alone = len(node.users) == 1 and sum(other.target == node.target for other in node.graph.nodes) == 1
    return found if isinstance(found, nn.Conv2d) and alone else None


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules.get(str(node.target)), nn.ReLU)
    return node.target in RELUS
