"""Why one class and not another: what is told against logits that are computed apart, and the parts of a_j by hand."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from conftest import small_network
from erpcnet.cli import main
from erpcnet.config import DataSettings, JointSettings, LocalSettings, TestCrops
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, ZeroShotClassifier, load
from erpcnet.inference.class_table import Candidates
from erpcnet.inference.explanation import SHOWN, AttributeEvidence, Explanation
from erpcnet.model import Classes
from erpcnet.model.heads import AttentionHead
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.scoring import OperatingPoint, score
from erpcnet.model.selection import default_order
from untrained import untrained_run

NEVER = math.inf
SIZE = (1495, 676)  # of every drawing, in pixels


def make(
    variant: str = "erpcnet",
    sigma: float = NEVER,
    zoom: int = 1,
    crops: TestCrops = 1,
    names: tuple[str, ...] | None = None,
    **model: Any,
) -> ZeroShotClassifier:
    """Five seen and four unseen classes; delta is 0.3, and hubness, where the settings have it, is measured."""
    names = names or tuple(f"class {number}" for number in range(9))
    attributes = np.random.default_rng(0).random((9, 7), dtype=np.float32)
    table = ClassTable(names, attributes, np.arange(9) < 5, tuple("abcdefg"))
    network = small_network(variant, local=LocalSettings(zoom=zoom), **model)
    network.centre_attributes(torch.rand(5, 7, generator=torch.Generator().manual_seed(2)))
    network.set_prototypes(torch.randn(5, 7, generator=torch.Generator().manual_seed(5)))
    point = OperatingPoint(sigma, 0.3, "fixed", temperature=(1.9, 1.3), temperature_all=(2.6, 2.1))
    data = DataSettings(image_size=zoom * 64, test_crops=crops)
    return ZeroShotClassifier(network, table, data, point)


def pictures() -> list[Image.Image]:
    """Wide and tall ones, of blobs rather than of noise."""
    rng = np.random.default_rng(1)
    coarse = [Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)) for _ in range(3)]
    return [one.resize((90, 70) if number % 2 else (70, 110)) for number, one in enumerate(coarse)]


def candidates_of(model: ZeroShotClassifier, candidates: Candidates) -> tuple[Classes, torch.Tensor]:
    table = model.classes.select(candidates)
    seen = torch.from_numpy(table.seen)
    return model.network.classes(table.phi(), seen), seen


def whole_rollout(model: ZeroShotClassifier, picture: Image.Image) -> Rollout:
    """All steps in the centre crop."""
    network, images = model.network, model.centre_crop(picture)
    order = default_order(network, model.engine.seed)
    return rollout(network, DirectLocalities(network, images), order).each(lambda tensor: tensor[None])


@torch.inference_mode()
def logits_apart(model: ZeroShotClassifier, picture: Image.Image, candidates: Candidates) -> torch.Tensor:
    """The logits of the candidates in the centre crop, after class bias and delta: read from all steps."""
    classes, seen = candidates_of(model, candidates)
    logits = score(model.network, whole_rollout(model, picture), classes).stopped(model.point.sigma).final[0]
    return logits - model.point.delta * seen if 0 < seen.sum() < len(seen) else logits


@torch.inference_mode()
def late_sigma(model: ZeroShotClassifier) -> tuple[int, float, int]:
    """A picture, a sigma, and the step after the first at which it stops the picture, by a margin."""
    classes, _ = candidates_of(model, "all")
    best = (0.0, 0, 0, 0.0)
    for number, picture in enumerate(pictures()):
        rewards = score(model.network, whole_rollout(model, picture), classes).reward[0, 0].tolist()
        for step in range(1, len(rewards)):
            before = max(rewards[:step])
            best = max(best, (rewards[step] - before, number, step, (rewards[step] + before) / 2))
    margin, number, step, sigma = best
    assert margin > 8e-3, "no reward is larger than those before it"
    return number, sigma, step + 1


CASES: dict[str, dict[str, Any]] = {
    "all steps": {},
    "concatenation": {"joint": JointSettings(kind="concatenation")},
    "dot": {"compatibility": "dot"},
    "zoom": {"zoom": 2},
    "hubness": {"hubness": 0.3},
    "globalnet": {"variant": "globalnet"},
    "globalnet with hubness": {"variant": "globalnet", "hubness": 0.3},
    "random localities": {"variant": "pcnet"},
    "rpcnet": {"variant": "rpcnet"},
    "hardnet": {"variant": "hardnet"},
    "the glance alone": {"sigma": 0.0},
    "the glance alone, with hubness": {"sigma": 0.0, "hubness": 0.3},
    "two crops": {"crops": 2},
}


def adds_up(why: Explanation, model: ZeroShotClassifier, picture: Image.Image, candidates: Candidates) -> None:
    """An explanation against the logits computed apart."""
    names = model.classes.select(candidates).names
    logits = logits_apart(model, picture, candidates)
    expected = float(logits[names.index(why.answer)] - logits[names.index(why.runner_up)])
    assert why.margin == pytest.approx(expected, abs=1e-3)
    assert sum(one.amount for one in why.evidence) + why.bias == pytest.approx(expected, abs=1e-3)
    assert {one.name for one in why.evidence} == set("abcdefg")
    for one in why.evidence:
        assert len(one.by_place) == 1 + why.prediction.steps
        assert sum(one.by_place) == pytest.approx(one.amount, abs=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_attributes_and_bias_add_up_to_the_margin(case: str) -> None:
    model = make(**CASES[case])
    for picture in pictures()[:2]:
        prediction = model.predict(picture)
        by_default = model.explain(picture)
        assert (by_default.answer, by_default.runner_up) == (prediction.name, prediction.top[1][0])
        # One seen and one unseen class beside the runner-up.
        for other in {by_default.runner_up, "class 4", "class 8"} - {prediction.name}:
            why = model.explain(picture, against=other)
            assert (why.answer, why.runner_up) == (prediction.name, other)
            adds_up(why, model, picture, "all")


@pytest.mark.parametrize("case", ["all steps", "concatenation", "dot", "zoom", "hubness", "two crops"])
def test_places_are_those_of_the_steps_that_were_taken(case: str) -> None:
    number, sigma, steps = late_sigma(make(**CASES[case]))
    model, picture = make(**{**CASES[case], "sigma": sigma}), pictures()[number]
    why = model.explain(picture)
    assert why.prediction.steps == steps > 1
    adds_up(why, model, picture, "all")


@pytest.mark.parametrize("candidates", ["unseen", ["class 1", "class 3"], ["class 0", "class 7", "class 8"]])
def test_delta_counts_only_between_seen_and_unseen_classes(candidates: Candidates) -> None:
    model, picture = make(hubness=0.3), pictures()[0]
    for other in model.classes.select(candidates).names:
        if other != model.predict(picture, candidates).name:
            why = model.explain(picture, candidates, against=other)
            adds_up(why, model, picture, candidates)
            classes, seen = candidates_of(model, candidates)
            assert isinstance(classes.bias, torch.Tensor)
            bias = 2 * classes.bias.detach() + 0.3 * seen * (seen.any() & ~seen.all())
            names = model.classes.select(candidates).names
            expected = float(bias[names.index(other)] - bias[names.index(why.answer)])
            assert why.bias == pytest.approx(expected, abs=1e-4)


@torch.inference_mode()
def test_each_window_adds_its_own_part() -> None:
    """Attention, attribute by attribute and window by window, with plain numbers."""
    model, picture = make(), pictures()[0]
    why = model.explain(picture)
    network, head = model.network, model.network.joint
    assert isinstance(head, AttentionHead)
    glance = network.glance(model.centre_crop(picture))
    e_l = network.embed_localities(glance.source, whole_rollout(model, picture).cells[0])[0]
    votes, doubts = head.of_local(e_l), head.sharpness * head.trust(e_l)
    a_g, of_global = glance.a_g[0].tolist(), head.of_global(glance.e_g)[0].tolist()
    table = model.classes
    unit = F.normalize(table.phi() - network.global_compatibility.centre, dim=1)
    between = (unit[table.names.index(why.answer)] - unit[table.names.index(why.runner_up)]).tolist()
    parts = []
    for attribute in range(7):
        trust = [math.exp(min(max(float(one), -head.limit), head.limit)) for one in doubts[:, attribute]]
        shares = [one / (1 + sum(trust)) for one in trust]
        told = [share * float(vote) for share, vote in zip(shares, votes[:, attribute], strict=True)]
        parts.append([of_global[attribute], *told])
    length_g = math.sqrt(sum(value**2 for value in a_g))
    length_j = math.sqrt(sum(sum(own) ** 2 for own in parts))
    fits = (network.global_compatibility, network.joint_compatibility)
    scale_g, scale_j = (float(fit.log_scale.exp()) for fit in fits if fit.log_scale is not None)
    evidence = {one.name: one for one in why.evidence}
    for number, name in enumerate("abcdefg"):
        expected = [scale_j * between[number] * part / length_j for part in parts[number]]
        expected[0] += scale_g * between[number] * a_g[number] / length_g
        assert evidence[name].by_place == pytest.approx(expected, abs=1e-3)
    assert {one.place for one in why.evidence} - {0}, "no window says most of any attribute"


def test_a_head_that_is_no_sum_is_the_glances() -> None:
    why = make(joint=JointSettings(kind="concatenation")).explain(pictures()[0])
    assert why.prediction.steps == 6
    assert {one.by_place[1:] for one in why.evidence} == {(0.0,) * 6}
    assert {one.place for one in why.evidence} == {0}


def test_the_place_is_where_most_was_read() -> None:
    assert AttributeEvidence("a", 1.0, (0.5, -0.2, 0.7)).place == 2
    assert AttributeEvidence("a", -1.0, (0.9, -1.5, -0.4)).place == 1
    why = make(sigma=0.0).explain(pictures()[0])
    assert [why.place_name(place) for place in range(3)] == ["the whole picture", "window 1", "window 2"]


def test_the_strongest_attributes_are_told_on_both_sides() -> None:
    amounts = [*range(-12, 13)]  # one of them 0
    evidence = tuple(AttributeEvidence(f"no. {amount}", amount, (amount,)) for amount in reversed(amounts))
    why = replace(make(sigma=0.0).explain(pictures()[0]), evidence=evidence)
    assert [one.amount for one in why.speaks_for] == [*range(12, 12 - SHOWN, -1)]
    assert [one.amount for one in why.speaks_against] == [*range(-12, SHOWN - 12)]
    few = replace(why, evidence=evidence[10:13])
    assert ([one.amount for one in few.speaks_for], few.speaks_against) == ([2, 1], ())
    amounts_of_one = [one.amount for one in make().explain(pictures()[1]).evidence]
    assert amounts_of_one == sorted(amounts_of_one, reverse=True)


def test_classes_of_the_same_attributes_differ_by_bias() -> None:
    model = make()
    model.add_classes({"twin": model.classes.attributes[0].tolist()})  # of a seen class, itself unseen
    why = model.explain(pictures()[0], ["class 0", "twin"])
    assert (why.answer, why.runner_up) == ("twin", "class 0")
    assert why.margin == pytest.approx(0.3, abs=1e-5)
    assert why.bias == pytest.approx(0.3, abs=1e-5)
    assert why.speaks_for == why.speaks_against == ()
    assert why.plot().size == SIZE


@pytest.mark.parametrize(
    ("candidates", "against", "message"),
    [
        (["class 3"], None, "there is one candidate, and nothing to compare it with"),
        ("all", "class 99", "there is no class 'class 99' among the candidates"),
        ("unseen", "class 0", "there is no class 'class 0' among the candidates"),
        (["class 98"], None, "there is no class 'class 98'"),
    ],
)
def test_what_cannot_be_compared_is_said(candidates: Candidates, against: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make().explain(pictures()[0], candidates, against)


def test_the_answer_is_not_compared_with_itself() -> None:
    model = make()
    answer = model.predict(pictures()[0]).name
    with pytest.raises(InputError, match=f"'{answer}' is the answer itself; compare with another class"):
        model.explain(pictures()[0], against=answer)


def bars(drawn: Image.Image, colour: tuple[int, int, int]) -> int:
    """How many pixels of the right half, where the bars are, have a colour."""
    right = np.asarray(drawn, dtype=int)[:, SIZE[0] // 2 :]
    return int((np.abs(right - colour).max(axis=2) < 12).sum())


def test_bars_are_as_long_as_what_attributes_say() -> None:
    blue, yellow = (0x1F, 0x77, 0xFF), (0xFF, 0xC4, 0x00)
    why = make(sigma=0.0).explain(pictures()[0])
    drawn: dict[tuple[float, ...], Image.Image] = {}
    for amounts in ((3.0, 1.0), (3.0, -1.0), (-1.0, -3.0)):
        evidence = tuple(AttributeEvidence(f"no. {amount}", amount, (amount,)) for amount in amounts)
        drawn[amounts] = replace(why, evidence=evidence).plot()
        assert drawn[amounts].size == SIZE
    assert bars(drawn[3.0, 1.0], blue) > 0 == bars(drawn[3.0, 1.0], yellow)
    assert bars(drawn[-1.0, -3.0], yellow) > 0 == bars(drawn[-1.0, -3.0], blue)
    both = drawn[3.0, -1.0]
    assert bars(both, blue) / bars(both, yellow) == pytest.approx(3, rel=0.1)


def test_a_drawing_is_saved_whole(tmp_path: Path) -> None:
    why = make().explain(pictures()[0])
    why.save(tmp_path / "why.PNG")
    with Image.open(tmp_path / "why.PNG") as saved:
        assert (saved.format, saved.size) == ("PNG", SIZE)
        assert np.array_equal(np.asarray(saved), np.asarray(why.plot()))
    for name in ("why.jpg", "why", "why.html.txt"):
        with pytest.raises(InputError, match=f"{name} must end in .png or .html"):
            why.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["why.PNG"]


class Page(HTMLParser):
    """The elements of a page, their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    names = ('<b>fox</b> & "son\'s"', "swan <script>", *(f"class {number}" for number in range(2, 9)))
    model = make(names=names)
    why = model.explain(pictures()[0], list(names[:2]))
    why.save(str(tmp_path / "why.html"))
    text = (tmp_path / "why.html").read_text(encoding="utf-8")
    page = Page(text)
    written = " ".join(page.texts)
    assert {why.answer, why.runner_up} == set(names[:2])
    assert page.texts.count(f"{why.answer}, not {why.runner_up}") == 2  # the title, and above all
    assert f"Above 0 for {why.answer}, below 0 for {why.runner_up}." in page.texts
    assert set(page.tags) == {"html", "meta", "title", "style", "h1", "p", "img", "table", "tr", "th", "td"}
    assert "://" not in text
    assert "url(" not in text
    assert not {"href", "srcset", "onload", "onerror"} & {name for name, _ in page.values}
    (source,) = (value or "" for name, value in page.values if name == "src")
    kind, _, encoded = source.partition("base64,")
    assert kind == "data:image/png;"
    with Image.open(BytesIO(base64.b64decode(encoded))) as drawn:
        assert drawn.size == SIZE
    assert f"{why.prediction.confidence:.0%} sure, among 2 classes" in written
    assert f"The logits are {why.margin:.2f} apart, {why.bias:+.2f} of which" in written
    rows = [text.split("<td>")[1:] for text in text.split("<tr>")[2:]]
    told = [[re.sub("<.*", "", cell) for cell in row] for row in rows]
    shown = [*why.speaks_for, *why.speaks_against[::-1]]
    assert len(shown) == 7
    assert told == [[one.name, f"{one.amount:+.2f}", why.place_name(one.place)] for one in shown]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "run")


def test_the_command_writes_and_tells(
    run: Path, picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(picture.parent)
    assert main(["explain", str(run), "picture.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "picture-why.html"
    found = re.fullmatch(r"(class \d) \(\d+% among 9 classes\), not (class \d)", lines[0])
    assert found is not None
    answer, other = found.groups()
    assert lines[1] == f"  for {answer}:"
    place = lines.index(f"  for {other}:")
    told = [re.fullmatch(r"    ([+-]\d+\.\d\d)  ([a-g]), read at (the whole picture|window \d)", one) for one in lines]
    signs = {number: one[1][0] for number, one in enumerate(told) if one is not None}
    assert sorted(signs) == [number for number in range(2, len(lines) - 1) if number != place]
    assert all((sign == "+") == (number < place) for number, sign in signs.items())
    assert Page(Path("picture-why.html").read_text()).texts.count(f"{answer}, not {other}") == 2


def test_the_command_replaces_nothing_unasked(run: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, before = picture.parent / "deep" / "why.png", picture.read_bytes()
    assert main(["explain", str(run), str(picture), "--out", str(out)]) == 0
    out.write_bytes(b"mine")
    capsys.readouterr()
    assert main(["explain", str(run), str(picture), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert main(["explain", str(run), str(picture), "--out", str(out), "--overwrite"]) == 0
    with Image.open(out) as drawn:
        assert drawn.size == SIZE
    assert main(["explain", str(run), str(picture), "--out", str(picture), "--overwrite"]) == 2
    assert "is one of the files to read" in capsys.readouterr().err
    assert picture.read_bytes() == before


def test_the_command_compares_what_is_asked_for(run: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = picture.parent / "more.csv"
    table.write_text("class;a;b\nodd one;1;0\n")
    words = ["explain", str(run), str(picture), "--out", str(picture.parent / "why.html"), "--overwrite"]
    model = load(run)
    model.add_classes({"odd one": {"a": 1.0}})
    for candidates in (["class 1", "odd one"], ["class 6", "class 2", "odd one"], "unseen"):
        answer = model.predict(picture, candidates).name
        for other in [name for name in model.classes.select(candidates).names if name != answer][-2:]:
            asked = candidates if isinstance(candidates, str) else "; ".join(candidates)
            given = ["--add-classes", str(table), "--classes", asked, "--against", other]
            assert main([*words, *given]) == 0
            first = capsys.readouterr().out.splitlines()[0]
            count = len(model.classes.select(candidates).names)
            assert re.fullmatch(rf"{answer} \(\d+% among {count} classes\), not {other}", first)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "unicorn"], "there is no class 'unicorn' among the candidates"),
        (["--classes", "class 2"], "there is one candidate"),
        (["--out", "why.txt"], "why.txt must end in .png or .html"),
        (["--add-classes", "nowhere.csv"], "nowhere.csv is not there"),
    ],
)
def test_the_command_complains_in_a_sentence(
    words: list[str],
    message: str,
    run: Path,
    picture: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(picture.parent)
    assert main(["explain", str(run), str(picture), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("erpcnet: ")
    assert message in error
    assert [path.name for path in picture.parent.iterdir()] == ["picture.png"]
