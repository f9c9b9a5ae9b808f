"""Choosing sigma, image by image; what is kept of the choices, and read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from erpcnet.errors import InputError
from erpcnet.evaluation.delta import ValidationCurve
from erpcnet.evaluation.operating_point import SIGMAS, Choice, StopChoice, choose_operating_point, choose_sigma
from erpcnet.evaluation.rejection import RejectChoice
from erpcnet.evaluation.runs import load_validation, read_validation
from erpcnet.model.scoring import OperatingPoint, ScoredRollout
from erpcnet.utils.files import write_json

STEPS, IMAGES = 4, 40


class Fold:
    """Images of three classes, whose own logit grows by `gain` from the glance to the last step, beside noise."""

    seen = None

    def __init__(self, gain: float, seed: int, policy: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.network = SimpleNamespace(policy=object() if policy else None)
        self.dataset = SimpleNamespace(seen=np.array([0, 1]), unseen=np.array([2, 4, 7]))
        self._labels = torch.tensor([2, 4, 7, 4]).repeat(IMAGES // 4)
        columns = torch.tensor([0, 1, 2, 1]).repeat(IMAGES // 4)
        noise = torch.randn(1, IMAGES, 1, 3, generator=generator)
        self._logits = noise + 0.5 * torch.randn(1, IMAGES, 1 + STEPS, 3, generator=generator)
        for step in range(1 + STEPS):
            self._logits[0, torch.arange(IMAGES), step, columns] += 0.8 + gain * step / STEPS
        # Up to more than the largest sigma that is tried, and near none of them.
        self._reward = torch.randint(0, 26, (1, IMAGES, STEPS), generator=generator) / 10 + 0.05

    def labels(self, _split: str) -> torch.Tensor:
        return self._labels

    def score(self, _split: str, classes: np.ndarray) -> ScoredRollout:
        assert classes.tolist() == [2, 4, 7]
        return ScoredRollout(self._logits, self._reward, stops=self.network.policy is not None)

    def taken(self, image: int, sigma: float) -> int:
        """Steps of an image."""
        if sigma == 0:
            return 0
        rewards = self._reward[0, image].tolist()
        return next((step for step, reward in enumerate(rewards, start=1) if reward >= sigma), STEPS)

    def right(self, sigma: float) -> list[bool]:
        found = []
        for image, label in enumerate(self._labels.tolist()):
            logits = self._logits[0, image, self.taken(image, sigma)].tolist()
            found.append([2, 4, 7][logits.index(max(logits))] == label)
        return found


def chosen_by_hand(folds: list[Fold], allowed: float) -> StopChoice:
    """Image by image: the smallest sigma from which on stopping costs no more than is allowed."""

    def counts(one: float, other: float) -> tuple[int, int]:
        pairs = [pair for fold in folds for pair in zip(fold.right(one), fold.right(other), strict=True)]
        return pairs.count((False, True)), pairs.count((True, False))

    total = IMAGES * len(folds)
    sigma = math.inf
    for smaller in sorted(SIGMAS, reverse=True):
        won, lost = counts(math.inf, smaller)
        if (lost - won + math.sqrt(lost + won)) / total > allowed:
            break
        sigma = smaller
    won, lost = counts(0.0, math.inf)
    gains = []
    for fold in folds:
        for label in (2, 4, 7):
            own = [image for image, true in enumerate(fold.labels("unseen").tolist()) if true == label]
            shares = [sum(fold.right(one)[image] for image in own) / len(own) for one in (0.0, math.inf)]
            gains.append(shares[1] - shares[0])
    if mean(gains) < -stdev(gains) / math.sqrt(len(gains)):
        sigma = 0.0
    steps = [fold.taken(image, sigma) for fold in folds for image in range(IMAGES)]
    return StopChoice(sigma, total, won, lost, *counts(math.inf, sigma), sum(steps) / len(steps), STEPS)


@pytest.mark.parametrize("allowed", [0.0, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("gains", [(2.0,), (1.0, 3.0), (0.5, -0.3), (-2.0, -1.0), (0.0,)])
def test_sigma_is_chosen_on_the_images_of_all_folds(gains: tuple[float, ...], allowed: float) -> None:
    folds = [Fold(gain, seed) for seed, gain in enumerate(gains)]
    found = choose_sigma(folds, allowed)  # type: ignore[arg-type]
    assert found is not None
    expected = chosen_by_hand(folds, allowed)
    assert found.mean_steps == pytest.approx(expected.mean_steps)
    assert found == StopChoice(**{**vars(expected), "mean_steps": found.mean_steps})
    if max(gains) < 0:  # localities turn right answers wrong
        assert (found.sigma, found.mean_steps) == (0.0, 0.0)
        assert (found.stopped_won, found.stopped_lost) == (found.lost, found.won)


def test_the_cases_are_told_apart() -> None:
    """So that the test above means something."""
    chosen = set()
    for gain, allowed in ((-2.0, 0.1), (2.0, 0.0), (2.0, 0.3), (1.0, 0.05)):
        found = choose_sigma([Fold(gain, 0)], allowed)  # type: ignore[list-item]
        assert found is not None
        chosen.add(found.sigma)
    assert {0.0, math.inf} < chosen


def test_one_class_does_not_rule_out_localities() -> None:
    """Localities turn twenty images of one class wrong, and two of each of the others right."""

    class Uneven(Fold):
        def __init__(self, others: float) -> None:
            super().__init__(0.0, 0)
            self._labels = torch.tensor([2] * 20 + [4] * 10 + [7] * 10)
            logits = torch.zeros(1, IMAGES, 1 + STEPS, 3)
            columns = torch.tensor([0] * 20 + [1] * 10 + [2] * 10)
            logits[0, torch.arange(IMAGES), :, columns] = 1.0
            logits[0, :20, 1:, 0] = -1.0
            for image in (20, 21, 30, 31):
                logits[0, image, :, columns[image]] = -1.0
                logits[0, image, 1:, columns[image]] = others
            self._logits = logits
            self._reward = torch.zeros(1, IMAGES, STEPS)

    found = choose_sigma([Uneven(1.0)], 0.1)  # type: ignore[list-item]
    assert found is not None
    # The mean over classes is (-1 + 0.2 + 0.2) / 3 = -0.2, and its standard error 0.4.
    assert (found.won, found.lost, found.sigma > 0) == (4, 20, True)
    fewer = choose_sigma([Uneven(1.0)] * 9, 0.1)  # type: ignore[list-item]
    assert fewer is not None
    assert fewer.sigma == 0  # nine folds say the same: -0.2, of which the standard error is 0.11


def test_nothing_stops_without_a_policy() -> None:
    folds: list[Any] = [Fold(2.0, 0), Fold(2.0, 1, policy=False)]
    assert choose_sigma(folds, 0.1) is None
    choice = choose_operating_point(folds[1:], None, None, 0.1)
    assert (choice.point.sigma, choice.stop) == (math.inf, None)


def test_the_glance_alone_has_one_temperature() -> None:
    """Where nothing comes after it, the end is the glance; without images of seen classes there is no delta to choose,
    and the temperature among all classes is that among the unseen ones."""
    choice = choose_operating_point([Fold(-2.0, 0)], None, None, 0.1)  # type: ignore[list-item]
    assert choice.stop is not None
    point = choice.point
    assert point.sigma == choice.stop.sigma == 0
    assert (point.delta, choice.curve, point.protocol) == (0.0, None, "validation")
    assert point.temperature[0] == pytest.approx(point.temperature[1])
    assert point.temperature_all == point.temperature
    given = choose_operating_point([Fold(-2.0, 0)], 0.7, 0.4, 0.1)  # type: ignore[list-item]
    assert (given.point.sigma, given.point.delta, given.stop) == (0.7, 0.4, None)
    assert given.point.temperature[0] == pytest.approx(point.temperature[0])
    assert given.point.temperature[1] != pytest.approx(point.temperature[1])


@pytest.mark.parametrize("sigma", [0.0, 0.7, math.inf])
def test_a_choice_of_sigma_survives_json(sigma: float) -> None:
    choice = StopChoice(sigma, 300, 12, 3, 5, 4, 2.25, 6)
    plain = json.loads(json.dumps(choice.to_json(), allow_nan=False))
    assert plain["sigma"] == (None if sigma == math.inf else sigma)
    assert StopChoice.from_json(plain) == choice
    told = choice.describe()
    assert told.startswith("on 300 validation images localities turn 12 wrong answers of the glance right, and 3 right")
    assert {
        0.0: "they do not pay here, and the glance alone is used" in told,
        0.7: "stopping at sigma 0.7 takes 2.2 of 6 steps, and turns 5 right and 4 wrong" in told,
        math.inf: "stopping early would cost too many of them, so all 6 steps are taken" in told,
    }[sigma]


@pytest.mark.parametrize("sigma", [0.0, 0.7, math.inf])
@pytest.mark.parametrize("reject", [None, -1.5, 0.0])
def test_an_operating_point_is_read_as_it_was_written(sigma: float, reject: float | None) -> None:
    point = OperatingPoint(sigma, 0.4, "validation", (1.5, 2.5), (3.5, 4.5), reject)
    plain = json.loads(json.dumps(point.to_json(), allow_nan=False))
    assert OperatingPoint.from_json(plain) == point
    assert OperatingPoint.from_json({**plain, "of a later version": 1}) == point


WHOLE = Choice(
    OperatingPoint(0.0, 0.4, "validation", reject=2.0),
    ValidationCurve((0.0, 0.5), (0.2, 0.4), (0.6, 0.5), 0.4, (0.3, 0.5), 8, 0.01),
    StopChoice(0.0, 300, 12, 30, 30, 12, 0.0, 6),
    {"a": 0.75, "b": 0.5},
    RejectChoice(2.0, 0.81, 0.42, 0.95),
)


@pytest.mark.parametrize("choice", [WHOLE, Choice(WHOLE.point)])
def test_a_runs_choices_are_read_again(choice: Choice, tmp_path: Path) -> None:
    assert read_validation(tmp_path) is None
    write_json(tmp_path / "validation.json", choice.to_json())
    found = read_validation(tmp_path)
    assert found is not None
    assert (found.curve, found.stop, found.reject) == (choice.curve, choice.stop, choice.reject)
    assert found.attribute_auc == (choice.attribute_auc or {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sigma", {"sigma": 0.5}),
        ("sigma", {**WHOLE.to_json()["sigma"], "won": "many"}),
        ("sigma", {**WHOLE.to_json()["sigma"], "more": 1}),
        ("sigma", [1, 2]),
        ("reject", {"threshold": 1.0}),
        ("reject", {**WHOLE.to_json()["reject"], "more": 1}),
        ("reject", 3.0),
        ("attribute_auc", {"a": "well"}),
        ("attribute_auc", [0.5]),
        ("delta", {**WHOLE.to_json()["delta"], "seen": [0.5]}),
        ("delta", {**WHOLE.to_json()["delta"], "deltas": [], "seen": [], "unseen": []}),
    ],
)
def test_choices_that_are_damaged_are_named(
    name: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = WHOLE.to_json()
    del stored[name]
    for damaged in ({**WHOLE.to_json(), name: value}, stored):
        write_json(tmp_path / "validation.json", damaged)
        with pytest.raises(InputError, match=r"validation\.json is damaged; nothing is said of how"):
            load_validation(tmp_path)
        assert read_validation(tmp_path) is None
        told = capsys.readouterr().err
        assert "validation.json is damaged; nothing is said of how sigma and delta were chosen" in told
        assert "into another folder writes it anew" in told
