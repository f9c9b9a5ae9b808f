"""The analyses of a run against slow references, and the page made of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import between
from erpcnet.cli import main
from erpcnet.config import Config, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.settings import TestViews
from erpcnet.evaluation.protocol import EvaluationWalks, measure
from erpcnet.experiments.analysis import Trajectories, class_records, embed, failures, follow, thresholds
from erpcnet.model import ERPCNet
from erpcnet.model.scoring import OperatingPoint
from erpcnet.model.walk import DirectLocalities, StopRule, usual_order, walk
from erpcnet.pipeline import open_workshop, train_network, walk_test
from erpcnet.training import Log


@pytest.fixture(scope="module")
def trained(dataset: ZeroShotDataset) -> tuple[Config, ERPCNet]:
    config = load_config(
        "creatures", data={"image_size": 64}, stage1={"epochs": 4, "batch_size": 8}, stage2={"epochs": 1}
    )
    return config, train_network(open_workshop(config, dataset), dataset, Log()).eval()


def walks_of(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset, views: TestViews = 1) -> EvaluationWalks:
    config, network = trained
    return walk_test(
        open_workshop(replace(config, data=replace(config.data, test_views=views)), dataset), network, dataset
    )


def middling(walks: EvaluationWalks) -> OperatingPoint:
    """A sigma at which some images stop after the first step and some do not."""
    rule = StopRule(0.0, walks.classes(walks.dataset.unseen))
    with torch.inference_mode():
        sigma = between(rule.reward_of(walks.network, walks.unseen)[:, 0])
    return OperatingPoint(sigma, 0.0, "fixed", temperature=(2.3, 1.7))


NEVER = OperatingPoint(float("inf"), 0.0, "fixed")


@pytest.mark.parametrize("views", [1, 2])
def test_the_last_answers_are_those_of_the_evaluation(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset, views: TestViews
) -> None:
    walks = walks_of(trained, dataset, views)
    for point in (middling(walks), NEVER):
        found, metrics = follow(walks, point), measure(walks, point, seed=0)
        assert found.right[:, -1].double().mean().item() == pytest.approx(metrics.t1_per_image)
        assert found.steps.mean().item() == pytest.approx(metrics.mean_steps)
        # As many images in every class: means over classes are means over images.
        assert found.right[:, 0].double().mean().item() == pytest.approx(metrics.t1_global)
    by_step = found.right[:, 1:].double().mean(dim=0).tolist()  # nobody stopped
    assert by_step == pytest.approx(metrics.t1_by_step)


@torch.inference_mode()
def test_answers_on_the_way_are_those_of_shorter_walks(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset
) -> None:
    walks = walks_of(trained, dataset)
    found = follow(walks, middling(walks))
    assert 1 <= found.steps.min() < found.steps.max()
    network, classes = walks.network, walks.classes(dataset.unseen)
    unseen, compared = torch.from_numpy(dataset.unseen), 0
    for image, taken in enumerate(found.steps.long().tolist()):
        for step in range(network.steps + 1):
            whole, reached = walks.unseen.whole[image : image + 1], min(step, taken)
            of_global = network.global_fit(whole, classes.phi)
            of_joint = network.joint_fit(walks.unseen.joint[image, max(reached - 1, 0)], classes.phi)
            scores = (of_global + (of_global if reached == 0 else of_joint))[0]
            if float(scores.topk(2).values.diff().abs()) > 1e-4:  # or rounding decides
                assert found.answers[image, step] == unseen[scores.argmax()]
                compared += 1
            own = int((unseen == found.labels[image]).nonzero())
            sure = (scores / (2.3 if step == 0 else 1.7)).softmax(0)[own]
            assert float(found.sure[image, step]) == pytest.approx(float(sure), abs=1e-4)
    assert compared > 100


def test_a_threshold_is_what_walking_with_it_gives(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset) -> None:
    walks = walks_of(trained, dataset)
    images = next(open_workshop(trained[0], dataset).feed.plain(dataset.test_unseen, len(dataset.test_unseen))).images
    network = walks.network
    swept = {one.sigma: one for one in thresholds(walks)}
    assert len({one.mean_steps for one in swept.values()}) >= 3
    classes = walks.classes(dataset.unseen)
    for sigma in list(swept)[::4]:
        with torch.inference_mode():
            order = usual_order(network, 0)
            steps = walk(network, DirectLocalities(network, images), order, stop=StopRule(sigma, classes)).steps
            rewards = StopRule(sigma, classes).reward_of(network, walks.unseen)
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
    sure = torch.arange(20.0).view(5, 4)
    found = failures(Trajectories(7 * right, sure, torch.full((5,), 7), torch.full((5,), 3.0)))
    assert (found.images, found.right, found.never, found.won) == (5, 2, 1, 1)
    assert found.lost.tolist() == [3, 4]
    assert found.lost_at.tolist() == [2, 3]
    assert found.sure_of_lost.tolist() == [14, 15, 16, 17]
    assert found.sure_of_kept.tolist() == [6, 7, 8, 9]


def test_classes_are_listed_with_what_they_are_mistaken_for(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset
) -> None:
    walks = walks_of(trained, dataset)
    a, b, c = (int(number) for number in dataset.unseen[:3])
    answers = torch.tensor([a, a, b, b, a, c, c, b])[:, None]
    labels = torch.tensor([a, a, a, a, b, b, c, c])
    records = {one.name: one for one in class_records(walks, Trajectories(answers, answers, labels, labels))}
    assert list(records) == [dataset.classes[b], *sorted((dataset.classes[a], dataset.classes[c]))]
    assert records[dataset.classes[a]][1:] == (0.5, dataset.classes[b], 0.5)
    assert records[dataset.classes[b]][1:] == (0.0, dataset.classes[a], 0.5)


def test_embeddings_hold_the_classes_that_the_glance_mistakes(
    trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset
) -> None:
    walks = walks_of(trained, dataset, 2)
    found = follow(walks, middling(walks))
    laid = embed(walks, found, classes=2, each=4)
    assert laid is not None
    assert laid.union is not None
    assert laid.whole.shape == laid.union.shape == (8, 2)
    assert not np.allclose(laid.whole, laid.union)
    shares = {int(n): float(found.right[found.labels == n, 0].double().mean()) for n in dataset.unseen}
    shown = np.unique(laid.labels)
    assert max(shares[number] for number in shown) <= min(shares[number] for number in set(shares) - set(shown))


def test_what_is_alike_is_not_laid_out(trained: tuple[Config, ERPCNet], dataset: ZeroShotDataset) -> None:
    walks = walks_of(trained, dataset)
    found = follow(walks, NEVER)
    assert embed(walks, found, classes=1, each=4) is None
    alike = replace(walks.unseen, whole=walks.unseen.whole[:1].expand_as(walks.unseen.whole))
    assert embed(replace(walks, unseen=alike), found) is None


@pytest.mark.parametrize("variant", ["erpcnet", "pcnet", "globalnet"])
def test_a_page_has_all_of_its_pictures(variant: str, creatures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick = ["--data.image_size", "64", "--stage1.epochs", "1", "--stage2.epochs", "1", "--variant", variant]
    assert main(["train", "--config", "creatures", "--data", str(creatures), "--out", str(run), *quick]) == 0
    assert main(["analyse", str(run)]) == 0
    page = (run / "analysis" / "analysis.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((.*\.png)\)", page)
    assert {"seen-unseen.png", "embeddings.png"} <= set(pictures)
    assert ("thresholds.png" in pictures) == (variant == "erpcnet")
    assert ("steps.png" in pictures) == (variant != "globalnet")
    lost = int(re.findall(r"\| (\d+) \|", page.partition("lost")[2])[0]) if "lost.png" in pictures else 0
    assert ("lost.png" in pictures) == (lost > 0)
    assert {path.name for path in (run / "analysis").iterdir()} == {"analysis.md", *pictures}
    for name in pictures:
        with Image.open(run / "analysis" / name) as picture:
            low, high = zip(*picture.convert("RGB").getextrema(), strict=True)
            assert min(high) > max(low)  # something is drawn
