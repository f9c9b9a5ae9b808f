"""What a recogniser tells beside the class: how sure, after how many looks, and why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from conftest import between, small_network
from erpcnet.data.settings import DataSettings
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, Recogniser
from erpcnet.inference.recogniser import so_far
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.scoring import OperatingPoint, logits_by_step
from erpcnet.model.walk import StopRule, Walk


def recogniser(variant: str = "erpcnet", views: int = 1, sigma: float = 0.45) -> Recogniser:
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    network = small_network(variant, attraction=0.3)
    network.centre_attributes(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)))
    network.remember(torch.randn(5, 7, generator=torch.Generator().manual_seed(5)))
    point = OperatingPoint(sigma, 0.3, "fixed", temperature=(1.9, 1.3), temperature_all=(2.6, 2.1))
    data = DataSettings(image_size=64, test_views=views)  # type: ignore[arg-type]
    return Recogniser(network, table, data, point)


def pictures(count: int = 6) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (70, 80, 3), dtype=np.uint8)) for _ in range(count)]


@torch.inference_mode()
@pytest.mark.parametrize("answer", ["union", "growing", "joint"])
def test_a_glance_that_localities_only_repeat_has_their_logits(answer: str) -> None:
    network = small_network(answer=answer)
    network.joint_fit.load_state_dict(network.global_fit.state_dict())
    said = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    walk = Walk(
        cells=torch.zeros(4, 6, dtype=torch.long),
        steps=torch.full((4,), 6),
        whole=said,
        joint=said[:, None].expand(-1, 6, -1),
        beta=torch.ones(4, 6),
        localities=None,
    )
    drawn = torch.Generator().manual_seed(1)
    phi = F.normalize(torch.rand(5, 7, generator=drawn), dim=1)
    logits = logits_by_step(network, walk, Classes(phi, torch.rand(5, generator=drawn)))
    # So one delta and one temperature, which were chosen at the end of walks, are right for both.
    torch.testing.assert_close(logits[:, 0], logits[:, -1])


def test_views_that_stopped_keep_what_they_had_while_others_go_on() -> None:
    found = torch.arange(24.0).view(4, 3, 2)  # two pictures in two views, T = 2
    steps = torch.tensor([2, 0, 1, 2])
    expected = torch.empty(2, 3, 2)
    for image in range(2):
        for step in range(3):
            views = [found[view * 2 + image, min(step, int(steps[view * 2 + image]))] for view in range(2)]
            expected[image, step] = (views[0] + views[1]) / 2
    assert torch.equal(so_far(found, steps, 2), expected)


def _by_hand(network: ERPCNet, said: torch.Tensor, looked: torch.Tensor | None, phi: torch.Tensor) -> torch.Tensor:
    """The logits of every class before any bias, in float64."""
    centre = network.global_fit.centre.double()
    unit = F.normalize(phi.double() - centre, dim=1)
    logits = torch.zeros(len(phi), dtype=torch.float64)
    second = (network.global_fit, said) if looked is None else (network.joint_fit, looked)
    for fit, own in ((network.global_fit, said), second):
        assert fit.log_scale is not None
        logits += float(fit.log_scale.detach().exp()) * (unit @ F.normalize(own.double(), dim=0))
    return logits


@torch.inference_mode()
@pytest.mark.parametrize("candidates", ["unseen", "all"])
def test_the_confidence_is_one_calibrated_probability_at_every_step(candidates: str) -> None:
    model = recogniser()
    network, table = model.network, model.classes.select(candidates)
    seen = torch.from_numpy(table.seen)
    classes = network.classes(table.phi(), seen)
    assert isinstance(classes.handicap, torch.Tensor)
    walked = model.engine.walk(model._views(pictures())[0])
    reward = StopRule(0.0, classes).reward_of(network, walked)
    model = recogniser(sigma=between(reward[:, 0]))
    found = model.predict(pictures(), candidates)
    assert {one.steps for one in found} > {1}
    bias = 2 * classes.handicap.double() + 0.3 * (seen if candidates == "all" else torch.zeros_like(seen))
    glance, after = (2.6, 2.1) if candidates == "all" else (1.9, 1.3)
    for row, one in enumerate(found):
        told = [(one.first_answer, one.first_confidence), *((r.answer, r.confidence) for r in one.regions)]
        for step, (answer, confidence) in enumerate(told):
            looked, temperature = (walked.joint[row, step - 1], after) if step else (None, glance)
            chances = ((_by_hand(network, walked.whole[row], looked, table.phi()) - bias) / temperature).softmax(0)
            assert answer == table.names[int(chances.argmax())]
            assert confidence == pytest.approx(float(chances.max()), abs=1e-4)
        assert (one.name, one.confidence) == told[-1]
        assert [r.reward for r in one.regions] == pytest.approx(reward[row, : one.steps].tolist(), abs=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize(("variant", "views"), [("erpcnet", 1), ("erpcnet", 4), ("globalnet", 2)])
def test_evidence_adds_up_to_the_logit_of_the_answer(variant: str, views: int) -> None:
    model = recogniser(variant, views, sigma=float("inf"))
    network, table = model.network, model.classes.select("unseen")
    walked = model.engine.walk(model._views(pictures())[0])
    for row, one in enumerate(model.predict(pictures())):
        phi = table.phi()[table.names.index(one.name)][None]
        each = []
        for view in range(views):
            own = view * 6 + row
            looked = walked.joint[own, -1] if network.steps else None
            logit = _by_hand(network, walked.whole[own], looked, phi) if network.steps else None
            each.append(logit if logit is not None else network.global_fit(walked.whole[own], phi).double())
        assert sum(one.evidence.values()) == pytest.approx(float(torch.stack(each).mean()), abs=1e-3)


@pytest.mark.parametrize("size", [1e-30, 1e38])
def test_rows_that_have_no_length_are_refused(size: float) -> None:
    model = recogniser()
    with pytest.raises(InputError, match=r"largest attribute of class 'odd' is .*ordinary scale"):
        model.add_classes({"odd": [size] * 7})
    model.add_classes({"even": [1e-6] * 7})
    assert all(np.isfinite(one.confidence) for one in model.predict(pictures(2), "all"))
