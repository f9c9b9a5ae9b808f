from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import between
from erpcnet.config import Config, Variant
from erpcnet.data import ZeroShotDataset, open_cache
from erpcnet.data.transforms import centre_boxes, object_boxes, resample
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.operating_point import SIGMAS, Choice, choose_on_test, choose_operating_point, choose_sigma
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.rollouts import Split, build_test_tables, rollout_tables
from erpcnet.model import Classes, ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import rollout
from erpcnet.model.scoring import Answers, OperatingPoint, StopRule, score
from erpcnet.model.selection import default_order
from erpcnet.training import Context, Log, open_context
from erpcnet.training.context import create_network
from erpcnet.training.pipeline import evaluate, rollout_test, select_operating_point


@pytest.fixture
def context(tiny_config: Config, dataset: ZeroShotDataset) -> Context:
    return open_context(tiny_config, dataset)


def test_a_fold_holds_no_test_image(dataset: ZeroShotDataset) -> None:
    for number in range(len(dataset.folds)):
        fold = dataset.fold(number)
        used = np.concatenate([fold.train, fold.test_seen, fold.test_unseen])
        assert len(np.unique(used)) == len(used) == len(dataset.train)
        assert np.isin(used, dataset.train).all()
        assert not np.isin(fold.unseen, dataset.unseen).any()
        assert not np.isin(fold.unseen, fold.seen).any()
        assert len(fold.test_seen) > 0


def test_selection_never_reads_a_test_image(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: set[int] = set()
    original = context.loader._pixels

    def spy(rows: torch.Tensor) -> torch.Tensor:
        fed.update(rows.tolist())
        return original(rows)

    monkeypatch.setattr(context.loader, "_pixels", spy)
    choice = select_operating_point(context, Log())
    assert choice is not None
    assert choice.point.protocol == "validation"
    assert fed
    assert fed <= set(context.dataset.train.tolist())


def test_a_given_operating_point_is_used(context: Context) -> None:
    model = replace(context.config.model, sigma=0.5, delta=0.3)
    fixed = replace(context, config=replace(context.config, model=model))
    assert select_operating_point(fixed, Log()) == Choice(OperatingPoint(0.5, 0.3, "fixed"))


def test_choosing_on_test_classes_is_reported(context: Context) -> None:
    evaluation = replace(context.config.evaluation, protocol="test")
    peer = replace(context, config=replace(context.config, evaluation=evaluation))
    assert select_operating_point(peer, Log()) is None
    network = create_network(peer.config, len(peer.dataset.attribute_names)).eval()
    metrics, point = evaluate(peer, network, None)
    assert metrics.protocol == point.protocol == "test"


@pytest.mark.parametrize("variant", ["erpcnet", "rpcnet", "pcnet", "globalnet"])
def test_metrics_of_every_variant_hang_together(context: Context, variant: Variant) -> None:
    config = replace(context.config, variant=variant)
    network = create_network(config, len(context.dataset.attribute_names)).eval().to(context.device)
    tables = build_test_tables(network, context.dataset, context.loader, 32)
    rollouts = rollout_tables(network, context.dataset, tables, default_order(network, 0))
    assert rollouts.seen is not None
    delta = seen_unseen_curve(rollouts, float("inf")).best()[0]  # both kinds have right answers there, if anywhere
    metrics = measure(rollouts, OperatingPoint(float("inf"), delta, "fixed"), seed=3)
    steps = {"erpcnet": 6, "rpcnet": 6, "pcnet": 6, "globalnet": 0}[variant]
    assert metrics.mean_steps == steps
    assert len(metrics.t1_by_step) == steps
    assert metrics.t1 == pytest.approx(metrics.t1_by_step[-1] if steps else metrics.t1_global)
    assert metrics.u is not None
    assert metrics.s is not None
    assert metrics.u * metrics.s > 0 or variant == "globalnet"  # untrained, it never names a seen class right
    assert metrics.h == pytest.approx(2 * metrics.u * metrics.s / (metrics.u + metrics.s))
    assert (metrics.variant, metrics.seed) == (variant, 3)
    assert metrics.to_json()["sigma"] is None


@pytest.mark.parametrize("variant", ["erpcnet", "globalnet", "hardnet"])
@pytest.mark.parametrize(("stops", "split"), [(True, "unseen"), (True, "seen"), (False, "unseen")])
def test_logits_of_crops_are_averaged(
    tiny_config: Config, dataset: ZeroShotDataset, variant: Variant, stops: bool, split: Split
) -> None:
    rows = dataset.test_seen if split == "seen" else dataset.test_unseen
    config = replace(tiny_config, variant=variant, data=replace(tiny_config.data, test_crops=4))
    context = open_context(config, dataset)
    network = create_network(config, len(dataset.attribute_names)).eval().to(context.device)
    if network.policy is not None:  # it prefers clearly, so that rounding does not choose a cell
        network.policy.actor.weight.data.mul_(200)
    found = rollout_test(context, network, dataset)
    phi = torch.from_numpy(dataset.unit_attributes[dataset.unseen])
    sigma, scored = float("inf"), found.score(split, dataset.unseen)
    if stops and network.policy is not None:
        sigma = between(scored.reward[..., 0])
    answers = scored.stopped(sigma)
    assert (answers.steps.unique().numel() > 1) == (sigma < float("inf"))
    expected: list[Answers] = []
    for images in _four_crops(network, context, rows):
        with torch.inference_mode():
            own = rollout(network, DirectLocalities(network, images), default_order(network, 0))
            alone = score(network, own.each(lambda tensor: tensor[None]), Classes(phi))
            expected.append(alone.stopped(sigma))
    mean = torch.stack([one.final for one in expected]).mean(dim=0)
    torch.testing.assert_close(answers.final, mean, atol=1e-3, rtol=1e-3)
    assert torch.equal(answers.steps, torch.cat([one.steps for one in expected]))
    assert found.crops == measure(found, OperatingPoint(sigma, 0.0, "fixed"), seed=0).crops == 4
    for count in (1, 2):
        first = found.first_crops(count)
        assert first.crops == count
        mean = torch.stack([one.final for one in expected[:count]]).mean(dim=0)
        own_answers = first.score(split, dataset.unseen).stopped(sigma)
        torch.testing.assert_close(own_answers.final, mean, atol=1e-3, rtol=1e-3)


def _four_crops(network: ERPCNet, context: Context, rows: np.ndarray) -> list[torch.Tensor]:
    """The centre crop, the object crop, and the mirror images of both."""
    cache, size = open_cache(context.dataset, context.config.data.stored_size), context.config.data.image_size
    pixels, shapes = torch.from_numpy(cache.pixels[rows]), torch.from_numpy(cache.shapes)[rows]
    whole = centre_boxes(shapes, context.loader.preprocessing.crop_share)
    centre = resample(pixels, whole, size)
    with torch.inference_mode():
        last = network.backbone.last(network.backbone.trunk(centre))
        found = resample(pixels, object_boxes(last.clamp_min(0).sum(dim=1), whole, shapes), size)
    assert not torch.allclose(centre, found, atol=0.5)
    return [centre, found, centre.flip(3), found.flip(3)]


def test_without_test_images_of_seen_classes(context: Context) -> None:
    network = create_network(context.config, len(context.dataset.attribute_names)).eval().to(context.device)

    def measured(dataset: ZeroShotDataset) -> Metrics:
        tables = build_test_tables(network, dataset, context.loader, 32)
        rollouts = rollout_tables(network, dataset, tables, default_order(network, 0))
        return measure(rollouts, OperatingPoint(0.5, 0.3, "fixed"), seed=0)

    context.loader.settings = replace(context.loader.settings, test_crops=2)
    whole, without = (
        measured(context.dataset),
        measured(replace(context.dataset, test_seen=context.dataset.test_seen[:0])),
    )
    # AUROC tells images of unseen classes that are no candidates from all others, of which there are fewer then.
    assert without.auroc_unknown != whole.auroc_unknown
    without = replace(without, auroc_unknown=whole.auroc_unknown)
    unsaid = {"u", "s", "h", "ausuc", "ece_all", "mean_steps_all"}
    assert without == replace(whole, **dict.fromkeys(unsaid)) != whole  # type: ignore[arg-type]


@pytest.mark.parametrize(("lean", "expected"), [(1.5, 1.5), (-1.5, 0.0)])
def test_the_delta_chosen_on_test_is_the_best(lean: float, expected: float) -> None:
    """Two seen classes (0, 1) and two unseen (2, 3); the right class has 1 more than the other of its kind, and seen
    classes `lean` more than unseen ones: so the gaps are lean + 1 on images of seen classes, and lean - 1 on others."""
    found = choose_on_test(_leaning(lean), 1.0, None, 0.001)  # type: ignore[arg-type]
    assert found.delta == pytest.approx(expected)
    assert found.protocol == "test"


def _leaning(lean: float) -> object:
    class Rollouts:
        seen = object()
        network = SimpleNamespace(policy=None)
        dataset = SimpleNamespace(classes=tuple("abcd"), seen=np.array([0, 1]), unseen=np.array([2, 3]))

        def labels(self, which: str) -> torch.Tensor:
            return torch.tensor([0, 1] if which == "seen" else [2, 3])

        def score(self, which: str, classes: np.ndarray) -> SimpleNamespace:
            logits = torch.zeros(2, 4)
            logits[:, :2] += lean
            logits[torch.arange(2), self.labels(which)] += 1
            answers = Answers(logits[:, None, classes], torch.zeros(1, 2))
            return SimpleNamespace(stopped=lambda _sigma: answers)

    return Rollouts()


def test_delta_is_the_middle_of_its_plateau() -> None:
    """With the gaps 2.5 and 0.5, every delta between them is right about all images."""
    choice = choose_operating_point([_leaning(1.5), _leaning(3.5)], 1.0, None, 0.001)  # type: ignore[list-item]
    assert choice.curve is not None
    # Two seen classes are too few to say how delta grows with their number.
    assert choice.curve.by_fold == pytest.approx((1.5, 3.5), abs=0.02)
    assert choice.point.delta == choice.curve.chosen == pytest.approx(2.5, abs=0.02)
    assert choice.curve.classes == 4
    # At 2.5 one fold is at the edge of what is right for it; where both are wrong by much, H is 0.
    assert choice.curve.at(0.0)[2] == pytest.approx(0.0)
    assert choice.curve.at(2.0)[:2] == pytest.approx((0.5, 1.0))
    assert "4 validation classes in 2 folds, which ask for 1.50 to 3.50" in choice.curve.describe()


class _Crowd:
    """Images whose true class has 2 more than a Gumbel draw: with n seen classes the best of them grows like log n."""

    seen = object()
    network = SimpleNamespace(policy=None)

    def __init__(self, seen: int, unseen: int, images: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dataset = SimpleNamespace(seen=np.arange(seen), unseen=np.arange(seen, seen + unseen))
        self._labels = {
            "seen": torch.arange(seen).repeat_interleave(images),
            "unseen": torch.arange(seen, seen + unseen).repeat_interleave(images),
        }
        self._logits = {}
        for which, labels in self._labels.items():
            noise = -(-torch.rand(len(labels), seen + unseen, generator=generator).clamp_min(1e-9).log()).log()
            noise[torch.arange(len(labels)), labels] += 4
            noise[:, :seen] += 1
            self._logits[which] = noise

    def labels(self, which: str) -> torch.Tensor:
        return self._labels[which]

    def score(self, which: str, classes: np.ndarray) -> SimpleNamespace:
        answers = Answers(self._logits[which][:, None, classes], torch.zeros(1, len(self._labels[which])))
        return SimpleNamespace(stopped=lambda _sigma: answers)


def test_delta_is_extended_to_all_seen_classes() -> None:
    """A fold of 20 seen classes and 20 others says how much larger delta is to be for 40."""
    fold, whole = _Crowd(20, 20, 60, seed=0), _Crowd(40, 20, 60, seed=1)
    choice = choose_operating_point([fold], 1.0, None, 0.001)  # type: ignore[list-item]
    assert choice.curve is not None
    deltas = torch.linspace(0, 8, 801, dtype=torch.float64)

    def middle(crowd: _Crowd) -> float:
        """By brute force over delta."""
        every = np.concatenate([crowd.dataset.seen, crowd.dataset.unseen])
        means = []
        for delta in deltas:
            shares = []
            for which in ("seen", "unseen"):
                logits = crowd.score(which, every).stopped(1.0).final.clone()
                logits[:, : len(crowd.dataset.seen)] -= delta
                right = logits.argmax(dim=1) == crowd.labels(which)
                own = crowd.labels(which)
                shares.append(torch.stack([right[own == label].double().mean() for label in own.unique()]).mean())
            means.append(2 * shares[0] * shares[1] / (shares[0] + shares[1]))
        found = torch.stack(means)
        return float(deltas[found >= found.max() - 0.01].mean())

    of_fold, of_whole = middle(fold), middle(whole)
    assert of_whole > of_fold + 0.15
    assert abs(choice.point.delta - of_whole) < abs(of_fold - of_whole)
    assert choice.point.delta > of_fold


def test_the_chosen_sigma_is_the_smallest_that_costs_little() -> None:
    """Forty images right without stopping, of which sigmas below 0.5 to 1.4 turn ten wrong, and five the other way."""
    below = [round(0.5 + 0.1 * number, 1) for number in range(10)] + [0.0] * 30 + [0.75] * 5

    def right(sigma: float) -> list[bool]:
        if sigma == 0:  # the glance has all of them wrong
            return [False] * 45
        return [(sigma >= limit) == (number < 40) for number, limit in enumerate(below)]

    class Rollouts:
        network = SimpleNamespace(policy=object())
        dataset = SimpleNamespace(unseen=np.array([3, 5]))

        def labels(self, _which: str) -> torch.Tensor:
            return torch.full((45,), 3)

        def score(self, _which: str, _classes: np.ndarray) -> SimpleNamespace:
            def stopped(sigma: float) -> Answers:
                logits = torch.tensor([[1.0, 0.0] if correct else [0.0, 1.0] for correct in right(sigma)])
                return Answers(logits[:, None], torch.zeros(1, 45))

            steps = torch.full((1, 45), 3)
            return SimpleNamespace(stopped=stopped, steps=lambda _sigma: steps, reward=torch.zeros(1, 45, 6))

    def cost(sigma: float) -> float:
        pairs = list(zip(right(sigma), right(float("inf")), strict=True))
        lost, won = pairs.count((False, True)), pairs.count((True, False))
        return (lost - won + math.sqrt(lost + won)) / len(pairs)

    # By hand: with n images lost and none won, (n + sqrt(n)) / 45 is allowed up to n = 0, 1, 2 and 4.
    for allowed, expected in {0.0: 1.4, 0.05: 1.3, 0.1: 1.2, 0.15: 1.0, 2.0: SIGMAS[0]}.items():
        found = choose_sigma([Rollouts()], allowed)  # type: ignore[list-item]
        assert found is not None
        sigma = found.sigma
        assert sigma == pytest.approx(expected)
        assert (found.images, found.won, found.lost, found.mean_steps, found.steps) == (45, 40, 0, 3, 6)
        assert "localities turn 40 wrong answers of the glance right, and 0 right ones wrong" in found.describe()
        assert all(cost(larger) <= allowed for larger in SIGMAS[SIGMAS.index(sigma) :])


@pytest.mark.parametrize(("lost", "expected"), [(15, float("inf")), (18, 0.0)])
def test_the_glance_alone_is_used_where_localities_cost(lost: int, expected: float) -> None:
    """They turn ten answers right, and 15 or 18 wrong: 5 more is within a standard error of 5, and 8 more is not."""

    class Rollouts:
        network = SimpleNamespace(policy=object())
        dataset = SimpleNamespace(unseen=np.array([3, 5]))

        def labels(self, _which: str) -> torch.Tensor:
            return torch.full((60,), 3)

        def score(self, _which: str, _classes: np.ndarray) -> SimpleNamespace:
            def stopped(sigma: float) -> Answers:
                # The first `lost` are right at a glance alone, the next ten after all steps alone.
                right = [(number < lost) if sigma == 0 else lost <= number < lost + 10 for number in range(60)]
                if 0 < sigma < math.inf:
                    right = [False] * 60
                logits = torch.tensor([[1.0, 0.0] if correct else [0.0, 1.0] for correct in right])
                return Answers(logits[:, None], torch.zeros(1, 60))

            steps = torch.zeros(1, 60)
            return SimpleNamespace(stopped=stopped, steps=lambda _sigma: steps, reward=torch.zeros(1, 60, 6))

    found = choose_sigma([Rollouts()], 0.001)  # type: ignore[list-item]
    assert found is not None
    assert (found.sigma, found.won, found.lost) == (expected, 10, lost)
    assert ("the glance alone is used" in found.describe()) == (expected == 0)


@torch.inference_mode()
def test_temperatures_fit_the_validation_images_best(context: Context) -> None:
    """Against a sweep over the negative log-likelihood, image by image, after the glance and where rollouts end."""
    network = create_network(context.config, len(context.dataset.attribute_names)).eval()
    rollouts = rollout_test(context, network, context.dataset)
    found = choose_operating_point([rollouts], 0.6, 0.4, 0.001).point
    sweep = np.exp(np.linspace(np.log(0.05), np.log(50), 2000))
    dataset = context.dataset
    every = np.concatenate([dataset.seen, dataset.unseen])
    for classes, temperatures in ((dataset.unseen, found.temperature), (every, found.temperature_all)):
        splits: list[Split] = ["seen", "unseen"] if len(classes) == len(every) else ["unseen"]
        for at_the_end, temperature in enumerate(temperatures):
            losses = np.zeros(len(sweep))
            for split in splits:
                answers = rollouts.score(split, classes).stopped(0.6)
                logits = answers.final if at_the_end else answers.glance
                subtracted = 0.4 * np.isin(classes, dataset.seen) * (len(splits) > 1)
                for row, label in zip(
                    logits.double().numpy() - subtracted, rollouts.labels(split).tolist(), strict=True
                ):
                    own = row[None] / sweep[:, None]
                    losses += np.log(np.exp(own).sum(axis=1)) - own[:, int(np.flatnonzero(classes == label)[0])]
            assert temperature == pytest.approx(sweep[losses.argmin()], rel=0.01)


@torch.inference_mode()
def test_steps_among_all_classes(context: Context) -> None:
    network = create_network(context.config, len(context.dataset.attribute_names)).eval()
    rollouts, dataset = rollout_test(context, network, context.dataset), context.dataset
    every = np.concatenate([dataset.seen, dataset.unseen])
    splits: list[Split] = ["seen", "unseen"]
    sigma = between(torch.cat([rollouts.score(split, every).reward[0, :, 0] for split in splits]))
    metrics = measure(rollouts, OperatingPoint(sigma, 0.3, "fixed"), seed=0)
    taken = []
    for rows in (dataset.test_seen, dataset.test_unseen):
        for batch in context.loader.centre_crops(rows, 8):
            stop, localities = (
                StopRule(network, rollouts.classes(every), sigma),
                DirectLocalities(network, batch.images),
            )
            taken += rollout(network, localities, default_order(network, 0), stop=stop).steps.tolist()
    assert 1 < sum(taken) / len(taken) < network.steps
    assert metrics.mean_steps_all == pytest.approx(sum(taken) / len(taken), abs=0.02)
    assert metrics.mean_steps_all != metrics.mean_steps
