"""ESZSL and ridge regression against their equations; figures against loops; the features' cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge

from erpcnet.cli import main
from erpcnet.config import Config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.cache import cache_folder
from erpcnet.evaluation.baselines import Ridge, eszsl, evaluate_baselines, frozen_features
from erpcnet.evaluation.metrics import harmonic_mean
from erpcnet.model import ERPCNet


def test_eszsl_solves_its_equation() -> None:
    """X'X V S'S + g V S'S + l X'X V + g l V = X' Y S, where the gradient of the paper's loss is 0."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (40,), generator=generator)
    phi = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    found = eszsl(Ridge.of(features), labels, phi, (0.3, 2.0))
    gram, attributes = features.T @ features, phi.T @ phi
    g = 0.3 * torch.linalg.eigvalsh(gram).mean()
    l = 2.0 * torch.linalg.eigvalsh(attributes).mean()  # noqa: E741
    signs = torch.full((40, 5), -1.0, dtype=torch.float64)
    signs[torch.arange(40), labels] = 1
    left = gram @ found @ attributes + g * found @ attributes + l * gram @ found + g * l * found
    torch.testing.assert_close(left, features.T @ signs @ phi)


def test_ridge_is_sklearns() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    alpha = 0.7 * float(torch.linalg.eigvalsh(features.T @ features).mean())
    expected = SklearnRidge(alpha=alpha, fit_intercept=False).fit(features.numpy(), targets.numpy()).coef_.T
    torch.testing.assert_close(Ridge.of(features).solve(targets, 0.7), torch.from_numpy(expected))


def test_features_are_the_backbones_and_kept(
    tiny_config: Config, dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERPCNET_CACHE", str(Path(cache_folder(dataset)) / "apart"))
    found = frozen_features(tiny_config, dataset)
    assert len(found) == len(dataset.image_paths)
    monkeypatch.setattr(ERPCNet, "glance", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(frozen_features(tiny_config, dataset), found)
    other = replace(tiny_config, data=replace(tiny_config.data, image_size=96))
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        frozen_features(other, dataset)


def test_baselines_hang_together(
    tiny_config: Config, dataset: ZeroShotDataset, creatures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = evaluate_baselines(tiny_config, dataset)
    assert [row.method for row in rows] == ["ESZSL", "ridge, nearest class"]
    for row in rows:
        assert row.u is not None
        assert row.s is not None
        assert row.h == pytest.approx(harmonic_mean(row.u, row.s))
        assert row.u <= row.t1 + 1e-9  # among more classes nothing more is right
    chance = 1 / len(dataset.unseen)
    assert max(row.t1 for row in rows) > 1.5 * chance
    without = evaluate_baselines(tiny_config, replace(dataset, test_seen=dataset.test_seen[:0]))
    assert [(row.t1, row.h, row.delta) for row in without] == [(row.t1, None, None) for row in rows]
    words = ["baseline", "--config", "creatures", "--dataset", str(creatures), "--data.image_size", "64"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["t1"] for row in printed] == pytest.approx([row.t1 for row in rows])
    assert main(words) == 0
    assert f"{100 * rows[0].t1:.1f}" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "short", "nan"])
def test_a_damaged_feature_cache_is_computed_again(
    damage: str, tiny_config: Config, dataset: ZeroShotDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERPCNET_CACHE", str(tmp_path))
    found = frozen_features(tiny_config, dataset)
    (path,) = cache_folder(dataset).rglob("features-*.npy")
    whole = path.read_bytes()
    if damage in ("short", "nan"):
        np.save(path, found[:-1] if damage == "short" else np.full_like(found, np.nan))
    else:
        path.write_bytes({"empty": b"", "cut": whole[:-9], "header": b"x" * 40 + whole[40:]}[damage])
    np.testing.assert_allclose(frozen_features(tiny_config, dataset), found, atol=1e-4)
    assert path.read_bytes()[:40] == whole[:40]
    monkeypatch.setattr(ERPCNet, "glance", lambda *_: pytest.fail("computed again"))
    frozen_features(tiny_config, dataset)
