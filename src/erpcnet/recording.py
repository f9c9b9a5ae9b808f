"""Work recorded once as a CUDA graph and replayed: no kernel waits to be launched."""

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
WARMING = 3  # plain runs, in which libraries choose their kernels and take their memory


@contextmanager
def aside(apart: torch.cuda.Stream) -> Iterator[None]:
    """Beside the usual stream, as recordings are made: so that what comes before one runs as it will."""
    usual = torch.cuda.current_stream(apart.device)
    apart.wait_stream(usual)
    with torch.cuda.stream(apart):
        yield
    usual.wait_stream(apart)


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for each GPU: memory is shared within a stream, and torch's own is of the GPU that first recorded."""
    return torch.cuda.Stream(device)


def record(
    run: Callable[[], Result], device: torch.device, rehearsals: int = 2, pool: Pool | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """`run` as a CUDA graph of this GPU, and what a replay writes its results into.

    In rehearsals libraries choose their kernels and take their memory; what must not run for nothing is rehearsed by
    its owner, aside. Recordings with one `pool` work in the same memory, and so must never run at once.
    """
    apart = torch.cuda.Stream(device)
    for _ in range(rehearsals):
        with aside(apart):
            run()
    graph, stream = torch.cuda.CUDAGraph(), _recording_stream(device)
    # Other threads, which fetch the next images meanwhile, are none of the recording's business: hence thread_local.
    with torch.cuda.device(device), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
        result = run()
    return graph, result


class Replay(Generic[Result]):
    """A recorded function of tensors, with the places that it reads them from.

    Arguments keep their shapes, and what is returned holds until the next call, which overwrites it.
    """

    def __init__(
        self,
        run: Callable[..., Result],
        device: torch.device,
        arguments: Sequence[Tensor | None],
        rehearsals: int = 2,
        pool: Pool | None = None,
    ) -> None:
        self._held = [None if value is None else value.clone() for value in arguments]
        self._graph, self._result = record(lambda: run(*self._held), device, rehearsals, pool)

    def __call__(self, *arguments: Tensor | None) -> Result:
        for held, value in zip(self._held, arguments, strict=True):
            if (None if held is None else held.shape) != (None if value is None else value.shape):
                raise ValueError("a recorded function was called with arguments of another shape")
            if held is not None and value is not None:
                held.copy_(value)
        self._graph.replay()
        return self._result


class Recorded(Generic[Result]):
    """A function that must not be rehearsed for nothing: it runs plainly a few times and is replayed from then on.

    What waits for the GPU on its way, as someone's own backbone may, cannot be recorded, and runs plainly for good.
    """

    def __init__(self, run: Callable[..., Result], device: torch.device, pool: Pool | None = None) -> None:
        self._run, self._device, self._pool = run, device, pool
        self._apart = torch.cuda.Stream(device)
        self._calls, self._waits = 0, False
        self._replay: Replay[Result] | None = None

    @property
    def recorded(self) -> bool:
        """Whether the next call replays."""
        return self._replay is not None

    def __call__(self, *arguments: Tensor | None) -> Result:
        self._calls += 1
        if self._calls < WARMING:
            with aside(self._apart):
                return self._run(*arguments)
        if self._calls == WARMING:
            return self._last_plain_run(*arguments)
        if self._waits:
            return self._run(*arguments)
        if self._replay is None:
            self._replay = self._record(*arguments)
        return self._replay(*arguments)

    def _last_plain_run(self, *arguments: Tensor | None) -> Result:
        with aside(self._apart), _waiting() as found:
            result = self._run(*arguments)
        if found:
            self._waits = True
            warnings.warn(f"not recorded as a CUDA graph, so slower: it {found[0]}", stacklevel=3)
        return result

    def _record(self, *arguments: Tensor | None) -> Replay[Result]:
        try:
            return Replay(self._run, self._device, arguments, rehearsals=0, pool=self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch is not to be trusted with anything on the GPU after this
            told = str(error).partition("\n")[0]
            raise InputError(f"a step could not be recorded as a CUDA graph ({told}); set --graphs false.") from error


@contextmanager
def _waiting() -> Iterator[list[str]]:
    """What this thread does within that makes it wait for the GPU: a recording of that would fail."""
    found: list[str] = []
    here, before = threading.get_ident(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = warnings.showwarning

        def note(message: Warning | str, *rest: Any, **more: Any) -> None:
            told = str(message)
            if "called a synchronizing" in told:
                if threading.get_ident() == here:
                    found.append(told.partition(" (Triggered")[0])
            elif "debug mode is a prototype" not in told:
                shown(message, *rest, **more)

        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
