"""Several processes that work together: whose part of the work is whose, and what they tell each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """One process's share of work that all of them do together.

    Attributes:
        rank: Which process this is, from 0.
        processes: How many there are.

    Examples:
        >>> Share(rank=1, processes=3).part(10)
        slice(3, 6, None)
    """

    rank: int = 0
    processes: int = 1

    @classmethod
    def of_process(cls) -> Share:
        """That of the process this runs in; all of the work, if it is alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def alone(self) -> bool:
        """Whether there is nobody to share with."""
        return self.processes == 1

    def part(self, count: int) -> slice:
        """Its part of so many rows: what follows on the part of the process before it."""
        return slice(count * self.rank // self.processes, count * (self.rank + 1) // self.processes)

    def owner(self, number: int) -> int:
        """Who does the piece of work of this number."""
        return number % self.processes

    def owns(self, number: int) -> bool:
        """Whether this process does it."""
        return self.owner(number) == self.rank

    def tell(self, value: Tensor, number: int, device: torch.device) -> None:
        """Give everyone the tensor that the piece of work of this number filled; the others' is overwritten.

        Args:
            value: Contiguous, of the same shape and type everywhere.
            number: Of the piece of work; every process asks for all of them in the same order.
            device: Where processes exchange tensors.
        """
        if not self.alone:
            there = value.to(device)
            dist.broadcast(there.view(torch.uint8), self.owner(number))
            if there is not value:
                value.copy_(there)

    def exchange(self, found: dict[int, Item]) -> list[Item]:
        """The outcome of every piece of work, by its number, where each process has found some."""
        parts: list[Any] = [found]
        if not self.alone:
            parts = [None] * self.processes
            dist.all_gather_object(parts, found)
        every = {number: one for part in parts for number, one in part.items()}
        return [every[number] for number in sorted(every)]


@contextmanager
def processes_joined(device: torch.device) -> Iterator[Share]:
    """Within, the processes that a launcher such as torchrun has started exchange what they find.

    Args:
        device: Where this process computes.

    Examples:
        >>> with processes_joined(torch.device("cpu")) as share:
        ...     share.part(10)
        slice(0, 10, None)
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield Share.of_process()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Share.of_process()
    finally:
        dist.destroy_process_group()


class BatchPart:
    """The rows that a process has of a batch which several share, and what needs those of the others.

    All processes call the same methods in the same order. Gradients go through them as if one process had the batch.

    Args:
        share: Of how many processes which one this is.
        count: Rows of the whole batch.

    Attributes:
        count: Rows of the whole batch.
        own: Which of them this process has.
    """

    def __init__(self, share: Share, count: int) -> None:
        self.share, self.count, self.own = share, count, share.part(count)

    @property
    def weight(self) -> float:
        """By what to multiply a mean over its own rows, so that the mean over processes is that over the batch."""
        return (self.own.stop - self.own.start) * self.share.processes / self.count

    def total_rows(self, own: int) -> int:
        """How many rows all processes have where this one has so many: some for each image, such as its windows."""
        return own // (self.own.stop - self.own.start) * self.count

    def own_rows(self, own: int) -> slice:
        """Which of them it has, those of an image beside each other."""
        each = own // (self.own.stop - self.own.start)
        return slice(self.own.start * each, self.own.stop * each)

    def gather(self, value: Tensor) -> Tensor:
        """Its own rows [n, ...] to those of all processes."""
        whole = value.new_zeros(self.total_rows(len(value)), *value.shape[1:])
        whole[self.own_rows(len(value))] = value
        return self.sum(whole)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        return _SumOverProcesses.apply(value)

    def next_rows(self, value: Tensor) -> Tensor:
        """For each of its own rows [n, ...] the next one of the batch, and for the last the first."""
        first = value[0].contiguous()
        firsts = [torch.empty_like(first) for _ in range(self.share.processes)]
        dist.all_gather(firsts, first)
        return torch.cat([value[1:], firsts[(self.share.rank + 1) % self.share.processes][None]])


class _SumOverProcesses(torch.autograd.Function):
    """all_reduce, whose gradient is one too: what every process does with the sum counts."""

    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
