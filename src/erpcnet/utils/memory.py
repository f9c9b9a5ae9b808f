"""How much of a GPU's memory there is to take."""

from __future__ import annotations

import torch


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that this process may still take on a GPU: what is free there, within the fraction it is allowed."""
    number = torch.cuda.current_device() if device.index is None else device.index  # not all take a device without one
    free, total = torch.cuda.mem_get_info(number)
    allowed = torch.cuda.get_per_process_memory_fraction(number) * total - torch.cuda.memory_reserved(number)
    return max(0, min(free, int(allowed)))
