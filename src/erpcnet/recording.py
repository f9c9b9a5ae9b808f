"""Work recorded once as a CUDA graph and replayed: no kernel waits to be launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Pool = Any  # what torch.cuda.graph_pool_handle gives, a type of torch's own
WARMING = 3  # plain runs, in which libraries choose their kernels and take their memory


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Beside the usual stream, where recordings are made: so that what comes before one runs as it will."""
    apart = torch.cuda.Stream(device)
    apart.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(apart):
        yield
    torch.cuda.current_stream(device).wait_stream(apart)


def record(
    run: Callable[[], Result], device: torch.device, rehearsals: int = 2, pool: Pool | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """`run` as a CUDA graph of this GPU, and what a replay writes its results into.

    In rehearsals libraries choose their kernels and take their memory; what must not run for nothing is rehearsed by
    its owner, aside. Recordings with one `pool` work in the same memory, and so must never run at once.
    """
    for _ in range(rehearsals):
        with aside(device):
            run()
    graph = torch.cuda.CUDAGraph()
    # Streams belong to a GPU: another than the current one would record nothing.
    with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool):
        result = run()
    return graph, result


class Recorded(Generic[Result]):
    """A function of tensors that runs plainly a few times and is replayed from then on.

    A recording reads and writes one place in memory: so arguments keep their shapes and are copied there, and what is
    returned holds until the next call. What cannot be recorded runs plainly for good.
    """

    def __init__(self, run: Callable[..., Result], device: torch.device, pool: Pool | None = None) -> None:
        self._run, self._device, self._pool = run, device, pool
        self._calls = 0
        self._held: list[Tensor | None] = []
        self._recording: tuple[torch.cuda.CUDAGraph, Result] | None = None

    def __call__(self, *arguments: Tensor | None) -> Result:
        self._calls += 1
        if self._calls <= WARMING:
            with aside(self._device):
                return self._run(*arguments)
        if self._calls == WARMING + 1:
            self._record(*arguments)
        if self._recording is None:
            return self._run(*arguments)
        for held, value in zip(self._held, arguments, strict=True):
            if held is not None and value is not None:
                held.copy_(value)
        graph, result = self._recording
        graph.replay()
        return result

    def _record(self, *arguments: Tensor | None) -> None:
        self._held = [None if value is None else value.clone() for value in arguments]
        try:
            self._recording = record(lambda: self._run(*self._held), self._device, 0, self._pool)
        except RuntimeError:  # it waits for the GPU on its way, as someone's own backbone may
            self._held = []
            _revive_generator(self._device)


def _revive_generator(device: torch.device) -> None:
    """A recording that failed leaves torch's generator as if it went on, in which state nothing else can draw."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())
