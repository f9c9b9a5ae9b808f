"""Fusion: fold norms into convolutions, and activations too, for prediction alone; the same answers in fewer steps."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.experimental.optimization import fuse as fold_norms
from torch.fx.proxy import TraceError

from erpcnet.model.local_subnets import WindowSubnet
from erpcnet.model.network import ERPCNet
from erpcnet.model.policy import flatten_recurrent_weights
from erpcnet.utils.runtime import Runtime

ADDITIONS = (operator.add, operator.iadd, torch.add)
RELUS = (torch.relu, F.relu, "relu", "relu_")
# cuDNN's fused kernels are slow on the few channels of an image.
MIN_CHANNELS = 8


def fuse(network: ERPCNet, precision: torch.dtype | None = None) -> ERPCNet:
    """Fold batch norms into the convolutions before them; on a GPU in half precision, fuse what follows with them too.

    In place, and for good: a fused network neither trains nor gives back the weights that it was loaded from. Norms
    that tracing does not find as modules of their own, as in some backbones of timm, stay.

    Args:
        network: A trained network, where it will run.
        precision: That its convolutions will run in on a GPU (see `erpcnet.utils.runtime`), in which their weights are
            then kept; None is fp32.

    Returns:
        The same network.
    """
    network.eval().requires_grad_(False)
    flatten_recurrent_weights(network)
    parts: list[tuple[nn.Module, str]] = [(network.backbone, "trunk"), (network.backbone, "last")]
    if network.local is not None:
        if isinstance(network.local, WindowSubnet):
            network.local.partial.skip_idle_branch()
        parts += [(network.local, name) for name in ("partial", "extractor") if hasattr(network.local, name)]
    half = precision if next(network.parameters()).is_cuda else None
    folded = [_folded(getattr(holder, name)) for holder, name in parts]
    _put(parts, folded)
    if half is not None:
        _cast(folded, half)
        _put(parts, [fuse_activations(part) for part in folded])
        if not _runs(network, half):
            _put(parts, folded)
    return network


def _put(places: Iterable[tuple[nn.Module, str]], parts: Iterable[nn.Module]) -> None:
    for (holder, name), part in zip(places, parts, strict=True):
        setattr(holder, name, part)


def _cast(parts: Iterable[nn.Module], precision: torch.dtype) -> None:
    """The weights of what autocast would cast at every call; norms that could not be folded stay as they are."""
    for part in parts:
        for module in part.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(precision)


@torch.inference_mode()
def _runs(network: ERPCNet, precision: torch.dtype) -> bool:
    """Whether this GPU has the kernels that fused convolutions need."""
    device = next(network.parameters()).device
    side = network.zoom * network.image_size
    images = torch.zeros(1, 3, side, side, device=device)
    try:
        with Runtime(precision).autocast():
            source = network.glance(images.contiguous(memory_format=torch.channels_last)).source
            if network.steps:
                network.embed_localities(source, torch.zeros(1, 1, dtype=torch.long, device=device))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return False
    return True


def _folded(part: nn.Module) -> nn.Module:
    try:
        traced = fx.symbolic_trace(part)
    except (TraceError, TypeError, RuntimeError):  # control flow, loops over shapes or len(), as in some of timm's
        return part
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    convolutions = [name for name in called if isinstance(traced.get_submodule(str(name)), nn.Conv2d)]
    if len(set(convolutions)) < len(convolutions):  # a norm behind each call would be folded into the same weights
        return part
    return fold_norms(part)


class FusedConvolution(nn.Module):
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
        if not value.is_cuda or torch.compiler.is_exporting():  # torch.export does not know cuDNN's fused kernels
            found = F.conv2d(value, self.weight, self.bias, *self._how)
            return torch.relu(found if added is None else found + added)
        if added is None:
            return torch.cudnn_convolution_relu(value, self.weight, self.bias, *self._how)
        return torch.cudnn_convolution_add_relu(value, self.weight, added, 1.0, self.bias, *self._how)


def fuse_activations(part: nn.Module) -> nn.Module:
    """A copy with every convolution fused with the relu, or the sum and the relu, that alone takes what it gives.

    What is not traced stays as it is.
    """
    if not isinstance(part, fx.GraphModule):
        return part
    traced = copy.deepcopy(part)
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        convolution = modules.get(node.target) if node.op == "call_module" else None
        if not (isinstance(convolution, nn.Conv2d) and _fusible(convolution)):
            continue
        last, added = _following(node, modules)
        if last is None:
            continue
        name, fused = f"fused_{node.name}", FusedConvolution(convolution)
        for other in added:
            fused.take_bias(_convolution_before(other, modules))
        traced.add_submodule(name, fused)
        with traced.graph.inserting_before(last):
            last.replace_all_uses_with(traced.graph.call_module(name, (node.args[0], *added)))
        traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _fusible(convolution: nn.Conv2d) -> bool:
    plain = convolution.padding_mode == "zeros" and not isinstance(convolution.padding, str) and convolution.groups == 1
    return plain and convolution.bias is not None and convolution.in_channels >= MIN_CHANNELS


def _following(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[fx.Node | None, list[fx.Node]]:
    """The relu that ends what can be fused with this convolution, if there is one, and what is added on the way."""
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
