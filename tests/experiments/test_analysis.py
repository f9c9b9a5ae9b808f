"""The analyses of a run against slow references, and the page made of them."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import between
from erpcnet.cli import main
from erpcnet.config import Config, TestCrops, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.evaluation.protocol import measure
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.experiments.analyse import mistaken_pictures
from erpcnet.experiments.analysis import (
    Trajectories,
    class_records,
    embed,
    failures,
    follow,
    quickest,
    thresholds,
    was_lost,
    was_right_at_once,
    was_won,
)
from erpcnet.experiments.sheets import SHOWN, TRIED, Sheet, draw_sheet
from erpcnet.inference.examples import load_picture
from erpcnet.inference.prediction import Locality, Prediction
from erpcnet.model import ERPCNet
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import rollout
from erpcnet.model.scoring import OperatingPoint, StopRule
from erpcnet.model.selection import default_order
from erpcnet.training import Log, open_context
from erpcnet.training.pipeline import rollout_test, train_network


@pytest.fixture(scope="module")
def trained(dataset: ZeroShotDataset) -> tuple[Config, ERPCNet]:
    config = load_config(
        "creatures", data={"image_size": 64}, stage1={"epochs": 4, "batch_size": 8}, stage2={"epochs": 1}
    )
    return config, train_network(open_context(config, dataset), dataset, Log()).eval()


def rollouts_of(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset, crops: TestCrops = 1) -> EvaluationRollouts:
    config, network = trained
    return rollout_test(
        open_context(replace(config, data=replace(config.data, test_crops=crops)), dataset), network, dataset
    )


def middling(rollouts: EvaluationRollouts) -> OperatingPoint:
    """A sigma at which some images stop after the first step and some do not."""
    sigma = between(rollouts.score("unseen", rollouts.dataset.unseen).reward[..., 0])
    return OperatingPoint(sigma, 0.0, "fixed", temperature=(2.3, 1.7))


NEVER = OperatingPoint(float("inf"), 0.0, "fixed")


@pytest.mark.parametrize("crops", [1, 2])
def test_the_last_answers_are_those_of_the_evaluation(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset, crops: TestCrops
) -> None:
    rollouts = rollouts_of(trained, dataset, crops)
    for point in (middling(rollouts), NEVER):
        found, metrics = follow(rollouts, point), measure(rollouts, point, seed=0)
        assert found.right[:, -1].double().mean().item() == pytest.approx(metrics.t1_per_image)
        assert found.steps.mean().item() == pytest.approx(metrics.mean_steps)
        # As many images in every class: means over classes are means over images.
        assert found.right[:, 0].double().mean().item() == pytest.approx(metrics.t1_global)
    by_step = found.right[:, 1:].double().mean(dim=0).tolist()  # nobody stopped
    assert by_step == pytest.approx(metrics.t1_by_step)


@torch.inference_mode()
def test_answers_on_the_way_are_those_of_fewer_steps(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset) -> None:
    rollouts = rollouts_of(trained, dataset)
    found = follow(rollouts, middling(rollouts))
    assert 1 <= found.steps.min() < found.steps.max()
    network, classes = rollouts.network, rollouts.classes(dataset.unseen)
    unseen, compared = torch.from_numpy(dataset.unseen), 0
    for image, taken in enumerate(found.steps.long().tolist()):
        for step in range(network.steps + 1):
            reached = min(step, taken)
            of_global = network.global_compatibility(rollouts.unseen.a_g[0, image], classes.phi)
            of_joint = network.joint_compatibility(rollouts.unseen.a_j[0, image, max(reached - 1, 0)], classes.phi)
            logits = of_global + (of_global if reached == 0 else of_joint)
            if float(logits.topk(2).values.diff().abs()) > 1e-4:  # or rounding decides
                assert found.answers[image, step] == unseen[logits.argmax()]
                compared += 1
            own = int((unseen == found.labels[image]).nonzero())
            chance = (logits / (2.3 if step == 0 else 1.7)).softmax(0)[own]
            assert float(found.chance[image, step]) == pytest.approx(float(chance), abs=1e-4)
    assert compared > 100


def test_a_threshold_is_what_stopping_there_gives(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset) -> None:
    rollouts = rollouts_of(trained, dataset)
    images = next(
        open_context(trained[0], dataset).loader.centre_crops(dataset.test_unseen, len(dataset.test_unseen))
    ).images
    network = rollouts.network
    swept = {one.sigma: one for one in thresholds(rollouts)}
    assert len({one.mean_steps for one in swept.values()}) >= 3
    classes = rollouts.classes(dataset.unseen)
    for sigma in list(swept)[::4]:
        with torch.inference_mode():
            order = default_order(network, 0)
            stop = StopRule(network, classes, sigma)
            steps = rollout(network, DirectLocalities(network, images), order, stop=stop).steps
            rewards = rollouts.score("unseen", dataset.unseen).reward[0]
        close = int(((rewards - sigma).abs() < 4e-3).any(dim=1).sum())  # which rounding may decide either way
        assert close < len(images) / 2
        allowed = network.steps * close / len(images) + 1e-6
        assert swept[sigma].mean_steps == pytest.approx(float(steps.double().mean()), abs=allowed)
    assert swept[float("inf")].mean_steps == network.steps


def test_failures_are_counted_as_the_paper_defines_them() -> None:
    right = torch.tensor(
        [
            [0, 0, 0, 0],  # never right
            [1, 1, 1, 1],
            [0, 0, 1, 1],  # won
            [1, 1, 0, 0],  # lost at the second step
            [1, 0, 1, 0],  # lost for good at the third
        ]
    )
    chance = torch.arange(20.0).view(5, 4)
    found = failures(Trajectories(7 * right, chance, torch.full((5,), 7), torch.full((5,), 3.0)))
    assert [part.tolist() for part in (found.at_once, found.won, found.lost, found.never)] == [[1], [2], [3, 4], [0]]
    assert found.right == 2
    assert found.lost_at.tolist() == [2, 3]
    assert found.chance_of_lost.tolist() == [14, 15, 16, 17]
    assert found.chance_of_kept.tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("crops", [1, 2])
def test_every_image_is_in_one_group(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset, crops: TestCrops
) -> None:
    rollouts = rollouts_of(trained, dataset, crops)
    found = follow(rollouts, middling(rollouts))
    told = failures(found)
    groups = [part.tolist() for part in (told.at_once, told.won, told.lost, told.never)]
    assert sorted(itertools.chain(*groups)) == list(range(len(dataset.test_unseen)))
    assert told.right == int(found.right[:, -1].sum())


def test_the_quickest_took_the_fewest_steps() -> None:
    steps = np.array([6.0, 1.0, 3.0, 1.0, 2.5, 1.0, 3.0])
    images = np.array([0, 2, 3, 4, 5, 6])  # the second is of no interest
    for count, expected in ((1, [3, 5]), (2, [3, 5]), (3, [3, 4, 5]), (4, [2, 3, 4, 5, 6]), (9, images.tolist())):
        assert quickest(images, steps, count).tolist() == expected
    assert quickest(images[:0], steps, 3).tolist() == []


FOX = "fox"


def predicted(glance: str, *steps: str, name: str | None = None) -> Prediction:
    """Answers of the glance and of each step; the last is the answer, unless several crops gave another."""
    localities = tuple(Locality((0, 0, 20, 20), answer, 0.5, 1.0) for answer in steps)
    return Prediction(name or (glance, *steps)[-1], 0.5, localities, glance, 0.5, {}, {}, among=9)


@pytest.mark.parametrize(
    ("prediction", "at_once", "won", "lost"),
    [
        (predicted(FOX), True, False, False),
        (predicted(FOX, "wolf", FOX), True, False, False),
        (predicted("wolf", FOX), False, True, False),
        (predicted(FOX, "wolf"), False, False, True),
        (predicted("wolf", FOX, "wolf"), False, False, True),
        (predicted("wolf", "cat"), False, False, False),
        (predicted("wolf", FOX, name="wolf"), False, False, True),
        (predicted("wolf", "wolf", name=FOX), False, True, False),
    ],
)
def test_what_became_of_an_answer(prediction: Prediction, at_once: bool, won: bool, lost: bool) -> None:
    found = (was_right_at_once(prediction, FOX), was_won(prediction, FOX), was_lost(prediction, FOX))
    assert found == (at_once, won, lost)


class Sometimes:
    """A classifier that wins every other image, and no other."""

    def __init__(self, truths: list[str]) -> None:
        self._truths = truths

    def predict(self, pictures: list[Image.Image], candidates: str) -> list[Prediction]:
        assert candidates == "unseen"
        assert len(pictures) == len(self._truths)
        return [predicted("wolf", truth if place % 2 else "cat") for place, truth in enumerate(self._truths)]


def test_a_sheet_shows_its_own_kind_alone(
    dataset: ZeroShotDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some that localities win, from the first class to the last; what is predicted otherwise now is left out."""
    images = np.random.default_rng(0).permutation(len(dataset.test_unseen))
    truths = sorted(dataset.classes[dataset.labels[row]] for row in dataset.test_unseen)
    truths.sort(key=dataset.classes.index)
    shown: dict[str, Any] = {}

    def keep(pictures: Any, predictions: Any, truths: Any, heading: str, out: Path) -> None:
        shown.update(pictures=pictures, predictions=predictions, truths=truths, heading=heading, out=out)

    monkeypatch.setattr("erpcnet.experiments.figures.draw_selections", keep)
    sheet = Sheet("won.png", "Won", "Images that only localities solve", images, was_won)
    classifier: Any = Sometimes(truths)
    assert len(images) <= TRIED
    assert draw_sheet(classifier, dataset, sheet, tmp_path) == SHOWN
    assert shown["out"] == tmp_path / "won.png"
    assert all(map(was_won, shown["predictions"], shown["truths"]))
    assert shown["truths"][0] == truths[1]
    assert shown["truths"][-1] == truths[-1]
    assert len(shown["pictures"]) == SHOWN
    assert draw_sheet(classifier, dataset, sheet._replace(shows=was_lost), tmp_path) == 0
    empty = sheet._replace(images=images[:0])
    assert draw_sheet(Sometimes([]), dataset, empty, tmp_path) == 0  # type: ignore[arg-type]


def test_classes_are_listed_with_what_they_are_mistaken_for(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset
) -> None:
    rollouts = rollouts_of(trained, dataset)
    a, b, c = (int(number) for number in dataset.unseen[:3])
    answers = torch.tensor([a, a, b, b, a, c, c, b])[:, None]
    labels = torch.tensor([a, a, a, a, b, b, c, c])
    records = {one.name: one for one in class_records(rollouts, Trajectories(answers, answers, labels, labels))}
    assert list(records) == [dataset.classes[b], *sorted((dataset.classes[a], dataset.classes[c]))]
    assert records[dataset.classes[a]][1:] == (0.5, dataset.classes[b], 0.5)
    assert records[dataset.classes[b]][1:] == (0.0, dataset.classes[a], 0.5)


def test_a_class_mistaken_twice_shows_two_examples(dataset: ZeroShotDataset) -> None:
    """Beside a picture that was mistaken for it, one of its own."""
    labels = torch.from_numpy(dataset.labels[dataset.test_unseen])
    a, b, c = (int(number) for number in dataset.unseen[:3])
    answers = torch.full_like(labels, c)[:, None]
    found = Trajectories(answers, answers.double(), labels, labels)
    names = [dataset.classes[number] for number in (a, b, c)]
    shown = mistaken_pictures(dataset, found, [(names[0], names[2]), (names[1], names[2])])
    assert [(above, below) for above, _, below, _ in shown] == [(name, f"taken for {names[2]}") for name in names[:2]]
    for number, place in ((a, 0), (b, 1)):
        own = dataset.test_unseen[dataset.labels[dataset.test_unseen] == number]
        assert shown[place][1] == load_picture(dataset, own[0])
    of_c = dataset.test_unseen[dataset.labels[dataset.test_unseen] == c]
    assert [below for *_, below in shown] == [load_picture(dataset, row) for row in of_c[:2]]


def test_embeddings_hold_the_classes_that_the_glance_mistakes(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset
) -> None:
    rollouts = rollouts_of(trained, dataset, 2)
    found = follow(rollouts, middling(rollouts))
    laid = embed(rollouts, found, classes=2, each=4)
    assert laid is not None
    assert laid.of_both is not None
    assert laid.of_global.shape == laid.of_both.shape == (8, 2)
    assert not np.allclose(laid.of_global, laid.of_both)
    shares = {int(n): float(found.right[found.labels == n, 0].double().mean()) for n in dataset.unseen}
    shown = np.unique(laid.labels)
    assert max(shares[number] for number in shown) <= min(shares[number] for number in set(shares) - set(shown))


def test_what_is_alike_is_not_laid_out(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset) -> None:
    rollouts = rollouts_of(trained, dataset)
    found = follow(rollouts, NEVER)
    assert embed(rollouts, found, classes=1, each=4) is None
    alike = replace(rollouts.unseen, a_g=rollouts.unseen.a_g[:, :1].expand_as(rollouts.unseen.a_g))
    assert embed(replace(rollouts, unseen=alike), found) is None


@pytest.mark.parametrize("variant", ["erpcnet", "pcnet", "globalnet"])
def test_a_page_has_all_of_its_pictures(variant: str, creatures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick = [
        "--evaluation.folds",
        "1",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "1",
        "--stage2.epochs",
        "1",
        "--variant",
        variant,
    ]
    assert main(["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(run), *quick]) == 0
    assert main(["analyse", str(run)]) == 0
    page = (run / "analysis" / "analysis.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((.*\.png)\)", page)
    assert {"seen-unseen.png", "embeddings.png"} <= set(pictures)
    assert ("thresholds.png" in pictures) == (variant == "erpcnet")
    assert ("steps.png" in pictures) == (variant != "globalnet")
    assert ("## What localities change" in page) == (variant != "globalnet")
    counts = {
        name: int(count) for name, count in re.findall(r"^\| (right at|won:|lost:|never)[^|]* \| (\d+)", page, re.M)
    }
    assert sum(counts.values()) == (0 if variant == "globalnet" else 20)
    for name, group in (("glance.png", "right at"), ("won.png", "won:"), ("lost.png", "lost:")):
        shown = re.search(rf"\({name}\)\n\n\*Images.*: (\d) of (\d+)\*$", page, re.M)
        assert (shown is not None) == (name in pictures)
        assert shown is None or 1 <= int(shown[1]) <= int(shown[2]) == counts[group]
    drawn = {"glance.png", "won.png", "lost.png"} & set(pictures)
    assert bool(drawn) == (variant == "erpcnet")  # of 20 images some are right
    assert ("failures.png" in pictures) == (counts.get("lost:", 0) > 0)
    assert {path.name for path in (run / "analysis").iterdir()} == {"analysis.md", "analysis.html", *pictures}
    html = (run / "analysis" / "analysis.html").read_text(encoding="utf-8")
    assert html.count("src='data:image/png;base64,") == len(pictures)
    assert re.findall(r"(?:src|href)='(?!data:|#)", html) == []  # it needs nothing else
    assert re.findall("<h2[^>]*>([^<]*)", html) == re.findall("^## (.*)$", page, re.MULTILINE)
    for name in pictures:
        with Image.open(run / "analysis" / name) as picture:
            low, high = zip(*picture.convert("RGB").getextrema(), strict=True)
            assert min(high) > max(low)  # something is drawn
