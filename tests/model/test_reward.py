from __future__ import annotations

import math

import pytest
import torch

from erpcnet.model.reward import rewards, steps_taken


def _softmax(scores: list[float], temperature: float) -> list[float]:
    weights = [math.exp(score / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_rewards_against_plain_loops(temperature: float) -> None:
    joint, whole = torch.randn(3, 2, 4), torch.randn(3, 4)
    labels, beta = torch.tensor([0, 3, 1]), torch.rand(3, 2) + 0.5
    found = rewards(joint, whole, labels[:, None].expand(3, 2), beta, temperature)
    for image in range(3):
        for step in range(2):
            label = int(labels[image])
            expected = _softmax(joint[image, step].tolist(), temperature)[label]
            expected += _softmax(whole[image].tolist(), temperature)[label]
            assert found[image, step].item() == pytest.approx(float(beta[image, step]) * expected, rel=1e-5)


def test_without_global_logits_the_joint_ones_count_alone() -> None:
    joint, labels, beta = torch.randn(3, 2, 4), torch.randint(4, (3, 2)), torch.rand(3, 2) + 0.5
    found = rewards(joint, None, labels, beta)
    of_joint = joint.softmax(dim=-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(found, beta * of_joint)


def test_labels_may_differ_from_step_to_step() -> None:
    joint, whole = torch.randn(2, 3, 4), torch.randn(2, 4)
    labels = torch.tensor([[0, 1, 2], [3, 3, 0]])
    found = rewards(joint, whole, labels, 1.0)
    for step in range(3):
        alone = rewards(joint[:, step : step + 1], whole, labels[:, step : step + 1], 1.0)
        torch.testing.assert_close(found[:, step], alone[:, 0])


def test_steps_end_where_the_reward_reaches_sigma() -> None:
    reward = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.5, 0.9], [0.1, 0.2, 0.3], [0.1, 0.2, 0.5]])
    assert steps_taken(reward, 0.5).tolist() == [1, 2, 3, 3]
    assert steps_taken(reward, float("inf")).tolist() == [3, 3, 3, 3]


def test_crops_may_be_an_axis_of_their_own() -> None:
    joint, whole, labels = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5), torch.randint(5, (2, 3, 4))
    found = rewards(joint, whole, labels, 1.0)
    for crop in range(2):
        torch.testing.assert_close(found[crop], rewards(joint[crop], whole[crop], labels[crop], 1.0))
        assert torch.equal(steps_taken(found, 0.6)[crop], steps_taken(found[crop], 0.6))
