"""How much memory there is, by whatever limits it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from erpcnet.utils import memory
from erpcnet.utils.memory import is_out_of_memory, total_memory

CPU = torch.device("cpu")


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap, limit = psutil.swap_memory().total, tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (limit,))
    machine = psutil.virtual_memory().total + swap
    for text in (None, "max\n", str(2**62)):
        if text is not None:
            limit.write_text(text)
        assert total_memory(CPU) == machine
    limit.write_text(f"{2**20}\n")
    assert total_memory(CPU) == 2**20 + swap
    assert total_memory(torch.device("meta")) is None


def test_a_limit_of_a_process_counts() -> None:
    program = (
        "import resource, torch; from erpcnet.utils.memory import total_memory; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)); "
        "large = total_memory(torch.device('cpu')); "
        "resource.setrlimit(resource.RLIMIT_AS, (2**33 + 5, 2**33 + 5)); "
        "print(large <= 2**40, min(large, 2**33 + 5) == total_memory(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_what_torch_raises_is_known() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(OSError("out of memory"))
