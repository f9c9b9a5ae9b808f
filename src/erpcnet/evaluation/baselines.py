"""Baselines in closed form on frozen features: what training has to beat.

ESZSL (Romera-Paredes and Torr, 2015) and the class nearest to attributes predicted by ridge regression. Their constants
and delta are chosen on the validation classes of all folds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.cache import cache_folder, fingerprint
from erpcnet.data.dataset import IntArray, hold_out
from erpcnet.data.loader import open_loader
from erpcnet.evaluation.delta import choose_delta
from erpcnet.evaluation.gzsl import GZSLAnswers
from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy
from erpcnet.evaluation.rollouts import Split
from erpcnet.model import ERPCNet
from erpcnet.model.fusion import fuse
from erpcnet.model.preprocessing import preprocessing_for
from erpcnet.model.scoring import ScoredRollout
from erpcnet.utils.files import write_atomically
from erpcnet.utils.progress import bar
from erpcnet.utils.runtime import Runtime, default_device

# Of the regularisation, as multiples of the features' (and attributes') mean eigenvalue.
CONSTANTS = (1e-2, 1e-1, 1.0, 1e1, 1e2)
NEVER = float("inf")


@dataclass(frozen=True)
class BaselineMetrics:
    """Figures of one baseline: shares of 1; u, s, h and delta are None without test images of seen classes.

    `constants` are those of the regularisation; `t1_validation` is the T1 on validation classes that chose them.
    """

    method: str
    t1: float
    u: float | None
    s: float | None
    h: float | None
    delta: float | None
    constants: tuple[float, ...]
    t1_validation: float


class LinearScores:
    """Logits [N, C] of a linear model on a dataset's images, as `EvaluationRollouts` are asked for them."""

    def __init__(self, dataset: ZeroShotDataset, logits: Callable[[IntArray], Tensor]) -> None:
        self.dataset, self._logits = dataset, logits
        self.seen: object | None = self if len(dataset.test_seen) else None

    def labels(self, split: Split) -> Tensor:
        """The true classes [N], as numbers of the dataset."""
        return torch.from_numpy(self.dataset.labels[self._rows(split)])

    def score(self, split: Split, classes: IntArray) -> ScoredRollout:
        """The logits of these classes, by their numbers, after a glance and no steps."""
        logits = self._logits(self._rows(split))[:, torch.from_numpy(classes)]
        return ScoredRollout(logits[None, :, None], logits.new_zeros(1, len(logits), 0), stops=False)

    def _rows(self, split: Split) -> IntArray:
        return self.dataset.test_seen if split == "seen" else self.dataset.test_unseen


@dataclass(frozen=True)
class Ridge:
    """Regularised least squares on features X [N, D], decomposed once for all targets and constants."""

    features: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Ridge:
        """features [N, D]."""
        values, vectors = torch.linalg.eigh(features.T @ features)
        return cls(features, values.clamp_min(0), vectors)

    def solve(self, targets: Tensor, constant: float) -> Tensor:
        """W [D, T] of the least ||X W - Y||^2 + c ||W||^2 for targets Y [N, T]; c is `constant` times the mean
        eigenvalue.
        """
        damped = self.values + constant * self.values.mean()
        return self.vectors @ ((self.vectors.T @ (self.features.T @ targets)) / damped[:, None])


@dataclass(frozen=True)
class OneRidge:
    """The same for one constant, without a decomposition."""

    features: Tensor

    def solve(self, targets: Tensor, constant: float) -> Tensor:
        """See `Ridge.solve`."""
        gram = self.features.T @ self.features
        damped = gram + constant * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        return torch.linalg.solve(damped, self.features.T @ targets)


def eszsl(ridge: Ridge | OneRidge, labels: Tensor, phi: Tensor, constants: tuple[float, ...]) -> Tensor:
    """ESZSL's V [D, A]: the compatibility of an image x with a class of attributes s is x V s.

    Args:
        ridge: Of the features.
        labels: [N], rows of phi.
        phi: [S, A], attributes of the seen classes.
        constants: Of the features' and of the attributes' regularisation, as multiples of their mean eigenvalues.
    """
    signs = 2 * F.one_hot(labels, len(phi)).to(phi) - 1
    gram = phi.T @ phi
    damped = gram + constants[1] * torch.trace(gram) / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(damped, (ridge.solve(signs, constants[0]) @ phi).T).T


@dataclass(frozen=True)
class LearningPoint:
    """T1 of ESZSL on frozen features with a share of what there is to learn from.

    Attributes:
        of: What there is less of: "pictures" of every seen class, or seen "classes".
        share: Of them that was used.
        t1: The mean over draws.
        spread: The standard deviation over draws; 0 where all were used.
    """

    of: str
    share: float
    t1: float
    spread: float


SHARES = (0.25, 0.5, 0.75)


def learning_curve(config: Config, dataset: ZeroShotDataset, draws: int = 3) -> list[LearningPoint]:
    """What fewer pictures, and fewer classes, would have cost: a hint at what more of them would bring.

    By ESZSL in closed form on the features of the configured backbone, with the constants chosen with all.

    Args:
        config: Backbone, image size and seed; nothing is trained.
        dataset: Whose training images are thinned out.
        draws: Random choices of pictures, or classes, for each share below 1.

    Examples:
        >>> for point in learning_curve(load_config("creatures"), read_dataset("data/creatures")):
        ...     print(point.of, point.share, point.t1)
    """
    features = _directions(config, dataset)
    phi = torch.from_numpy(dataset.unit_attributes).double()
    constants = evaluate_baselines(config, dataset)[0].constants

    def t1(rows: IntArray) -> float:
        own = replace(dataset, train=rows, test_seen=np.array([], dtype=np.int64), folds=())
        ridge = OneRidge(features[torch.from_numpy(rows)])
        labels = torch.from_numpy(np.searchsorted(own.seen, own.labels[rows]))
        model = _eszsl_model(ridge, labels, phi[torch.from_numpy(own.seen)], phi, constants)
        return _t1(LinearScores(own, lambda asked: model(features[torch.from_numpy(asked)])))

    whole, random, found = t1(dataset.train), np.random.default_rng(config.seed), []
    of_images = dataset.labels[dataset.train]
    for of in ("pictures", "classes"):
        for share in SHARES:
            tried = []
            for draw in range(draws):
                if of == "pictures":
                    rows, _ = hold_out(dataset.train, dataset.labels, 1 - share, seed=config.seed + draw)
                else:
                    some = random.permutation(dataset.seen)[: max(2, round(share * len(dataset.seen)))]
                    rows = dataset.train[np.isin(of_images, some)]
                tried.append(t1(rows))
            found.append(LearningPoint(of, share, float(np.mean(tried)), float(np.std(tried))))
        found.append(LearningPoint(of, 1.0, whole, 0.0))
    return found


Model = Callable[[Tensor], Tensor]  # features [N, D] to logits [N, C]


def _eszsl_model(
    ridge: Ridge | OneRidge, labels: Tensor, phi: Tensor, every: Tensor, constants: tuple[float, ...]
) -> Model:
    matrix = eszsl(ridge, labels, phi, constants) @ every.T
    return lambda rows: rows @ matrix


def _nearest_model(ridge: Ridge, labels: Tensor, phi: Tensor, every: Tensor, constants: tuple[float, ...]) -> Model:
    """Cosines from the mean of the seen classes, which features are made to predict."""
    centre = phi.mean(dim=0)
    weights = ridge.solve((phi - centre)[labels], constants[0])
    directions = F.normalize(every - centre, dim=1)
    return lambda rows: F.normalize(rows @ weights, dim=1) @ directions.T


METHODS = {"ESZSL": (_eszsl_model, 2), "ridge, nearest class": (_nearest_model, 1)}


def evaluate_baselines(config: Config, dataset: ZeroShotDataset) -> list[BaselineMetrics]:
    """Every baseline on the features of the configured backbone, as it comes.

    Args:
        config: Backbone, image size and crops; nothing is trained.
        dataset: Whose images are used.

    Examples:
        >>> for row in evaluate_baselines(load_config("creatures"), read_dataset("data/creatures")):
        ...     print(row.method, row.t1)
    """
    features = _directions(config, dataset)
    folds = dataset.validation(len(dataset.folds) or None, seed=config.seed)
    phi = torch.from_numpy(dataset.unit_attributes).double()

    def prepared(own: ZeroShotDataset) -> tuple[ZeroShotDataset, Ridge, Tensor]:
        place = torch.full((len(own.classes),), -1)
        place[torch.from_numpy(own.seen)] = torch.arange(len(own.seen))
        rows = torch.from_numpy(own.train)
        return own, Ridge.of(features[rows]), place[torch.from_numpy(own.labels[own.train])]

    def scores(on: tuple[ZeroShotDataset, Ridge, Tensor], method: str, constants: tuple[float, ...]) -> LinearScores:
        own, ridge, labels = on
        model = METHODS[method][0](ridge, labels, phi[torch.from_numpy(own.seen)], phi, constants)
        return LinearScores(own, lambda rows: model(features[torch.from_numpy(rows)]))

    on_folds, whole = [prepared(fold) for fold in folds], prepared(dataset)
    found = []
    for method, (_, count) in METHODS.items():
        tried = {
            constants: float(np.mean([_t1(scores(fold, method, constants)) for fold in on_folds]))
            for constants in _grid(count)
        }
        best = max(tried, key=lambda constants: tried[constants])
        chosen, final = [scores(fold, method, best) for fold in on_folds], scores(whole, method, best)
        figures: dict[str, Any] = dict.fromkeys(("u", "s", "h", "delta"))
        if final.seen is not None and all(one.seen is not None for one in chosen):
            delta = choose_delta(chosen, NEVER).chosen
            seen, unseen = (GZSLAnswers.of(final, split, NEVER) for split in ("seen", "unseen"))
            u, s = (per_class_accuracy(one.best.predict(delta), one.labels) for one in (unseen, seen))
            figures = {"u": u, "s": s, "h": harmonic_mean(u, s), "delta": delta}
        found.append(
            BaselineMetrics(method=method, t1=_t1(final), **figures, constants=best, t1_validation=tried[best])
        )
    return found


def _grid(count: int) -> Iterator[tuple[float, ...]]:
    return iter([(a, b) for a in CONSTANTS for b in CONSTANTS] if count == 2 else [(a,) for a in CONSTANTS])


def _t1(scores: LinearScores) -> float:
    classes = scores.dataset.unseen
    answers = scores.score("unseen", classes).stopped(NEVER).final.argmax(dim=1)
    return per_class_accuracy(torch.from_numpy(classes)[answers], scores.labels("unseen"))


def _directions(config: Config, dataset: ZeroShotDataset) -> Tensor:
    """Frozen features from the mean of the training images, at length 1 [N, D]."""
    features = torch.from_numpy(frozen_features(config, dataset)).double()
    return F.normalize(features - features[torch.from_numpy(dataset.train)].mean(dim=0), dim=1)


def frozen_features(config: Config, dataset: ZeroShotDataset) -> npt.NDArray[np.float32]:
    """The backbone's pooled embeddings e_g [N, D] of every image's centre crop, from the cache beside the dataset if
    they were computed before.
    """
    key = _key(config, dataset)
    path = cache_folder(dataset) / f"features-{key}.npy"
    found = _read(path, len(dataset.image_paths))
    if found is not None:
        return found
    with FileLock(path.with_suffix(".lock")):  # who comes second takes what the first has computed
        found = _read(path, len(dataset.image_paths))
        if found is None:
            found = _features(config, dataset)
            _write(path, found)
    return found


def _read(path: Path, count: int) -> npt.NDArray[np.float32] | None:
    """What was stored for so many images; None where nothing was, or it is damaged."""
    try:
        stored: npt.NDArray[np.float32] = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    whole = stored.dtype == np.float32 and stored.ndim == 2 and len(stored) == count and np.isfinite(stored).all()
    return stored if whole else None


def _features(config: Config, dataset: ZeroShotDataset) -> npt.NDArray[np.float32]:
    device, data = default_device(), config.data
    preprocessing = preprocessing_for(config.model.backbone, data.crop_share)
    loader = open_loader(dataset, data, preprocessing, device)
    runtime = Runtime.of(config.precision)
    torch.manual_seed(config.seed)  # for a backbone without weights
    network = ERPCNet(config.model, len(dataset.attribute_names), data.image_size, "globalnet").eval().to(device)
    network = fuse(network, runtime.precision)
    parts: list[Tensor] = []
    rows = np.arange(len(dataset.image_paths), dtype=np.int64)
    with torch.inference_mode(), runtime.autocast(), bar("Features", len(rows)) as advance:
        for batch in loader.centre_crops(rows, 32):
            parts.append(network.glance(batch.images).e_g.float().cpu())
            advance(len(batch.rows))
    features: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return features


def _key(config: Config, dataset: ZeroShotDataset) -> str:
    backbone = config.model.backbone
    weights = Path(backbone.weights)
    stamp: Sequence[object] = (weights.stat().st_size, weights.stat().st_mtime_ns) if weights.is_file() else ()
    decides = (
        backbone.name,
        weights.name,
        *stamp,
        *([config.seed] if backbone.weights == "none" else []),
        config.data.image_size,
        config.data.crop_share,
        config.model.pooling,
        fingerprint(dataset, config.data.stored_size),
    )
    return hashlib.sha256(repr(decides).encode()).hexdigest()[:20]


def _write(path: Path, features: npt.NDArray[np.float32]) -> None:
    from io import BytesIO

    file = BytesIO()
    np.save(file, features)
    write_atomically(path, file.getvalue())
