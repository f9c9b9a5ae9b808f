"""CUDA graphs: work captured once and replayed, so that no kernel waits to be launched."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from erpcnet.errors import InputError

Result = TypeVar("Result")
Pool = Any  # what torch.cuda.graph_pool_handle gives, a type of torch's own
WARMUP_RUNS = 3  # plain runs, in which libraries choose their kernels and take their memory


@contextmanager
def side_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on another stream, as graphs are captured: so that what comes before a capture runs as it will."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for each GPU: memory is shared within a stream, and torch's own is of the GPU that first captured."""
    return torch.cuda.Stream(device)


def capture(
    run: Callable[[], Result], device: torch.device, warmups: int = 2, pool: Pool | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """`run` as a CUDA graph of this GPU, and what a replay writes its results into.

    In warm-ups libraries choose their kernels and take their memory; what must not run for nothing is warmed up by its
    owner, on a side stream. Graphs with one `pool` work in the same memory, and so must never run at once.
    """
    side = torch.cuda.Stream(device)
    for _ in range(warmups):
        with side_stream(side):
            run()
    graph, stream = torch.cuda.CUDAGraph(), _capture_stream(device)
    # Other threads, which fetch the next images meanwhile, are none of the capture's business: hence thread_local.
    with torch.cuda.device(device), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
        result = run()
    return graph, result


class CapturedFunction(Generic[Result]):
    """A function of tensors as a CUDA graph, with the memory that it reads them from.

    Arguments keep their shapes, and what is returned holds until the next call, which overwrites it.
    """

    def __init__(
        self,
        run: Callable[..., Result],
        device: torch.device,
        arguments: Sequence[Tensor | None],
        warmups: int = 2,
        pool: Pool | None = None,
    ) -> None:
        self._inputs = [None if value is None else value.clone() for value in arguments]
        self._graph, self._result = capture(lambda: run(*self._inputs), device, warmups, pool)

    def __call__(self, *arguments: Tensor | None) -> Result:
        for held, value in zip(self._inputs, arguments, strict=True):
            if (None if held is None else held.shape) != (None if value is None else value.shape):
                raise ValueError("a captured function was called with arguments of another shape")
            if held is not None and value is not None:
                held.copy_(value)
        self._graph.replay()
        return self._result


class GraphedFunction(Generic[Result]):
    """A function that must not be warmed up for nothing: it runs plainly a few times and is replayed from then on.

    What waits for the GPU on its way, as someone's own backbone may, cannot be captured, and runs plainly for good.
    """

    def __init__(self, run: Callable[..., Result], device: torch.device, pool: Pool | None = None) -> None:
        self._run, self._device, self._pool = run, device, pool
        self._side = torch.cuda.Stream(device)
        self._calls, self._synchronizes = 0, False
        self._captured: CapturedFunction[Result] | None = None

    @property
    def captured(self) -> bool:
        """Whether the next call replays."""
        return self._captured is not None

    def __call__(self, *arguments: Tensor | None) -> Result:
        self._calls += 1
        if self._calls < WARMUP_RUNS:
            with side_stream(self._side):
                return self._run(*arguments)
        if self._calls == WARMUP_RUNS:
            return self._last_plain_run(*arguments)
        if self._synchronizes:
            return self._run(*arguments)
        if self._captured is None:
            self._captured = self._capture(*arguments)
        return self._captured(*arguments)

    def _last_plain_run(self, *arguments: Tensor | None) -> Result:
        with side_stream(self._side), _synchronizing() as found:
            result = self._run(*arguments)
        if found:
            self._synchronizes = True
            warnings.warn(f"not captured as a CUDA graph, so slower: it {found[0]}", stacklevel=3)
        return result

    def _capture(self, *arguments: Tensor | None) -> CapturedFunction[Result]:
        try:
            return CapturedFunction(self._run, self._device, arguments, warmups=0, pool=self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch is not to be trusted with anything on the GPU after this
            message = str(error).partition("\n")[0]
            raise InputError(
                f"a step could not be captured as a CUDA graph ({message}); set --cuda_graphs false."
            ) from error


@contextmanager
def _synchronizing() -> Iterator[list[str]]:
    """What this thread does within that makes it wait for the GPU: a capture of that would fail."""
    found: list[str] = []
    here, before = threading.get_ident(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = warnings.showwarning

        def note(message: Warning | str, *rest: Any, **more: Any) -> None:
            text = str(message)
            if "called a synchronizing" in text:
                if threading.get_ident() == here:
                    found.append(text.partition(" (Triggered")[0])
            elif "debug mode is a prototype" not in text:
                shown(message, *rest, **more)

        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
