"""How exactly a GPU computes, and whether it does so alike every time: chosen by whoever runs a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from erpcnet.errors import InputError

_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)
_CONVOLUTIONS: ContextVar[torch.dtype | None] = ContextVar("convolutions", default=None)


@dataclass(frozen=True)
class Runtime:
    """How a network is run on this machine; what it computes does not depend on it, but for rounding.

    Attributes:
        precision: Of the convolutions on a GPU; None is fp32. Losses always are, heads and policy are or multiply in
            TF32, and CPUs never use less: there bf16 is about ten times slower.
        cuda_graphs: Whether training on a GPU captures its steps as CUDA graphs.

    Examples:
        >>> runtime = Runtime.of("auto")
        >>> with runtime.autocast():
        ...     network(images)
    """

    precision: torch.dtype | None = None
    cuda_graphs: bool = True

    @classmethod
    def of(cls, precision: Literal["auto", "fp32", "bf16"], cuda_graphs: bool = True) -> Runtime:
        """As settings ask for it; `auto` is bf16 on a GPU that has it."""
        able = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
        wanted = precision == "bf16" or (precision == "auto" and able)
        return cls(torch.bfloat16 if wanted else None, cuda_graphs)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Within, networks run their convolutions on a GPU in this precision (see `autocast_convolutions`)."""
        before = _CONVOLUTIONS.set(self.precision)
        try:
            yield
        finally:
            _CONVOLUTIONS.reset(before)

    @contextmanager
    def tf32(self, device: torch.device) -> Iterator[None]:
        """Within, a GPU multiplies fp32 matrices to the ten bits of TF32, if its convolutions are of half precision:
        those have seven.
        """
        before = torch.get_float32_matmul_precision()
        if self.precision is not None and device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def autocast_convolutions(like: Tensor) -> torch.autocast:
    """torch.autocast in the precision that the caller's `Runtime` asks for; on a CPU, or without one, it does nothing.

    It is entered around the convolutions alone, and left after them: so a CUDA graph never holds a cast of weights
    that was made outside of it.
    """
    precision = _CONVOLUTIONS.get()
    wanted = precision is not None and like.device.type != "cpu"
    return torch.autocast(like.device.type, dtype=precision, enabled=wanted)


def default_device() -> torch.device:
    """What `on_device` says; or else a GPU if there is one, of several processes each its own; or else the CPU."""
    chosen = _DEVICE.get()
    if chosen is not None:
        return chosen
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def on_device(name: str | torch.device | None) -> Iterator[None]:
    """Within, what is not told where to compute does so on this device; None: as it would otherwise.

    Raises:
        InputError: There is no such device, or this machine does not have it.

    Examples:
        >>> with on_device("cpu"):
        ...     default_device()
        device(type='cpu')
    """
    before = _DEVICE.set(_DEVICE.get() if name is None else check_device(name))
    try:
        yield
    finally:
        _DEVICE.reset(before)


def check_device(name: str | torch.device | None) -> torch.device:
    """A device to compute on, by its name; without one a GPU if there is one.

    Raises:
        InputError: There is no such device, or this machine does not have it.
    """
    if name is None:
        return default_device()
    try:
        if not isinstance(name, str | torch.device):
            raise TypeError
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps", "xpu") or (device.type == "cpu" and device.index):
            raise RuntimeError
    except (RuntimeError, TypeError):
        shown = str(name)[:40]
        raise InputError(f"there is no device '{shown}'; it is cpu, cuda, cuda:0, cuda:1, ... or mps.") from None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ModuleNotFoundError):
        raise InputError(f"this machine has no '{device}' that torch can use; cpu always works.") from None
    return device


def use_deterministic_algorithms() -> None:
    """From here on, the same computation on the same GPU gives the same bits, at some cost in speed.

    torch warns of what it cannot promise; the one such step here counts in whole numbers, which have no order.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
