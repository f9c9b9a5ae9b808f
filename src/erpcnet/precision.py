"""How exactly a GPU computes, and whether it does so alike every time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from erpcnet.model import ERPCNet


def use_deterministic_algorithms() -> None:
    """From here on, the same computation on the same GPU gives the same bits, at some cost in speed.

    torch warns of what it cannot promise; the one such step here counts in whole numbers, which have no order.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


@contextmanager
def rough_products(network: ERPCNet) -> Iterator[None]:
    """To the ten bits of TF32, if the network's convolutions are of half precision: those have seven."""
    before = torch.get_float32_matmul_precision()
    if network.precision is not None and next(network.parameters()).is_cuda:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
