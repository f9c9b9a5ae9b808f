"""What to do next about a run, against loops and closed forms; the page that says it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from selenium.webdriver.common.keys import Keys
from sklearn.metrics import balanced_accuracy_score

from browser import Browser
from erpcnet.config import Config, load_config
from erpcnet.data import ZeroShotDataset
from erpcnet.data.dataset import hold_out
from erpcnet.evaluation.attributes import unseen_auc
from erpcnet.evaluation.baselines import (
    LearningPoint,
    OneRidge,
    Ridge,
    eszsl,
    evaluate_baselines,
    frozen_features,
    learning_curve,
)
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.experiments.analysis import follow
from erpcnet.experiments.diagnosis import attribute_records, close_pairs, more_would_bring, seen_records
from erpcnet.experiments.page import Block, Page, Picture, Section, Slider, Table
from erpcnet.model.scoring import OperatingPoint
from erpcnet.training import Log, open_context
from erpcnet.training.pipeline import rollout_test, train_network

POINT = OperatingPoint(float("inf"), 1.0, "fixed")


@pytest.fixture(scope="module")
def rollouts(dataset: ZeroShotDataset) -> EvaluationRollouts:
    config = load_config(
        "creatures", data={"image_size": 64}, stage1={"epochs": 3, "batch_size": 8}, stage2={"epochs": 1}
    )
    context = open_context(config, dataset)
    return rollout_test(context, train_network(context, dataset, Log()).eval(), dataset)


def test_the_auc_of_an_attribute_counts_pairs(rollouts: EvaluationRollouts) -> None:
    table = rollouts.dataset.attributes
    labels = rollouts.labels("unseen").tolist()
    found, known = unseen_auc(rollouts).tolist(), 0
    for number, area in enumerate(found):
        middle = (table[:, number].min() + table[:, number].max()) / 2
        predicted = rollouts.unseen.a_j[0, :, -1, number].tolist()
        has = [value for value, label in zip(predicted, labels, strict=True) if table[label, number] > middle]
        lacks = [value for value, label in zip(predicted, labels, strict=True) if table[label, number] <= middle]
        if not has or not lacks:
            assert area != area
            continue
        won = sum((one > other) + 0.5 * (one == other) for one, other in itertools.product(has, lacks))
        assert area == pytest.approx(won / (len(has) * len(lacks)), abs=1e-6)
        known += 1
    assert known > 3


def test_attributes_are_listed_worst_first_by_validation(rollouts: EvaluationRollouts) -> None:
    names = rollouts.dataset.attribute_names
    told = {names[0]: 0.01, names[1]: 0.99}
    records = attribute_records(rollouts, told)
    assert records[0].name == names[0]
    assert records[0].on_validation == 0.01
    areas = [one.on_validation if one.on_validation is not None else one.on_unseen for one in records]
    assert areas == sorted(areas, key=float)  # type: ignore[arg-type]
    known = {name for name, area in zip(names, unseen_auc(rollouts).tolist(), strict=True) if area == area}
    assert {one.name for one in records} == known | set(told)


def test_close_pairs_are_those_of_loops(rollouts: EvaluationRollouts) -> None:
    dataset, found = rollouts.dataset, follow(rollouts, POINT)
    pairs = close_pairs(rollouts, found)
    assert len(pairs) == len(dataset.unseen) * (len(dataset.unseen) - 1) // 2
    assert [pair.cosine for pair in pairs] == sorted((pair.cosine for pair in pairs), reverse=True)
    unit = dataset.attributes / np.linalg.norm(dataset.attributes, axis=1, keepdims=True)
    apart = unit - unit.mean(axis=0)
    for pair in pairs:
        one, other = dataset.classes.index(pair.first), dataset.classes.index(pair.second)
        cosine = apart[one] @ apart[other] / np.linalg.norm(apart[one]) / np.linalg.norm(apart[other])
        assert pair.cosine == pytest.approx(float(cosine), abs=1e-5)
        crossed = images = 0
        for label, answer in zip(found.labels.tolist(), found.answers[:, -1].tolist(), strict=True):
            images += label in (one, other)
            crossed += {label, answer} == {one, other}
        assert pair.confused == pytest.approx(crossed / images)


def test_seen_classes_are_counted_among_all_classes(rollouts: EvaluationRollouts) -> None:
    dataset = rollouts.dataset
    records = {one.name: one for one in seen_records(rollouts, POINT)}
    assert set(records) == {dataset.classes[number] for number in dataset.seen}
    answers = {}
    for split in ("seen", "unseen"):
        logits = rollouts.score(split, np.arange(len(dataset.classes))).logits[0, :, -1]
        logits = logits - POINT.delta * torch.from_numpy(np.isin(np.arange(len(dataset.classes)), dataset.seen))
        answers[split] = logits.argmax(dim=1).tolist()
    labels = rollouts.labels("seen").tolist()
    for number in dataset.seen.tolist():
        own = [answer for answer, label in zip(answers["seen"], labels, strict=True) if label == number]
        record = records[dataset.classes[number]]
        assert record.accuracy == own.count(number) / len(own)
        assert record.claims == answers["unseen"].count(number) / len(answers["unseen"])
        if record.mistaken_for:
            other = dataset.classes.index(record.mistaken_for)
            assert record.how_often == own.count(other) / len(own)
            assert all(own.count(answer) <= own.count(other) for answer in own if answer != number)
        else:
            assert record.accuracy == 1


def test_without_seen_test_images_nothing_is_said_of_them(rollouts: EvaluationRollouts) -> None:
    assert seen_records(replace(rollouts, seen=None), POINT) == []


def test_a_ridge_of_one_constant_is_the_others() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(OneRidge(features).solve(targets, 0.7), Ridge.of(features).solve(targets, 0.7))


def test_the_learning_curve_ends_at_the_baseline(tiny_config: Config, dataset: ZeroShotDataset) -> None:
    points = learning_curve(tiny_config, dataset, draws=2)
    assert [(one.of, one.share) for one in points] == [
        (of, share) for of in ("pictures", "classes") for share in (0.25, 0.5, 0.75, 1.0)
    ]
    whole = evaluate_baselines(tiny_config, dataset)[0]
    assert whole.method == "ESZSL"
    assert [one.t1 for one in points if one.share == 1] == pytest.approx([whole.t1, whole.t1])
    features = torch.from_numpy(frozen_features(tiny_config, dataset)).double()
    features = torch.nn.functional.normalize(features - features[torch.from_numpy(dataset.train)].mean(dim=0))
    phi, tried = torch.from_numpy(dataset.unit_attributes).double(), []
    for draw in range(2):
        rows, _ = hold_out(dataset.train, dataset.labels, 0.5, seed=tiny_config.seed + draw)
        labels = torch.from_numpy(np.searchsorted(dataset.seen, dataset.labels[rows]))
        model = eszsl(Ridge.of(features[torch.from_numpy(rows)]), labels, phi[dataset.seen], whole.constants)
        best = (features[dataset.test_unseen] @ model @ phi[dataset.unseen].T).argmax(dim=1).numpy()
        tried.append(balanced_accuracy_score(dataset.labels[dataset.test_unseen], dataset.unseen[best]))
    (half,) = (one for one in points if (one.of, one.share) == ("pictures", 0.5))
    assert (half.t1, half.spread) == pytest.approx((np.mean(tried), np.std(tried)))


@pytest.mark.parametrize(
    ("half_pictures", "half_classes", "advice"),
    [
        (0.60, 0.695, "More pictures of the seen classes promise most"),
        (0.69, 0.50, "More seen classes promise most"),
        (0.695, 0.70, "Neither more pictures nor more classes promise much"),
    ],
)
def test_what_more_would_bring_in_a_sentence(half_pictures: float, half_classes: float, advice: str) -> None:
    points = [
        LearningPoint(of, share, t1, 0.02 if share < 1 else 0)
        for of, half in (("pictures", half_pictures), ("classes", half_classes))
        for share, t1 in ((0.5, half), (1.0, 0.70))
    ]
    told = more_would_bring(points)
    assert advice in told
    assert f"T1 rises by {100 * (0.70 - half_pictures):.1f} points (± 2.0)" in told


def test_a_slider_tells_the_numbers_of_its_place(tmp_path: Path, browser: Browser) -> None:
    slider = Slider("<delta>", [0.0, 0.5, 1.25], {"U": [10.0, 20.0, 30.0], "</script>": [1.0, 2.3, 3.0]}, 0.5)
    page = Page("Sliders", "", [Section("One", [slider]), Section("Two", [slider._replace(start=0.0)])])
    (tmp_path / "page.html").write_text(page.to_html(tmp_path), encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri())
    shown = 'return [...document.querySelectorAll("output")].map(one => one.textContent)'
    first, at_zero = "0.50: U 20.0, </script> 2.3", "0.00: U 10.0, </script> 1.0"
    assert browser.run(shown) == [first, at_zero]
    browser.find("input").send_keys(Keys.ARROW_RIGHT)
    assert browser.run(shown) == ["1.25: U 30.0, </script> 3.0", at_zero]
    assert browser.find("label").text.startswith("<delta>")
    assert browser.find("input").get_attribute("aria-valuetext") == "1.25: U 30.0, </script> 3.0"
    assert browser.console() == []


def test_a_slider_on_paper_is_a_table() -> None:
    places = [number / 100 for number in range(101)]
    slider = Slider("delta", places, {"H": [100 * place for place in places]}, 0.37)
    lines = slider.to_markdown().splitlines()
    assert lines[0] == "| delta | H |"
    assert [line.split()[1] for line in lines[2:]] == [
        "0.00",
        "0.12",
        "0.25",
        "0.37",
        "0.38",
        "0.50",
        "0.62",
        "0.75",
        "0.88",
        "1.00",
    ]
    assert "| 0.37 | 37.0 |" in lines


def test_a_page_is_shown_by_a_browser(tmp_path: Path, browser: Browser) -> None:
    """What is escaped is read as it was meant, and the picture is inside."""
    Image.new("RGB", (40, 30), (200, 20, 20)).save(tmp_path / "red.png")
    table = Table(("class", "right"), [("<i>owl", "9 %")])
    blocks: list[Block] = ["A <b> & `erpcnet evaluate --delta`.", table, Picture("red.png", '"x"')]
    page = Page("Title <1>", "Of `code`.", [Section("One & only", blocks), Section("Two", ["more"])])
    (tmp_path / "page.html").write_text(page.to_html(tmp_path), encoding="utf-8")
    (tmp_path / "red.png").unlink()
    browser.open((tmp_path / "page.html").as_uri())
    told = browser.run(
        """return {
            title: document.title, headings: [...document.querySelectorAll("h1, h2")].map(one => one.textContent),
            code: [...document.querySelectorAll("code")].map(one => one.textContent),
            cells: [...document.querySelectorAll("td")].map(one => one.textContent),
            wide: document.querySelector("img").naturalWidth, alt: document.querySelector("img").alt,
            links: [...document.querySelectorAll("nav a")].map(one => document.querySelector(one.hash).textContent),
        }"""
    )
    assert told == {
        "title": "Title <1>",
        "headings": ["Title <1>", "One & only", "Two"],
        "code": ["code", "erpcnet evaluate --delta"],
        "cells": ["<i>owl", "9 %"],
        "wide": 40,
        "alt": '"x"',
        "links": ["One & only", "Two"],
    }
    assert browser.console() == []


@pytest.mark.parametrize("dark", [False, True])
def test_captions_are_clear_enough_to_be_read(dark: bool, tmp_path: Path, browser: Browser) -> None:
    """A contrast of 4.5 at least, as WCAG asks for; on paper they stand below the picture."""
    Image.new("RGB", (40, 30), (200, 20, 20)).save(tmp_path / "red.png")
    page = Page("Title", "Text.", [Section("One", [Picture("red.png", "Red all over")])])
    (tmp_path / "page.html").write_text(page.to_html(tmp_path), encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri(), dark=dark)
    colours = browser.run(
        """const of = (name, what) => getComputedStyle(document.querySelector(name))[what];
        return [of("figcaption", "color"), of("body", "background-color")];"""
    )
    # A page that says nothing of its background has the browser's.
    caption, behind = (luminance("rgb(255, 255, 255)" if "rgba" in colour else colour) for colour in colours)
    lighter, darker = max(caption, behind), min(caption, behind)
    assert (caption > behind) == dark
    assert (lighter + 0.05) / (darker + 0.05) > 4.5
    assert page.to_markdown().endswith("![Red all over](red.png)\n\n*Red all over*")


def luminance(colour: str) -> float:
    """Of `rgb(...)`, by WCAG."""
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))
