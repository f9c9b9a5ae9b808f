"""What unseen classes that resemble seen ones give up of their scores."""

from __future__ import annotations

import pytest
import torch

from conftest import small_network
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet, ModelSettings


def attracted(answer: str = "union", variant: str = "erpcnet") -> ERPCNet:
    network = small_network(variant, attraction=0.4, answer=answer)
    generator = torch.Generator().manual_seed(3)
    network.centre_attributes(torch.rand(5, 7, generator=generator))
    network.remember(torch.randn(5, 7, generator=generator))
    return network


def classes(count: int = 6) -> torch.Tensor:
    drawn = torch.rand(count, 7, generator=torch.Generator().manual_seed(4))
    return torch.nn.functional.normalize(drawn, dim=1)


@torch.no_grad()
def test_attraction_is_the_mean_fit_of_the_three_seen_classes_that_fit_best() -> None:
    network, phi = attracted(), classes()
    assert network.global_fit.log_scale is not None
    centre, scale = network.global_fit.centre, float(network.global_fit.log_scale.exp())
    for number, row in enumerate(phi):
        fits = [scale * float(torch.cosine_similarity(own, row - centre, dim=0)) for own in network.prototypes]
        assert float(network.attraction(phi)[number]) == pytest.approx(sum(sorted(fits)[-3:]) / 3, abs=1e-4)


@torch.no_grad()
def test_with_fewer_seen_classes_than_three_all_of_them_count() -> None:
    network, phi = attracted(), classes()
    network.remember(network.prototypes[:2])
    expected = network.global_fit(network.prototypes, phi).mean(dim=0)
    torch.testing.assert_close(network.attraction(phi), expected)


@torch.no_grad()
def test_only_unseen_classes_give_their_share_up() -> None:
    network, phi = attracted(), classes()
    seen = torch.tensor([True, False, False, True, False, False])
    handicap = network.classes(phi, seen).handicap
    assert isinstance(handicap, torch.Tensor)
    assert torch.equal(handicap != 0, ~seen)
    torch.testing.assert_close(handicap[~seen], 0.4 * network.attraction(phi)[~seen])
    assert network.with_attraction(0.0).classes(phi, seen).handicap == 0.0
    assert network.settings.attraction == 0.4
    assert small_network(attraction=0.4).classes(phi, seen).handicap == 0.0  # it has seen nothing yet


@torch.no_grad()
@pytest.mark.parametrize(
    ("answer", "often"), [("union", [2, 2]), ("growing", [1 + 1 / 6, 1 + 2 / 6]), ("joint", [1, 1])]
)
def test_what_is_added_up_is_given_up_as_often(answer: str, often: list[float]) -> None:
    network, phi = attracted(answer), classes()
    whole, joint = torch.randn(4, 7), torch.randn(4, 2, 7)
    candidates = network.classes(phi, torch.zeros(6, dtype=torch.bool))
    assert isinstance(candidates.handicap, torch.Tensor)
    plain = network.scores(whole, joint, network.with_attraction(0.0).classes(phi, torch.zeros(6, dtype=torch.bool)))
    for step, times in enumerate(often):
        expected = plain[:, step] - times * candidates.handicap
        torch.testing.assert_close(network.scores(whole, joint, candidates)[:, step], expected)
    alone = network.global_fit(whole, phi) - candidates.handicap
    torch.testing.assert_close(network.scores(whole, None, candidates), alone)


def test_what_was_seen_travels_with_the_weights() -> None:
    network, other = attracted(), small_network(attraction=0.4)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.prototypes, network.prototypes)


def test_networks_older_than_prototypes_can_be_read() -> None:
    network = small_network(attraction=0.4)
    state = {name: value for name, value in network.state_dict().items() if name != "prototypes"}
    attracted().load_state_dict(state)
    network.load_state_dict(state)
    assert network.prototypes.shape == (0, 7)
    with pytest.raises(InputError, match=r"trained without model\.attraction"):
        network.with_attraction(0.2)


def test_only_cosines_have_an_attraction() -> None:
    with pytest.raises(InputError, match=r"model.compatibility is 'cosine'"):
        ModelSettings(attraction=0.3, compatibility="dot")
    with pytest.raises(InputError, match=r"must not be negative"):
        ModelSettings(attraction=-0.1)
