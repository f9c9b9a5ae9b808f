"""Work recorded once as a CUDA graph and replayed: no kernel waits to be launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Beside the usual stream, where recordings are made: so that what comes before one runs as it will."""
    apart = torch.cuda.Stream(device)
    apart.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(apart):
        yield
    torch.cuda.current_stream(device).wait_stream(apart)


def record(run: Callable[[], Result], device: torch.device, rehearsals: int = 2) -> tuple[torch.cuda.CUDAGraph, Result]:
    """`run` as a CUDA graph of this GPU, and what a replay writes its results into.

    In rehearsals libraries choose their kernels and take their memory; what must not run for nothing is rehearsed by
    its owner, aside.
    """
    for _ in range(rehearsals):
        with aside(device):
            run()
    graph = torch.cuda.CUDAGraph()
    # Streams belong to a GPU: another than the current one would record nothing.
    with torch.cuda.device(device), torch.cuda.graph(graph):
        result = run()
    return graph, result
