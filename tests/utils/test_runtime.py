"""Precision is the caller's, and ends where the caller says."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from conftest import small_network
from erpcnet.utils.runtime import Runtime, autocast_convolutions


class _OnGpu:
    """What `autocast_convolutions` asks of a tensor, as if it lay on a GPU."""

    device = torch.device("cuda")


def asked_for() -> torch.dtype | None:
    """The precision that convolutions would be cast to."""
    pretended: Any = autocast_convolutions(_OnGpu())  # type: ignore[arg-type]
    dtype, enabled = pretended
    return dtype if enabled else None


@pytest.fixture
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda _kind, dtype, enabled: (dtype, enabled))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


@pytest.mark.usefixtures("_pretended")
def test_precision_holds_within_the_context() -> None:
    assert asked_for() is None
    with Runtime(torch.bfloat16).autocast():
        assert asked_for() is torch.bfloat16
        with Runtime(None).autocast():
            assert asked_for() is None
        assert asked_for() is torch.bfloat16
    assert asked_for() is None


@pytest.mark.usefixtures("_pretended")
def test_precision_is_of_one_thread() -> None:
    found: list[torch.dtype | None] = []
    with Runtime(torch.bfloat16).autocast():
        worker = threading.Thread(target=lambda: found.append(asked_for()))
        worker.start()
        worker.join()
    assert found == [None]


@pytest.mark.usefixtures("_pretended")
def test_settings_ask_for_a_precision() -> None:
    assert Runtime.of("auto").precision is torch.bfloat16
    assert Runtime.of("fp32").precision is None
    assert Runtime.of("bf16", cuda_graphs=False) == Runtime(torch.bfloat16, cuda_graphs=False)


def test_tf32_is_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    with Runtime(torch.bfloat16).tf32(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with Runtime(torch.bfloat16).tf32(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before


def test_a_cpu_computes_in_full_precision() -> None:
    network, images = small_network(), torch.randn(2, 3, 64, 64)
    with torch.no_grad(), Runtime(torch.bfloat16).autocast():
        inside = network.glance(images)
    with torch.no_grad():
        outside = network.glance(images)
    assert inside.source.dtype == torch.float32
    assert torch.equal(inside.e_g, outside.e_g)
