"""What a classifier tells beside the class: how sure, after how many steps, and why."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from conftest import between, small_network
from erpcnet.config import DataSettings
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, ZeroShotClassifier
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.rollout import Rollout
from erpcnet.model.scoring import OperatingPoint, ScoredRollout, StopRule, score


def classifier(variant: str = "erpcnet", crops: int = 1, sigma: float = 0.45) -> ZeroShotClassifier:
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    network = small_network(variant, hubness=0.3)
    network.centre_attributes(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)))
    network.set_prototypes(torch.randn(5, 7, generator=torch.Generator().manual_seed(5)))
    point = OperatingPoint(sigma, 0.3, "fixed", temperature=(1.9, 1.3), temperature_all=(2.6, 2.1))
    data = DataSettings(image_size=64, test_crops=crops)  # type: ignore[arg-type]
    return ZeroShotClassifier(network, table, data, point)


def pictures(count: int = 6) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (70, 80, 3), dtype=np.uint8)) for _ in range(count)]


@torch.inference_mode()
def test_a_glance_that_localities_only_repeat_has_their_logits() -> None:
    network = small_network()
    network.joint_compatibility.load_state_dict(network.global_compatibility.state_dict())
    said = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    rollout = Rollout(
        cells=torch.zeros(1, 4, 6, dtype=torch.long),
        steps=torch.full((1, 4), 6),
        a_g=said[None],
        a_j=said[None, :, None].expand(-1, -1, 6, -1),
        beta=torch.ones(1, 4, 6),
    )
    drawn = torch.Generator().manual_seed(1)
    phi = F.normalize(torch.rand(5, 7, generator=drawn), dim=1)
    logits = score(network, rollout, Classes(phi, torch.rand(5, generator=drawn))).logits
    # So one delta and one temperature, which were chosen at the end of rollouts, are right for both.
    torch.testing.assert_close(logits[:, :, 0], logits[:, :, -1])


def test_crops_that_stopped_keep_their_logits() -> None:
    found = torch.arange(24.0).view(2, 2, 3, 2)  # two pictures in two crops, T = 2, two classes
    steps = torch.tensor([[2, 0], [1, 2]])
    expected = torch.empty(2, 3, 2)
    for image in range(2):
        for step in range(3):
            crops = [found[crop, image, min(step, int(steps[crop, image]))] for crop in range(2)]
            expected[image, step] = (crops[0] + crops[1]) / 2
    assert torch.equal(ScoredRollout(found, torch.zeros(2, 2, 2), True).answers(steps).logits, expected)


def _by_hand(network: ERPCNet, said: torch.Tensor, looked: torch.Tensor | None, phi: torch.Tensor) -> torch.Tensor:
    """The logits of every class before any bias, in float64."""
    centre = network.global_compatibility.centre.double()
    unit = F.normalize(phi.double() - centre, dim=1)
    logits = torch.zeros(len(phi), dtype=torch.float64)
    second = (network.global_compatibility, said) if looked is None else (network.joint_compatibility, looked)
    for fit, own in ((network.global_compatibility, said), second):
        assert fit.log_scale is not None
        logits += float(fit.log_scale.detach().exp()) * (unit @ F.normalize(own.double(), dim=0))
    return logits


@torch.inference_mode()
@pytest.mark.parametrize("candidates", ["unseen", "all"])
def test_the_confidence_is_one_calibrated_probability_at_every_step(candidates: Literal["unseen", "all"]) -> None:
    model = classifier()
    network, table = model.network, model.classes.select(candidates)
    seen = torch.from_numpy(table.seen)
    classes = network.classes(table.phi(), seen)
    assert isinstance(classes.bias, torch.Tensor)
    rollout = model.engine.rollout(model._crop(pictures()).images).each(lambda tensor: tensor[0])
    reward = StopRule(network, classes, 0.0).rewards(rollout)
    model = classifier(sigma=between(reward[:, 0]))
    found = model.predict(pictures(), candidates)
    assert {one.steps for one in found} > {1}
    bias = 2 * classes.bias.double() + 0.3 * (seen if candidates == "all" else torch.zeros_like(seen))
    glance, after = (2.6, 2.1) if candidates == "all" else (1.9, 1.3)
    for row, one in enumerate(found):
        told = [(one.glance_answer, one.glance_confidence), *((own.answer, own.confidence) for own in one.localities)]
        for step, (answer, confidence) in enumerate(told):
            looked, temperature = (rollout.a_j[row, step - 1], after) if step else (None, glance)
            chances = ((_by_hand(network, rollout.a_g[row], looked, table.phi()) - bias) / temperature).softmax(0)
            assert answer == table.names[int(chances.argmax())]
            assert confidence == pytest.approx(float(chances.max()), abs=1e-4)
        assert (one.name, one.confidence) == told[-1]
        assert [own.reward for own in one.localities] == pytest.approx(reward[row, : one.steps].tolist(), abs=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize(("variant", "crops"), [("erpcnet", 1), ("erpcnet", 4), ("globalnet", 2)])
def test_evidence_adds_up_to_the_logit_of_the_answer(variant: str, crops: int) -> None:
    model = classifier(variant, crops, sigma=float("inf"))
    network, table = model.network, model.classes.select("unseen")
    rollout = model.engine.rollout(model._crop(pictures()).images)
    for row, one in enumerate(model.predict(pictures(), "unseen")):
        phi = table.phi()[table.names.index(one.name)][None]
        each = []
        for a_g, a_j in zip(rollout.a_g[:, row], rollout.a_j[:, row], strict=True):
            both = _by_hand(network, a_g, a_j[-1], phi) if network.steps else None
            each.append(both if both is not None else network.global_compatibility(a_g, phi).double())
        assert sum(one.evidence.values()) == pytest.approx(float(torch.stack(each).mean()), abs=1e-3)


@pytest.mark.parametrize("size", [1e-30, 1e38])
def test_rows_that_have_no_length_are_refused(size: float) -> None:
    model = classifier()
    with pytest.raises(InputError, match=r"largest attribute of class 'odd' is .*ordinary scale"):
        model.add_classes({"odd": [size] * 7})
    model.add_classes({"even": [1e-6] * 7})
    assert all(np.isfinite(one.confidence) for one in model.predict(pictures(2), "all"))
