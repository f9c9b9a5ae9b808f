"""How much of a GPU's memory there is to take."""

from __future__ import annotations

import torch


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that this process may still take on a GPU: what is free there, within the fraction it is allowed."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total - torch.cuda.memory_reserved(device)
    return max(0, min(free, int(allowed)))
