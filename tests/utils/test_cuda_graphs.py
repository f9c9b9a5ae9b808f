from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import Tensor

from conftest import small_network
from erpcnet.inference import Engine, Execution
from erpcnet.utils.cuda_graphs import WARMUP_RUNS, CapturedFunction, GraphedFunction, _synchronizing

WAIT = "called a synchronizing CUDA operation (Triggered internally at somewhere.)"


def test_waits_of_this_thread_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with _synchronizing() as found:
            # A loader's thread may wait as it likes.
            worker = threading.Thread(target=warnings.warn, args=(WAIT,))
            worker.start()
            worker.join()
            assert found == []
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
            warnings.warn(WAIT, stacklevel=1)
        warnings.warn("after", stacklevel=1)
    assert found == ["called a synchronizing CUDA operation"]
    assert [str(warning.message) for warning in shown] == ["something else", "after"]
    assert modes == ["warn", 0]


@pytest.mark.usefixtures("pretended_graphs")
def test_a_replay_reads_new_arguments_and_refuses_other_shapes() -> None:
    first = torch.arange(3.0)
    replay = CapturedFunction(lambda value, _: value * 2, torch.device("cpu"), [first, None])
    assert replay(torch.ones(3), None).tolist() == [2, 2, 2]
    assert first.tolist() == [0, 1, 2]  # what it holds is a copy
    for wrong in ((torch.ones(1), None), (torch.ones(3), torch.ones(3)), (None, None)):
        with pytest.raises(ValueError, match="another shape"):
            replay(*wrong)


@pytest.mark.usefixtures("pretended_graphs")
@pytest.mark.parametrize("waits", [False, True])
def test_a_function_is_captured_unless_it_waits(waits: bool) -> None:
    def run(value: Tensor) -> Tensor:
        if waits:
            warnings.warn(WAIT, stacklevel=1)
        return value + 1

    graphed = GraphedFunction(run, torch.device("cpu"))
    found = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(WARMUP_RUNS + 3):
            assert graphed.captured == (not waits and step > WARMUP_RUNS)
            found.append(float(graphed(torch.tensor(float(step)))))
    assert found == [step + 1 for step in range(WARMUP_RUNS + 3)]
    assert any("not captured as a CUDA graph" in str(warning.message) for warning in told) == waits


@pytest.mark.usefixtures("pretended_graphs")
@torch.inference_mode()
@pytest.mark.parametrize("way", ["parallel_graph", "sequential_graph", "stopping_graph"])
def test_graphs_are_kept_apart_by_size_and_copied_out(way: Execution) -> None:
    engine, usual = Engine(small_network()), Engine(small_network(), "sequential")
    drawn = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 3, 64, 64, generator=drawn) for size in (2, 3, 2)]
    found = [engine._run[way](images, None) for images in batches]
    for images, captured in zip(batches, found, strict=True):
        expected = usual.rollout(images[None]).each(lambda tensor: tensor[0])
        assert torch.equal(captured.cells, expected.cells)
        torch.testing.assert_close(captured.a_j, expected.a_j, atol=1e-4, rtol=1e-4)
    assert len(engine._graphs) == 2
