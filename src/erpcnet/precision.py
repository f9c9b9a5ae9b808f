"""How exactly a GPU multiplies matrices of fp32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from erpcnet.model import ERPCNet


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
