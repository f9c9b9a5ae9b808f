"""The page of `erpcnet demo` in Chromium, as people use it: by mouse, by keyboard, in a narrow window, in the dark."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image, ImageColor
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import Browser
from conftest import small_network
from erpcnet.config import DataSettings, LocalSettings
from erpcnet.data.images import load_image
from erpcnet.inference import ZeroShotClassifier
from erpcnet.inference.app import create_app
from erpcnet.inference.drawing import RIGHT, WRONG
from erpcnet.inference.server import Server
from erpcnet.inference.service import Service

NARROW = 360
LONG_NAME = "x" * 120  # a name without a blank at which to break it
SCRIPT = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
DROP = """
const given = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[0]), one => one.charCodeAt(0));
given.items.add(new File([bytes], "dropped"));
for (const kind of ["dragover", "drop"])
  document.getElementById("drop").dispatchEvent(
    new DragEvent(kind, { dataTransfer: given, bubbles: true, cancelable: true }));
"""
READY = "return document.querySelectorAll('#classes li').length"
ANSWERED = "return !document.getElementById('found').hidden && document.getElementById('drop').ariaBusy === 'false'"
# Of every text that is to be seen: what it is, and its contrast as WCAG 2 has it.
CONTRASTS = """
const parse = text => text.match(/[\\d.]+/g).map(Number);
const light = colour => {
  const linear = share => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  const [red, green, blue] = colour.map(one => linear(one / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const behind = element => {
  for (let one = element; one; one = one.parentElement) {
    const [red, green, blue, alpha = 1] = parse(getComputedStyle(one).backgroundColor);
    if (alpha === 1) return [red, green, blue];
    if (alpha !== 0) throw new Error("a background lets through");
  }
  throw new Error("there is no background");
};
const found = [], measure = (text, element, style) => {
  const [one, other] = [light(parse(style.color).slice(0, 3)), light(behind(element))].sort((a, b) => b - a);
  found.push([text, (one + 0.05) / (other + 0.05)]);
};
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
  if (text && element.tagName !== "SCRIPT" && element.checkVisibility({ opacityProperty: true }))
    measure(text, element, getComputedStyle(element));
}
for (const field of document.querySelectorAll("input:not([type=file]), select"))
  if (field.checkVisibility()) {
    measure(field.ariaLabel || field.id || "a value", field, getComputedStyle(field));
    if (field.placeholder) measure(field.placeholder, field, getComputedStyle(field, "::placeholder"));
  }
return found;
"""


class Page(NamedTuple):
    """A page that is open, and what answers it."""

    browser: Browser
    service: Service
    address: str

    def text(self, selector: str) -> str:
        return self.browser.find(selector).text

    def texts(self, selector: str) -> list[str]:
        return self.browser.run(
            "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)", selector
        )

    def drop(self, content: bytes) -> None:
        self.browser.run(DROP, base64.b64encode(content).decode())

    def answer(self, picture: Path) -> str:
        """What is said of a picture that is dropped."""
        self.drop(picture.read_bytes())
        self.browser.wait(ANSWERED)
        return self.text("#name")

    def told(self, what: str = "#told") -> str:
        """What is said once something is."""
        self.browser.wait(f"return document.querySelector('{what}').textContent")
        return self.text(what)

    def fill(self, name: str, values: dict[str, float]) -> None:
        """The form of a class."""
        if name:
            self.browser.find("#newname").send_keys(name)
        for attribute, value in values.items():
            self.value(attribute, str(value))

    def value(self, attribute: str, text: str) -> None:
        search = self.browser.find("#search")
        search.clear()
        search.send_keys(attribute)
        field = self.browser.find("#attributes input")
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        ActionChains(self.browser.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """What has the focus, as somebody would hear it."""
        return self.browser.run(
            "const one = document.activeElement; return one.ariaLabel || one.innerText || one.labels?.[0]?.innerText"
        )

    def tab_to(self, what: str, most: int = 60) -> None:
        for _ in range(most):
            self.press(Keys.TAB)
            if (self.focused() or "").strip().startswith(what):
                return
        raise AssertionError(f"Tab does not lead to {what!r}")

    def open(self, width: int = 1000, dark: bool = False) -> None:
        """Anew, in a window of so many pixels."""
        self.browser.open("about:blank")  # or what differs behind the # alone loads nothing
        self.browser.open(self.address, width, dark=dark)
        self.browser.wait(READY)


Open = Callable[..., Page]


@pytest.fixture
def page(browser: Browser, classifier: ZeroShotClassifier, picture: Path) -> Iterator[Open]:
    """Opens pages, and sees in the end that nothing went wrong on them."""
    running: list[tuple[Server, Thread]] = []

    def begin(model: ZeroShotClassifier = classifier, token: str | None = None, behind: str = "") -> Page:
        service = Service(model, [load_image(picture)])
        server = Server(create_app(service, token=token), "127.0.0.1", 0)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread))
        browser.console()
        opened = Page(browser, service, f"http://127.0.0.1:{server.port}/{behind}")
        if token is None:
            opened.open()
        return opened

    yield begin
    complaints = browser.console()
    browser.open("about:blank")
    for server, thread in running:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert complaints == []


@pytest.fixture
def zoomed(classifier: ZeroShotClassifier) -> ZeroShotClassifier:
    """One that reads windows from a finer image."""
    network = small_network(local=LocalSettings(zoom=2))
    data = DataSettings(image_size=128, test_crops=2)
    return ZeroShotClassifier(network, classifier.classes, data, replace(classifier.point, sigma=float("inf")))


@pytest.fixture
def smooth(tmp_path: Path) -> Path:
    """A picture that says at each place where that is: red is x, green y, blue their mean."""
    y, x = np.mgrid[:160, :220]
    path = tmp_path / "smooth.png"
    Image.fromarray(np.stack([x, y, (x + y) // 2], axis=2).astype(np.uint8)).save(path)
    return path


def rgb(colour: str) -> str:
    """A colour as Chromium has it."""
    return f"rgb{ImageColor.getrgb(colour)}"


def listed(page: Page) -> list[tuple[str, str]]:
    """The classes that the page shows, each with its mark."""
    return list(zip(page.texts("#classes li > :nth-child(1)"), page.texts("#classes li > :nth-child(2)"), strict=True))


def test_a_picture_that_is_dropped_is_answered(page: Open, classifier: ZeroShotClassifier, picture: Path) -> None:
    expected = classifier.predict(picture, "all")
    opened = page()
    assert opened.text("#about").startswith("erpcnet, 9 classes by 7 attributes; it was trained on pictures of 5")
    assert opened.answer(picture) == expected.name
    assert f"{expected.confidence:.0%}".rstrip("%") in opened.text("#sure")
    assert "among 9 classes" in opened.text("#sure")
    lines = opened.texts("#steps button span:first-child")
    answers = [expected.glance_answer, *(one.answer for one in expected.localities)]
    assert [line.partition(": ")[2] for line in lines] == answers
    assert opened.browser.find("#windows").is_displayed() is False
    best = [name for name, part in sorted(expected.evidence.items(), key=lambda one: -one[1]) if part > 0]
    assert opened.texts("#telling .bar span") == best
    opened.browser.run("document.getElementById('candidates').value = 'unseen'; predict()")
    opened.browser.wait("return document.getElementById('sure').innerText.includes('among 4 classes')")
    assert opened.text("#name") == classifier.predict(picture, "unseen").name


def test_the_frames_have_the_colours_of_the_drawings(page: Open, smooth: Path) -> None:
    """Blue is the final answer, yellow another; and what the network does not see is dimmed."""
    opened = page()
    colours = opened.browser.run("return [RIGHT, OTHER, at('right').style.background, at('other').style.background]")
    assert colours == [RIGHT, WRONG, rgb(RIGHT), rgb(WRONG)]
    opened.answer(smooth)
    pixel = """
    const canvas = document.querySelector("#drop canvas");
    const [x, y] = [...arguments].map(edge => edge * canvas.width / picture.width);
    return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
    """
    opened.browser.run("Object.assign(found, { object_crop: null, centre_crop: [50, 20, 200, 140] }); look(0)")
    for x, y, share in ((100, 80, 1.0), (20, 80, 0.55), (100, 10, 0.55), (210, 150, 0.55)):
        np.testing.assert_allclose(
            opened.browser.run(pixel, x, y), [share * part for part in (x, y, (x + y) / 2)], atol=2
        )
    opened.browser.run("found.localities = [{ box: [60, 30, 120, 90], answer: found.name }]; look(1)")
    assert f"rgb{(*opened.browser.run(pixel, 90, 30),)}" == rgb(RIGHT)
    opened.browser.run("found.localities[0].answer = 'another'; look(1)")
    assert f"rgb{(*opened.browser.run(pixel, 90, 30),)}" == rgb(WRONG)


def test_an_example_that_is_clicked_is_answered(page: Open, classifier: ZeroShotClassifier, picture: Path) -> None:
    opened = page()
    opened.browser.wait("return document.querySelector('#examples img')?.naturalWidth")
    opened.browser.find("#examples button").click()
    opened.browser.wait(ANSWERED)
    assert opened.text("#name") == classifier.predict(picture, "all").name


def test_a_broken_file_gives_one_sentence(page: Open, picture: Path) -> None:
    opened = page()
    opened.drop(b"no picture")
    sentence = opened.told("#error")
    assert sentence.startswith("this file does not decode as an image")
    assert "\n" not in sentence
    assert not opened.browser.find("#found").is_displayed()
    # Chromium itself complains of every answer that is no 200.
    assert all("/predict" in one and "400" in one for one in opened.browser.console())
    assert opened.answer(picture)
    assert opened.text("#error") == ""


def test_a_class_is_added_changed_and_removed(page: Open, picture: Path) -> None:
    opened = page()
    assert listed(opened) == [(f"class {number}", "seen" if number < 5 else "unseen") for number in range(9)]
    opened.answer(picture)
    opened.fill("night owl", {"a": 1, "c": 0.5})
    assert opened.text("#chosen") == "It has a 1; c 0.5."
    opened.browser.find("#done").click()
    assert opened.told() == "night owl is known now."
    assert listed(opened)[-1] == ("night owl", "unseen")
    assert opened.service.one_class("night owl")["attributes"] == {"a": 1.0, "c": 0.5}
    opened.browser.wait("return document.getElementById('sure').innerText.includes('among 10 classes')")

    # Any class, seen ones too; those attributes that are not touched stay.
    before = opened.service.one_class("class 2")["attributes"]
    opened.browser.find("[aria-label='change class 2']").click()
    opened.browser.wait("return document.getElementById('what').innerText === 'The attributes of class 2'")
    first = max(before, key=before.__getitem__)
    shown = float(opened.browser.find("#attributes input").get_property("value"))  # type: ignore[arg-type]
    assert shown == pytest.approx(before[first], abs=6e-4)
    opened.value("b", "0.25")
    opened.value("d", "0")
    opened.browser.find("#done").click()
    opened.browser.wait("return document.getElementById('told').textContent === 'class 2 is changed.'")
    left = {name: value for name, value in before.items() if name != "d"}
    assert opened.service.one_class("class 2")["attributes"] == {**left, "b": 0.25}
    assert opened.text("#what") == "A class nobody has a picture of"

    opened.browser.find("[aria-label='change class 1']").click()
    opened.browser.wait("return document.getElementById('what').innerText === 'The attributes of class 1'")
    for name in ("night owl", "class 1"):
        opened.browser.find(f"[aria-label='remove {name}']").click()
        opened.browser.wait(f"return document.getElementById('told').textContent === '{name} is forgotten.'")
    assert opened.text("#what") == "A class nobody has a picture of"
    assert [name for name, _ in listed(opened)] == [f"class {number}" for number in (0, *range(2, 9))]
    opened.browser.wait("return document.getElementById('sure').innerText.includes('among 8 classes')")


def recognised(classifier: ZeroShotClassifier, picture: Path) -> dict[str, float]:
    """Attributes of a class that this picture is taken for, once somebody describes it."""
    random, tried = np.random.default_rng(0), deepcopy(classifier)
    for _ in range(500):
        values = dict(zip(tried.classes.attribute_names, random.uniform(0, 1, 7).round(2).tolist(), strict=True))
        tried.add_classes({"night owl": values})
        if tried.predict(picture, "all").name == "night owl":
            return values
        tried.remove_classes(["night owl"])
    raise AssertionError("no description was found")


def test_a_new_class_is_recognised_in_the_browser(page: Open, classifier: ZeroShotClassifier, picture: Path) -> None:
    values = recognised(classifier, picture)
    opened = page(deepcopy(classifier))
    assert opened.answer(picture) != "night owl"
    opened.fill("night owl", values)
    opened.browser.find("#done").click()
    assert opened.told() == "night owl is known now."
    opened.browser.wait("return document.getElementById('name').innerText === 'night owl'")
    assert opened.answer(picture) == "night owl"


def test_a_new_class_is_recognised_over_rest(page: Open, classifier: ZeroShotClassifier, picture: Path) -> None:
    values = recognised(classifier, picture)
    address = page(deepcopy(classifier)).address

    def ask(path: str, content: bytes, kind: str) -> Any:
        with urlopen(Request(f"{address}{path}", content, {"Content-Type": kind}), timeout=20) as reply:
            return json.load(reply)

    assert ask("predict", picture.read_bytes(), "application/octet-stream")["name"] != "night owl"
    ask("classes", json.dumps({"name": "night owl", "attributes": values}).encode(), "application/json")
    assert ask("predict", picture.read_bytes(), "application/octet-stream")["name"] == "night owl"


def test_a_wrong_class_is_told_in_a_sentence(page: Open) -> None:
    opened = page()
    cases: list[tuple[str, dict[str, float], str]] = [
        ("", {}, "the class needs a name."),
        ("new", {}, "every attribute of class 'new' is 0"),
        ("new", {"a": 1.5}, "how much it has of 'a' must be a number from 0 to 1."),
        ("class 3", {"a": 1}, "class 'class 3' is known already."),
    ]
    for name, values, sentence in cases:
        opened.open()
        opened.fill(name, values)
        opened.browser.find("#done").click()
        assert opened.told("#wrong").startswith(sentence)
    assert len(opened.service.classes()) == 9
    search = opened.browser.find("#search")
    search.clear()
    search.send_keys("zebra")
    assert opened.text("#more") == "there is no attribute 'zebra'."
    assert all("/classes" in one and "400" in one for one in opened.browser.console())


def test_classes_of_others_are_listed_and_found_among_many(page: Open) -> None:
    opened = page()
    assert not opened.browser.find("#filter").is_displayed()
    for number in range(300):
        opened.service.add_class(f"many {number}", {"a": 1.0})
    opened.open()
    assert len(listed(opened)) == 200
    assert opened.text("#others").startswith("200 of 309 are shown")
    opened.browser.find("#filter").send_keys("MANY 29")
    assert [name for name, _ in listed(opened)] == [f"many {number}" for number in (29, *range(290, 300))]
    opened.browser.find("[aria-label='remove many 291']").click()
    opened.browser.wait("return document.getElementById('told').textContent === 'many 291 is forgotten.'")
    assert opened.focused() == "remove many 292"
    opened.fill("another", {"b": 1})
    opened.browser.find("#done").click()
    opened.browser.wait("return document.getElementById('told').textContent === 'another is known now.'")
    assert listed(opened) == [("another", "unseen")]
    opened.browser.find("#filter").send_keys("x")
    assert opened.text("#others") == "No class is called that."


def test_by_keyboard_alone(page: Open, picture: Path) -> None:
    opened = page()
    opened.browser.wait("return document.querySelector('#examples img')?.naturalWidth")
    opened.browser.run(
        "at('file').onclick = event => { event.preventDefault(); (window.asked_for ??= []).push(event); }"
    )
    opened.press(Keys.TAB)
    assert opened.focused() == "Choose a picture"
    opened.press(Keys.ENTER)
    opened.press(Keys.SPACE)
    assert opened.browser.run("return window.asked_for.length") == 2
    opened.press(Keys.TAB, Keys.ENTER)  # the example
    opened.browser.wait(ANSWERED)
    opened.press(Keys.TAB)
    assert opened.browser.run("return document.activeElement.id") == "candidates"
    for number in range(opened.browser.run("return found.localities.length + 1")):
        opened.press(Keys.TAB, Keys.ENTER if number % 2 else Keys.SPACE)
        assert opened.browser.run("return [step, document.activeElement.ariaCurrent]") == [number, "step"]

    opened.tab_to("name of the class")
    opened.press("owl", Keys.TAB)
    assert opened.focused() == "Add the class"
    opened.press(Keys.TAB)
    assert opened.focused() == "find an attribute"
    for attribute, value in (("b", "0.5"), ("e", "1")):
        opened.press(attribute, Keys.ENTER, value, Keys.ENTER)
        assert opened.focused() == "find an attribute"
    assert opened.text("#chosen") == "It has e 1; b 0.5."
    opened.browser.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    assert opened.focused() == "Add the class"
    opened.press(Keys.SPACE)
    assert opened.told() == "owl is known now."
    assert opened.service.one_class("owl")["attributes"] == {"b": 0.5, "e": 1.0}

    opened.tab_to("change owl")
    opened.press(Keys.ENTER)
    opened.browser.wait("return document.getElementById('what').innerText === 'The attributes of owl'")
    assert opened.focused() == "find an attribute"
    opened.press("g", Keys.ENTER, "1", Keys.ENTER)
    opened.browser.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    assert opened.focused() == "Leave it"
    opened.browser.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    opened.press(Keys.ENTER)
    opened.browser.wait("return document.getElementById('told').textContent === 'owl is changed.'")
    assert opened.service.one_class("owl")["attributes"] == {"b": 0.5, "e": 1.0, "g": 1.0}
    assert opened.focused() == "change owl"
    opened.press(Keys.TAB)
    assert opened.focused() == "remove owl"
    opened.press(Keys.SPACE)
    opened.browser.wait("return document.getElementById('told').textContent === 'owl is forgotten.'")
    assert opened.focused() == "remove class 8"


def test_windows_read_with_zoom_are_shown_enlarged(page: Open, zoomed: ZeroShotClassifier, smooth: Path) -> None:
    """Cut from the picture, beside it, one for each step with its number and the answer after it."""
    expected = zoomed.predict(smooth, "all")
    assert expected.steps >= 2
    opened = page(zoomed)
    opened.answer(smooth)
    shown = opened.texts("#windows .window")
    assert [" ".join(one.split()) for one in shown] == [
        f"{number} {one.answer} {100 * one.confidence:.0f} %" for number, one in enumerate(expected.localities, start=1)
    ]
    borders = opened.browser.run("return [...at('windows').children].map(one => getComputedStyle(one).borderTopColor)")
    for number, (one, border) in enumerate(zip(expected.localities, borders, strict=True)):
        colour = RIGHT if one.answer == expected.name else WRONG
        assert border == rgb(colour)
        url = opened.browser.run(f"return at('windows').children[{number}].children[0].toDataURL()")
        cut = Image.open(BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
        left, upper, right, lower = one.box
        middle = np.asarray(cut)[cut.height // 2, cut.width // 2].astype(int)
        corner = np.asarray(cut)[cut.height // 8, cut.width // 8].astype(int)
        for found, share in ((middle, 0.5), (corner, 0.125)):
            across, down = left + share * (right - left), upper + share * (lower - upper)
            np.testing.assert_allclose(found, [across, down, (across + down) / 2], atol=2.5)
    edges = "const one = at(arguments[0]).getBoundingClientRect(); return [one.left, one.right, one.top]"
    places = [opened.browser.run(edges, name) for name in ("drop", "windows")]
    assert places[0][1] <= places[1][0]
    assert places[0][2] == places[1][2]
    width = "return document.querySelector(arguments[0]).getBoundingClientRect().width"
    tile, drawing = (opened.browser.run(width, f"{name} canvas") for name in ("#windows", "#drop"))
    left, _, right, _ = expected.localities[0].box
    assert tile > 1.3 * (right - left) * drawing / 220  # larger than on the drawing
    opened.browser.find("#windows .window").click()
    assert opened.browser.run("return step") == 1


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read(page: Open, zoomed: ZeroShotClassifier, picture: Path, dark: bool) -> None:
    opened = page(zoomed)
    opened.open(dark=dark)
    assert opened.browser.run("return matchMedia('(prefers-color-scheme: dark)').matches") == dark
    opened.answer(picture)
    opened.fill("new", {"a": 1})
    opened.browser.find("#done").click()
    opened.told()
    opened.browser.wait(ANSWERED)
    opened.browser.run("say(new Error('an error')); tell('done', new Error('another'))")
    found = {text: float(contrast) for text, contrast in opened.browser.run(CONTRASTS)}
    for text in ("an error", "another", "done", "seen", "unseen", "1", "new", "find an attribute", "the final answer"):
        assert text in found
    assert {text: contrast for text, contrast in found.items() if contrast < 4.5} == {}
    background = opened.browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")


def test_a_narrow_window_does_not_scroll_sideways(page: Open, zoomed: ZeroShotClassifier, picture: Path) -> None:
    zoomed.add_classes({LONG_NAME: {"a": 1.0}})
    opened = page(zoomed)

    def too_wide() -> list[str]:
        return opened.browser.run(
            "return [...document.body.querySelectorAll('*')].filter(one => one.checkVisibility()"
            " && one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML.slice(0, 80))"
        )

    opened.open(NARROW)
    assert opened.browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [NARROW, NARROW]
    assert too_wide() == []
    opened.answer(picture)
    opened.browser.run("found.name = arguments[0]; found.localities[0].answer = arguments[0]; list()", LONG_NAME)
    opened.browser.find(f"[aria-label='change {LONG_NAME}']").click()
    opened.browser.wait("return document.getElementById('what').innerText.startsWith('The attributes of')")
    opened.browser.run("say(new Error(arguments[0])); tell(arguments[0], new Error(arguments[0]))", LONG_NAME)
    assert opened.browser.run("return document.documentElement.scrollWidth") == NARROW
    assert too_wide() == []


def test_names_with_html_are_shown_as_they_are_written(
    page: Open, classifier: ZeroShotClassifier, picture: Path
) -> None:
    classifier.remove_classes(classifier.classes.names[1:])
    opened = page()
    opened.fill(SCRIPT, {"a": 1})
    opened.browser.find("#done").click()
    opened.told()
    opened.service.remove_class("class 0")
    opened.open()
    assert listed(opened) == [(SCRIPT, "unseen")]
    assert opened.answer(picture) == SCRIPT
    assert all(SCRIPT in line for line in opened.texts("#steps button"))
    opened.browser.find("#classes button").click()
    opened.browser.wait("return document.getElementById('what').innerText.startsWith('The attributes of')")
    assert opened.text("#what") == f"The attributes of {SCRIPT}"
    assert opened.browser.run("return document.querySelectorAll('b, [onerror], img[src=x]').length") == 0
    assert opened.browser.run("return document.title") == "ERPCNet"


@pytest.mark.parametrize("token", ["secret", "ключ +/%&="])
def test_a_token_behind_the_address_lets_the_page_ask(
    page: Open, classifier: ZeroShotClassifier, picture: Path, token: str
) -> None:
    opened = page(token=token)
    opened.browser.open(opened.address)
    assert opened.told("#error") == "this server wants a token: open the address that ends in #token=..."
    assert all("401" in one for one in opened.browser.console())
    opened.browser.run("location.hash = arguments[0]", f"token={quote(token, safe='')}")
    opened.browser.wait(READY)
    assert opened.text("#error") == ""
    opened.browser.wait("return document.querySelector('#examples img')?.naturalWidth")
    assert opened.answer(picture) == classifier.predict(picture, "all").name
    opened.fill("new", {"a": 1})
    opened.browser.find("#done").click()
    assert opened.told() == "new is known now."
