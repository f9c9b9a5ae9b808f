from __future__ import annotations

from functools import partial

import pytest
import torch

from erpcnet.config import JointSettings, ModelSettings
from erpcnet.errors import InputError
from erpcnet.model.heads import (
    JOINT_HEADS,
    AttentionHead,
    Compatibility,
    ConcatenationHead,
    DropRows,
    JointHead,
    JointState,
    SwapRows,
    create_joint_head,
    register_joint_head,
)


def test_concatenation_by_running_sum_is_the_zero_padded_concatenation() -> None:
    head = ConcatenationHead(5, 4, ModelSettings(joint=JointSettings(hidden=6), steps=3))
    embedding, localities = torch.randn(2, 5), torch.randn(2, 3, 5)
    found = head.prefixes(embedding, localities)
    for step in range(3):
        padded = torch.zeros(2, 20)
        padded[:, :5] = embedding
        for earlier in range(step + 1):
            padded[:, 5 * (earlier + 1) : 5 * (earlier + 2)] = localities[:, earlier]
        torch.testing.assert_close(found[:, step], head.rest(head.first(padded)))


def _attention(global_dropout: float = 0.0) -> AttentionHead:
    joint = JointSettings(global_dropout=global_dropout, global_swap=0.0, sharpness=3.0)
    return AttentionHead(5, 4, ModelSettings(joint=joint))


@torch.no_grad()
def test_attention_is_a_trust_weighted_mean_attribute_by_attribute() -> None:
    torch.manual_seed(0)
    head = _attention(global_dropout=0.5).eval()
    torch.nn.init.normal_(head.trust.weight, std=0.25)  # within the limit that keeps exp finite
    embedding, localities = torch.randn(2, 5), torch.randn(2, 3, 5)
    found = head.prefixes(embedding, localities)
    for image in range(2):
        for step in range(3):
            for attribute in range(4):
                weights = [float((3 * head.trust(localities[image, t])[attribute]).exp()) for t in range(step + 1)]
                votes = [float(head.of_local(localities[image, t])[attribute]) for t in range(step + 1)]
                expected = float(head.of_global(embedding[image])[attribute])
                expected += sum(w * v for w, v in zip(weights, votes, strict=True)) / (1 + sum(weights))
                assert float(found[image, step, attribute]) == pytest.approx(expected, abs=1e-4)


def test_trust_without_bounds_stays_finite() -> None:
    head = _attention().eval()
    torch.nn.init.constant_(head.trust.weight, 1000.0)
    found = head.prefixes(torch.randn(2, 5), torch.randn(2, 3, 5) * 100)
    assert found.isfinite().all()


def test_attention_does_not_depend_on_the_order() -> None:
    head = _attention().eval()
    torch.nn.init.normal_(head.trust.weight, std=0.25)
    embedding, localities = torch.randn(2, 5), torch.randn(2, 3, 5)
    last = head.prefixes(embedding, localities)[:, -1]
    torch.testing.assert_close(last, head.prefixes(embedding, localities.flip(1))[:, -1])


def test_drop_rows_hides_whole_images_and_only_in_training() -> None:
    drop = DropRows(0.5)
    value = torch.ones(1000, 3)
    torch.manual_seed(0)
    kept = drop(value)
    assert set(kept.sum(dim=1).tolist()) == {0.0, 3.0}
    assert 0.4 < kept.mean().item() < 0.6
    assert torch.equal(drop.eval()(value), value)


def test_swap_rows_takes_the_most_similar_image() -> None:
    torch.manual_seed(0)
    value = torch.randn(40, 3) + 5
    unit = torch.nn.functional.normalize(value - value.mean(dim=0), dim=1)

    def likeness(i: int, j: int) -> float:
        return float(unit[i] @ unit[j])

    nearest = [max((j for j in range(40) if j != i), key=partial(likeness, i)) for i in range(40)]
    assert torch.equal(SwapRows(1.0)(value), value[nearest])
    half = SwapRows(0.5)
    swapped = (half(value) != value).any(dim=1)
    assert 0 < swapped.sum() < 40
    assert torch.equal(half.eval()(value), value)
    assert torch.equal(SwapRows(1.0)(value[:1]), value[:1])  # nobody to swap with


def test_dot_is_the_papers_product_and_cosine_ignores_length() -> None:
    phi = torch.nn.functional.normalize(torch.rand(3, 4), dim=1)
    attributes = torch.randn(2, 4)
    torch.testing.assert_close(Compatibility(attributes.shape[1], "dot")(attributes, phi), attributes @ phi.T)
    cosine = Compatibility(attributes.shape[1], "cosine", scale=20)
    torch.testing.assert_close(cosine(attributes, phi), cosine(attributes * 7, phi))
    expected = torch.nn.functional.cosine_similarity(attributes[:, None], phi[None], dim=2) * 20
    torch.testing.assert_close(cosine(attributes, phi), expected)


def test_a_scale_may_stay_what_it_was_set_to() -> None:
    assert [p.requires_grad for p in Compatibility(4, learned=False).parameters()] == [False]
    assert [p.requires_grad for p in Compatibility(4).parameters()] == [True]


def test_a_cosine_may_be_taken_from_a_centre() -> None:
    phi = torch.nn.functional.normalize(torch.rand(3, 4), dim=1)
    attributes = torch.randn(2, 5, 4)
    fit = Compatibility(4, "cosine", scale=20)
    fit.centre.copy_(phi.mean(dim=0))
    expected = torch.nn.functional.cosine_similarity(attributes[:, :, None], phi - phi.mean(dim=0), dim=3) * 20
    torch.testing.assert_close(fit(attributes, phi), expected)


def test_joint_heads_are_found_by_name() -> None:
    @register_joint_head("latest")
    class Latest(JointHead):
        """Reads the latest locality alone."""

        def __init__(self, channels: int, attributes: int, settings: ModelSettings) -> None:
            super().__init__(channels, attributes, settings)
            self.predictor = torch.nn.Linear(channels, attributes)

        def start(self, e_g: torch.Tensor) -> JointState:
            return JointState(self.predictor(e_g), e_g, e_g)

        def add(self, state: JointState, e_l: torch.Tensor, step: int) -> JointState:
            return state._replace(of_global=self.predictor(e_l))

        def read(self, state: JointState) -> torch.Tensor:
            return state.of_global

    try:
        head = create_joint_head(5, 4, ModelSettings(joint=JointSettings(kind="latest")))
        localities = torch.randn(2, 3, 5)
        found = head.prefixes(torch.randn(2, 5), localities)
        assert isinstance(head, Latest)
        torch.testing.assert_close(found, head.predictor(localities))
    finally:
        del JOINT_HEADS["latest"]
    with pytest.raises(InputError, match=r"no joint head 'latest'; model\.joint\.kind is one of .*attention"):
        create_joint_head(5, 4, ModelSettings(joint=JointSettings(kind="latest")))
