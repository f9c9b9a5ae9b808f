from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import hmean
from sklearn.metrics import recall_score

import erpcnet
from erpcnet.errors import InputError


def _drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    seen = np.array([True, False, True, True, False, False, True])
    labels = np.concatenate([np.arange(7), random.integers(0, 7, 60)])
    scores = random.normal(size=(67, 7)) + 1.2 * np.eye(7)[labels] + seen
    return scores, labels, seen


def test_three_hundred_matrices_against_plain_numpy() -> None:
    for seed in range(300):
        scores, labels, seen = _drawn(seed)
        delta = float(np.random.default_rng(seed).uniform(-1, 3))
        found = erpcnet.gzsl_metrics(scores, labels, seen, delta)

        def accuracy(answers: np.ndarray, kind: np.ndarray, labels: np.ndarray = labels) -> float:
            return sum((answers[labels == label] == label).mean() for label in np.flatnonzero(kind)) / kind.sum()

        answers = (scores - delta * seen).argmax(axis=1)
        u, s = accuracy(answers, ~seen), accuracy(answers, seen)
        among_unseen = np.flatnonzero(~seen)[scores[:, ~seen].argmax(axis=1)]
        expected = (accuracy(among_unseen, ~seen), u, s, 2 * u * s / (u + s) if u + s else 0.0)
        assert (found.t1, found.u, found.s, found.h) == pytest.approx(expected, abs=1e-7), seed


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delta", [None, 0.8])
def test_the_best_delta_against_a_sweep(seed: int, delta: float | None) -> None:
    scores, labels, seen = _drawn(seed)
    found = erpcnet.gzsl_metrics(scores, labels, seen, delta)

    def recall(rows: np.ndarray, shifted: np.ndarray) -> float:
        own = labels[rows]
        return float(recall_score(own, shifted[rows].argmax(axis=1), labels=np.unique(own), average="macro"))

    of_seen = seen[labels]
    shifted = scores - (delta or 0) * seen
    assert found.u == pytest.approx(recall(~of_seen, shifted))
    assert found.s == pytest.approx(recall(of_seen, shifted))
    assert found.h == pytest.approx(hmean([found.u, found.s]) if found.u * found.s else 0)
    assert found.t1 == pytest.approx(recall(~of_seen, np.where(seen, -np.inf, scores)))
    for label, accuracy in found.per_class.items():
        assert accuracy == pytest.approx(np.mean(shifted[labels == label].argmax(axis=1) == label))
    steps = np.linspace(0, 6, 3001)[:, None, None]
    right = (scores - steps * seen).argmax(axis=2) == labels  # [steps, images]
    of_class = {label: right[:, labels == label].mean(axis=1) for label in np.unique(labels)}
    u, s = (np.mean([of_class[label] for label in np.flatnonzero(kind)], axis=0) for kind in (~seen, seen))
    sweep = 2 * u * s / np.maximum(u + s, 1e-12)
    assert found.h_best == pytest.approx(sweep.max(), abs=1e-9)
    at_best = erpcnet.gzsl_metrics(scores, labels, seen, found.delta_best)
    assert at_best.h == pytest.approx(found.h_best)
    assert at_best.ausuc == pytest.approx(found.ausuc)


def test_torch_and_columns_are_as_good() -> None:
    scores, labels, seen = _drawn(0)
    expected = erpcnet.gzsl_metrics(scores, labels, seen)
    assert erpcnet.gzsl_metrics(torch.from_numpy(scores), torch.from_numpy(labels), np.flatnonzero(seen)) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array([0, 1])}, r"scores are \(67, 7\) and labels \(2,\)"),
        ({"labels": np.full(67, 9)}, "a label is none of the 7 columns"),
        ({"seen": np.array([True])}, "one value for each of the 7 classes"),
        ({"seen": np.array([8])}, "a column that there is not"),
        ({"labels": np.zeros(67, dtype=int)}, "images of seen and of unseen classes"),
        ({"scores": np.full((67, 7), np.nan)}, "no finite number"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, np.ndarray], message: str) -> None:
    scores, labels, seen = _drawn(0)
    given = {"scores": scores, "labels": labels, "seen": seen} | change
    with pytest.raises(InputError, match=message):
        erpcnet.gzsl_metrics(given["scores"], given["labels"], given["seen"])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, int, float])
def test_delta_is_any_real_number(kind: type) -> None:
    scores, labels, seen = np.eye(4), np.arange(4), np.array([True, True, False, False])
    assert erpcnet.gzsl_metrics(scores, labels, seen, delta=kind(0)).t1 == 1.0
