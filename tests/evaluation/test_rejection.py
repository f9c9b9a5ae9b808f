"""The threshold of rejection and its AUROC, against loops over images and scikit-learn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from erpcnet.evaluation.rejection import KEPT, RejectChoice, auroc_of_unknown, choose_threshold
from erpcnet.model.scoring import ScoredRollout

SIGMA, DELTA = 0.5, 0.7


class Fold:
    """Three seen classes and some others, of which the images' own has a larger logit; in two crops, with two steps."""

    def __init__(self, unseen: int, seed: int, with_seen: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dataset = SimpleNamespace(seen=np.array([0, 2, 5]), unseen=np.array([1, 3, 4, 6, 7])[:unseen])
        self.seen = object() if with_seen else None
        self._labels, self._logits, self._reward = {}, {}, {}
        for split, classes in (("seen", self.dataset.seen), ("unseen", self.dataset.unseen)):
            labels = torch.from_numpy(classes).repeat(9)
            logits = torch.randn(2, len(labels), 3, 8, generator=generator)
            logits[:, torch.arange(len(labels)), :, labels] += 2
            self._labels[split], self._logits[split] = labels, logits
            self._reward[split] = torch.rand(2, len(labels), 2, generator=generator)

    def labels(self, split: str) -> torch.Tensor:
        return self._labels[split]

    def score(self, split: str, classes: np.ndarray) -> ScoredRollout:
        assert split == "unseen" or self.seen is not None
        return ScoredRollout(self._logits[split][..., classes], self._reward[split], stops=True)

    def largest(self, split: str, image: int, classes: list[int]) -> float:
        """The largest logit of an image where its crops stop, after delta, class by class."""
        best = -np.inf
        for number in classes:
            total = 0.0
            for crop in range(2):
                rewards = self._reward[split][crop, image].tolist()
                steps = 1 if rewards[0] >= SIGMA else 2
                total += float(self._logits[split][crop, image, steps, number]) / 2
            best = max(best, total - DELTA * (number in self.dataset.seen))
        return best

    def parted(self) -> tuple[list[float], list[float]]:
        """The largest logits of images of known and of unknown classes."""
        known: list[float] = []
        unknown: list[float] = []
        unseen = self.dataset.unseen.tolist()
        for half in (unseen[0::2], unseen[1::2]):
            classes = [*self.dataset.seen.tolist(), *half]
            for image, label in enumerate(self._labels["unseen"].tolist()):
                (known if label in half else unknown).append(self.largest("unseen", image, classes))
            if self.seen is not None:
                known += [self.largest("seen", image, classes) for image in range(len(self._labels["seen"]))]
        return known, unknown


@pytest.mark.parametrize("with_seen", [True, False])
def test_the_threshold_keeps_most_known_pictures(with_seen: bool) -> None:
    """Of all folds together; one of a single validation class has no unknown one."""
    folds = [Fold(5, 0, with_seen), Fold(1, 1, with_seen), Fold(2, 2, with_seen)]
    found = choose_threshold(folds, SIGMA, DELTA)  # type: ignore[arg-type]
    parts = [folds[0].parted(), folds[2].parted()]
    known, unknown = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    assert found is not None
    assert found.threshold == pytest.approx(np.quantile(known, 1 - KEPT), abs=1e-5)
    near = 1 / min(len(known), len(unknown))  # an image that lies on the threshold
    assert found.kept == pytest.approx(np.mean(known >= found.threshold), abs=near)
    assert found.kept == pytest.approx(KEPT, abs=0.02)
    assert found.rejected == pytest.approx(np.mean(unknown < found.threshold), abs=near)
    truth = np.repeat([1, 0], [len(known), len(unknown)])
    assert found.auroc == pytest.approx(roc_auc_score(truth, np.concatenate([known, unknown])), abs=1e-4)
    assert found.auroc > 0.6
    assert auroc_of_unknown(folds[0], SIGMA, DELTA) == pytest.approx(  # type: ignore[arg-type]
        roc_auc_score(np.repeat([1, 0], [len(part) for part in parts[0]]), np.concatenate(parts[0])), abs=1e-4
    )


def test_with_one_class_nothing_is_unknown() -> None:
    assert choose_threshold([Fold(1, 0), Fold(1, 1)], SIGMA, DELTA) is None  # type: ignore[list-item]
    assert auroc_of_unknown(Fold(1, 0), SIGMA, DELTA) is None  # type: ignore[arg-type]


def test_the_glance_alone_is_scored_by_its_own_logits() -> None:
    fold, plain = Fold(5, 0), Fold(5, 0)
    for split in ("seen", "unseen"):  # what comes after does not count
        plain._logits[split] = plain._logits[split][:, :, :1].expand(-1, -1, 3, -1)
    found, expected = (choose_threshold([one], sigma, DELTA) for one, sigma in ((fold, 0.0), (plain, SIGMA)))  # type: ignore[list-item]
    assert found is not None
    assert expected is not None
    assert found.threshold == pytest.approx(expected.threshold, abs=1e-6)
    assert found.auroc == pytest.approx(expected.auroc, abs=1e-6)


def test_a_choice_says_how_far_to_trust_it() -> None:
    choice = RejectChoice(threshold=3.25, auroc=0.8125, rejected=0.421, kept=0.95)
    assert choice.describe() == (
        "on validation classes a threshold that keeps 95% of known pictures rejects 42% of those of unknown classes "
        "(AUROC 81.2)"
    )
    assert RejectChoice(**choice.to_json()) == choice
