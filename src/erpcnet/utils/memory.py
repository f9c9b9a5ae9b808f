"""How much memory there is to take, and what it looks like when there is no more."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

# What limits the memory of a container, by cgroups of either version.
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# What a RuntimeError says of a CPU's memory, and of other devices' where it is no torch.OutOfMemoryError.
EXHAUSTED = (
    *("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "bad allocation"),
    "could not create a primitive",  # oneDNN's, where there is no room for the code of a kernel
)


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that this process may still take on a GPU: what is free there, within the fraction it is allowed."""
    number = torch.cuda.current_device() if device.index is None else device.index  # not all take a device without one
    free, total = torch.cuda.mem_get_info(number)
    allowed = torch.cuda.get_per_process_memory_fraction(number) * total - torch.cuda.memory_reserved(number)
    return max(0, min(free, int(allowed)))


def total_memory(device: torch.device) -> int | None:
    """Bytes that a process can take at most, if nobody else takes any: of a GPU, or of the machine with its swap.

    None: of other devices, which do not tell.
    """
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        return int(torch.cuda.get_per_process_memory_fraction(number) * torch.cuda.mem_get_info(number)[1])
    return _machine_memory() if device.type == "cpu" else None


def _machine_memory() -> int:
    import psutil  # of the extra for training

    memory = psutil.virtual_memory().total
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or `max`
            memory = min(memory, int(path.read_text()))
    memory += psutil.swap_memory().total
    with suppress(ImportError):  # not on Windows
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        memory = memory if limit == resource.RLIM_INFINITY else min(memory, limit)
    return int(memory)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is what torch or Python raises where memory does not suffice, on a GPU or a CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in EXHAUSTED)
