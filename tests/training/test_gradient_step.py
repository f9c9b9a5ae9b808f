from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from erpcnet.training.gradient_step import GradientStep, gradient_step
from erpcnet.utils.cuda_graphs import WARMUP_RUNS, GraphedFunction


class Objective(nn.Module):
    """A regression with a norm that gathers statistics; `asks` makes it fetch a number from the device."""

    def __init__(self, asks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.asks = asks

    def forward(self, inputs: Tensor, extra: Tensor | None, targets: Tensor) -> dict[str, Tensor]:
        found = self.layers(inputs) if extra is None else self.layers(inputs) + extra
        error = (found - targets).square().mean()
        scale = 1.0 + 0.0 * float(error.detach()) if self.asks else 1.0
        return {"error": error, "total": scale * error + 0.1 * found.abs().mean()}


def _batches(count: int, device: str = "cpu") -> list[tuple[Tensor, Tensor | None, Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(10, 6, generator=drawn).to(device), None, torch.randn(10, 2, generator=drawn).to(device))
        for _ in range(count)
    ]


def _train(objective: Objective, step: GradientStep, device: str) -> list[dict[str, float]]:
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1, momentum=0.9)
    history = []
    for batch in _batches(WARMUP_RUNS + 5, device):
        losses = step(*batch)
        optimizer.step()
        history.append({name: float(value) for name, value in losses.items()})
    return history


def test_gradients_are_those_of_the_last_batch_alone() -> None:
    objective = Objective()
    by_hand = copy.deepcopy(objective)
    step = gradient_step(objective)
    first, second = _batches(2)
    step(*first)
    losses = step(*second)
    by_hand(*first)  # its norm has seen both, too
    expected = by_hand(*second)
    expected["total"].backward()
    assert not losses["total"].requires_grad
    torch.testing.assert_close(losses["error"], expected["error"].detach())
    for found, wanted in zip(objective.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.gpu
def test_a_captured_step_trains_as_a_plain_one_does() -> None:
    found = []
    for graph_device in (None, torch.device("cuda")):
        objective = Objective().cuda()
        step = gradient_step(objective, graph_device=graph_device)
        history = _train(objective, step, "cuda")
        assert graph_device is None or (isinstance(step, GraphedFunction) and step.captured)
        found.append((history, objective.state_dict()))
    (plain_losses, plain), (losses, state) = found
    for one, other in zip(losses, plain_losses, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert int(state["layers.1.num_batches_tracked"]) == WARMUP_RUNS + 5  # capturing is not a step
    for name, value in plain.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_what_cannot_be_captured_trains_all_the_same() -> None:
    objective, plain = Objective(asks=True).cuda(), Objective().cuda()
    step = gradient_step(objective, graph_device=torch.device("cuda"))
    with pytest.warns(UserWarning, match="not captured as a CUDA graph"):
        _train(objective, step, "cuda")
    assert isinstance(step, GraphedFunction)
    assert not step.captured
    _train(plain, gradient_step(plain), "cuda")
    for found, wanted in zip(objective.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    # Nothing else has suffered from the attempt.
    assert torch.rand(100, device="cuda").unique().numel() > 90
    torch.cuda.empty_cache()
    again = gradient_step(plain, graph_device=torch.device("cuda"))
    _train(plain, again, "cuda")
    assert isinstance(again, GraphedFunction)
    assert again.captured


@pytest.mark.gpu
def test_a_captured_step_refuses_a_batch_of_another_size() -> None:
    objective = Objective().cuda()
    step = gradient_step(objective, graph_device=torch.device("cuda"))
    _train(objective, step, "cuda")
    inputs, _, targets = _batches(1, "cuda")[0]
    with pytest.raises(ValueError, match="another shape"):
        step(inputs[:4], None, targets[:4])
