"""The hubness correction: what is subtracted from unseen classes that resemble seen ones."""

from __future__ import annotations

import pytest
import torch

from conftest import small_network
from erpcnet.config import ModelSettings
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.scoring import class_logits


def corrected() -> ERPCNet:
    network = small_network(hubness=0.4)
    generator = torch.Generator().manual_seed(3)
    network.centre_attributes(torch.rand(5, 7, generator=generator))
    network.set_prototypes(torch.randn(5, 7, generator=generator))
    return network


def classes(count: int = 6) -> torch.Tensor:
    drawn = torch.rand(count, 7, generator=torch.Generator().manual_seed(4))
    return torch.nn.functional.normalize(drawn, dim=1)


@torch.no_grad()
def test_hubness_averages_three_nearest_seen_classes() -> None:
    network, phi = corrected(), classes()
    assert network.global_compatibility.log_scale is not None
    centre, scale = network.global_compatibility.centre, float(network.global_compatibility.log_scale.exp())
    for number, row in enumerate(phi):
        fits = [scale * float(torch.cosine_similarity(own, row - centre, dim=0)) for own in network.prototypes]
        assert float(network.hubness(phi)[number]) == pytest.approx(sum(sorted(fits)[-3:]) / 3, abs=1e-4)


@torch.no_grad()
def test_hubness_with_two_seen_classes() -> None:
    network, phi = corrected(), classes()
    network.set_prototypes(network.prototypes[:2])
    expected = network.global_compatibility(network.prototypes, phi).mean(dim=0)
    torch.testing.assert_close(network.hubness(phi), expected)


@torch.no_grad()
def test_only_unseen_classes_have_a_bias() -> None:
    network, phi = corrected(), classes()
    seen = torch.tensor([True, False, False, True, False, False])
    bias = network.classes(phi, seen).bias
    assert isinstance(bias, torch.Tensor)
    assert torch.equal(bias != 0, ~seen)
    torch.testing.assert_close(bias[~seen], 0.4 * network.hubness(phi)[~seen])
    assert network.classes(phi, seen, hubness=0.0).bias == 0.0
    other = network.classes(phi, seen, hubness=0.2).bias
    torch.testing.assert_close(2 * other, bias)
    assert network.settings.hubness == 0.4
    assert small_network(hubness=0.4).classes(phi, seen).bias == 0.0  # it has seen nothing yet


@torch.no_grad()
def test_the_class_bias_is_subtracted_twice() -> None:
    network, phi = corrected(), classes()
    a_g, a_j, unseen = torch.randn(4, 7), torch.randn(4, 2, 7), torch.zeros(6, dtype=torch.bool)
    candidates = network.classes(phi, unseen)
    assert isinstance(candidates.bias, torch.Tensor)
    plain = class_logits(network, a_g, a_j, network.classes(phi, unseen, hubness=0.0)).answer
    found = class_logits(network, a_g, a_j, candidates).answer
    torch.testing.assert_close(found, plain - 2 * candidates.bias)


def test_prototypes_are_stored_with_the_weights() -> None:
    network, other = corrected(), small_network(hubness=0.4)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.prototypes, network.prototypes)


def test_without_prototypes_no_other_strength_can_be_asked_for() -> None:
    with pytest.raises(InputError, match=r"trained without model\.hubness"):
        small_network().classes(classes(), torch.zeros(6, dtype=torch.bool), hubness=0.2)


def test_only_cosines_can_be_corrected() -> None:
    with pytest.raises(InputError, match=r"must be 0 where model.compatibility is 'dot'"):
        ModelSettings(hubness=0.3, compatibility="dot")
    with pytest.raises(InputError, match=r"model\.hubness is -0\.1; it must be from 0"):
        ModelSettings(hubness=-0.1)
