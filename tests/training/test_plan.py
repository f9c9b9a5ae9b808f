"""What is planned of a training is what it does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from erpcnet.config import Config, Variant
from erpcnet.data import ZeroShotDataset
from erpcnet.training import Log, open_context
from erpcnet.training.pipeline import evaluate, select_operating_point, train_network
from erpcnet.training.plan import plan_training
from erpcnet.utils import progress
from erpcnet.utils.progress import planned


def phases_of(said: str) -> list[tuple[str, int]]:
    """The names of what lines of progress are of, and how many units each has, in order."""
    found = re.findall(r"^(.*): \d+ of (\d+)[;,]", said, re.MULTILINE)
    return list(dict.fromkeys((name, int(total)) for name, total in found))


@pytest.mark.parametrize(
    ("variant", "frozen"), [("erpcnet", False), ("erpcnet", True), ("hardnet", False), ("globalnet", False)]
)
def test_a_training_does_what_was_planned(
    variant: Variant,
    frozen: bool,
    tiny_config: Config,
    dataset: ZeroShotDataset,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = replace(
        tiny_config,
        variant=variant,
        stage1=replace(tiny_config.stage1, freeze_backbone=frozen),
        stage2=replace(tiny_config.stage2, crops=2),
        evaluation=replace(tiny_config.evaluation, folds=2),
    )
    context, plan = open_context(config, dataset), plan_training(config, dataset)
    expected = [(str(phase), phase.units) for phase in plan.phases]
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with planned(plan):
        choice = select_operating_point(context, Log())
        assert choice is not None
        evaluate(context, train_network(context, dataset, Log()), choice.point)
    assert phases_of(capsys.readouterr().err) == expected
    assert plan.phases == []


def test_phases_name_their_training(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    folds = plan_training(replace(tiny_config, evaluation=replace(tiny_config.evaluation, folds=2)), dataset)
    names = [str(phase) for phase in folds.phases if phase.kind == "Stage I"]
    assert names == ["Stage I, fold 1", "Stage I, fold 2", "Stage I, all seen classes"]
    given = replace(tiny_config, model=replace(tiny_config.model, sigma=0.5, delta=0.1))
    alone = [str(phase) for phase in plan_training(given, dataset).phases]
    expected = ["Stage I", "Localities of the training images", "Stage II", "Test images, seen", "Test images, unseen"]
    assert alone == expected
