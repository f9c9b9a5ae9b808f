from __future__ import annotations

import torch
from torch import nn

from erpcnet.training.ema import ExponentialMovingAverage, refresh_batch_norm


def test_the_average_follows_its_definition() -> None:
    network = nn.Linear(2, 1, bias=False)
    averaged = ExponentialMovingAverage(network, decay=0.5)
    expected = network.weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            network.weight.normal_()
        averaged.update(network)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * network.weight.detach()
    torch.testing.assert_close(averaged.network.weight, expected)
    assert not averaged.network.weight.requires_grad


def test_batch_norm_statistics_become_those_of_the_images() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9))
    network.get_buffer("0.running_mean").fill_(99)
    batches = [(torch.randn(64, 3) * 2 + 5,) for _ in range(4)]
    refresh_batch_norm(network, batches)
    values = torch.stack([batch for (batch,) in batches])
    torch.testing.assert_close(network[0].running_mean, values.mean(dim=(0, 1)))
    torch.testing.assert_close(network[0].running_var, values.var(dim=1).mean(dim=0))
    assert network[0].momentum == 0.1
    assert not network.training
