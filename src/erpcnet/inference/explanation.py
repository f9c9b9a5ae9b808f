"""Why one class and not another: what each attribute adds, and at which place of the picture it was read."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from erpcnet.data.tables import closest
from erpcnet.errors import InputError
from erpcnet.inference.class_table import Candidates
from erpcnet.inference.pictures import Picture, open_picture
from erpcnet.inference.prediction import Prediction
from erpcnet.model.localities import DirectLocalities
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.scoring import attribute_evidence, class_offsets
from erpcnet.model.selection import default_order
from erpcnet.utils.files import as_path, write_atomically

if TYPE_CHECKING:
    from PIL import Image

    from erpcnet.inference.classifier import ZeroShotClassifier
    from erpcnet.model import ERPCNet

GLANCE = 0  # the place of what was read from the whole picture
SHOWN = 8  # attributes for, and as many against


@dataclass(frozen=True)
class AttributeEvidence:
    """What one attribute adds to the logit of the answer over the runner-up's.

    Attributes:
        name: The attribute.
        amount: What it adds; below 0 it speaks for the runner-up.
        by_place: The same, place by place: of the glance first, then of each locality in order. They add up to it.
    """

    name: str
    amount: float
    by_place: tuple[float, ...]

    @property
    def place(self) -> int:
        """Where most of it was read: 0 is the glance, 1 the first locality."""
        sign = 1 if self.amount >= 0 else -1
        return max(range(len(self.by_place)), key=lambda place: sign * self.by_place[place])


@dataclass(frozen=True)
class Explanation:
    """Why a picture was taken for one class, and not for the runner-up.

    Attributes:
        prediction: What was answered, with the localities in order.
        answer: The class that is explained.
        runner_up: The class that it is compared with.
        evidence: Every attribute, the one that says most for the answer first.
        margin: The difference of the two logits of the centre crop.
        bias: The part of it that comes from class bias and delta, and no attribute.
        picture: What was explained.
    """

    prediction: Prediction
    answer: str
    runner_up: str
    evidence: tuple[AttributeEvidence, ...]
    margin: float
    bias: float
    picture: Image.Image

    @property
    def speaks_for(self) -> tuple[AttributeEvidence, ...]:
        """The attributes that say most for the answer."""
        return tuple(one for one in self.evidence[:SHOWN] if one.amount > 0)

    @property
    def speaks_against(self) -> tuple[AttributeEvidence, ...]:
        """The attributes that say most for the runner-up."""
        return tuple(one for one in self.evidence[::-1][:SHOWN] if one.amount < 0)

    def place_name(self, place: int) -> str:
        """What a place is called."""
        return "the whole picture" if place == GLANCE else f"window {place}"

    def plot(self) -> Image.Image:
        """A drawing: windows in order, confidence over steps, attributes for and against."""
        from erpcnet.inference.drawing import render_explanation  # matplotlib is slow to import

        return render_explanation(self)

    def save(self, out: str | Path) -> None:
        """Write the drawing as a .png file, or with a table as a .html page that needs nothing else.

        Raises:
            InputError: The ending is another one.
        """
        path = as_path(out, "the output")
        if path.suffix.lower() not in (".png", ".html"):
            raise InputError(f"{path} must end in .png or .html.")
        file = BytesIO()
        self.plot().save(file, "PNG")
        write_atomically(path, file.getvalue() if path.suffix.lower() == ".png" else self._page(file.getvalue()))

    def _page(self, png: bytes) -> bytes:
        rows = [
            f"<tr><td>{html.escape(one.name)}</td><td>{one.amount:+.2f}</td><td>{self.place_name(one.place)}</td></tr>"
            for one in (*self.speaks_for, *self.speaks_against[::-1])
        ]
        answer, other = html.escape(self.answer), html.escape(self.runner_up)
        text = (
            "<!doctype html><html lang='en'><meta charset='utf-8'>"
            f"<title>{answer}, not {other}</title><style>body{{font:15px/1.5 system-ui,sans-serif;max-width:1000px;"
            "margin:24px auto;padding:0 16px;color:#1c2430}img{max-width:100%}td{padding:2px 16px 2px 0}"
            "@media(prefers-color-scheme:dark){body{background:#14181f;color:#e6e9ef}img{background:#fff}}</style>"
            f"<h1>{answer}, not {other}</h1><p>{self.prediction.confidence:.0%} sure, among {self.prediction.among} "
            f"classes. The logits are {self.margin:.2f} apart, {self.bias:+.2f} of which is class bias and delta.</p>"
            f"<img alt='windows and attributes' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"
            f"<table><tr><th align='left'>attribute</th><th>says</th><th align='left'>read at</th></tr>{''.join(rows)}"
            f"</table><p>Above 0 for {answer}, below 0 for {other}.</p></html>"
        )
        return text.encode()


@torch.inference_mode()
def explain(
    classifier: ZeroShotClassifier, picture: Picture, candidates: Candidates = "all", against: str | None = None
) -> Explanation:
    """Why a picture is taken for a class, attribute by attribute and place by place, in its centre crop.

    The logit of a class is a sum over attributes, and a_j a sum over the glance and the localities: so each number is a
    part of the answer, and none is a guess.

    Args:
        classifier: What `erpcnet.load` returns.
        picture: One picture.
        candidates: As `predict` takes them.
        against: The class to compare with; by default the runner-up.

    Raises:
        InputError: There is nothing to compare with, or `against` is the answer.

    Examples:
        >>> why = explain(model, "some.png")
        >>> why.answer, why.runner_up, why.speaks_for[0].name
        >>> why.save("why.html")
    """
    network, point, table = classifier.network, classifier.point, classifier.classes.select(candidates)
    opened = open_picture(picture)
    prediction = classifier.predict(opened, candidates)
    if len(table.names) < 2:
        raise InputError("there is one candidate, and nothing to compare it with; name more classes.")
    other = against or next(name for name, _ in prediction.top if name != prediction.name)
    if other not in table.names:
        other = str(other)[:60]
        raise InputError(f"there is no class '{other}' among the candidates{closest(other, table.names) or '.'}")
    if other == prediction.name:
        raise InputError(f"'{other}' is the answer itself; compare with another class.")
    device = next(network.parameters()).device
    seen = torch.from_numpy(table.seen).to(device)
    classes = network.classes(table.phi().to(device), seen)
    pair = [table.names.index(name) for name in (prediction.name, other)]
    images = classifier.centre_crop(opened)
    stop = classifier.stop_rule(classes)
    with classifier.runtime.autocast(), classifier.runtime.tf32(device):
        localities = DirectLocalities(network, images)
        found = rollout(
            network,
            localities,
            default_order(network, classifier.engine.seed),
            stop=stop,
            max_steps=None if stop is None else stop.max_steps,
            keep_localities=bool(network.steps),
        )
    phi = classes.phi[pair]
    a_j, parts = _read_parts(network, found, localities.e_g)
    by_place = evidence_by_place(network, found.a_g, a_j, parts, phi[:1], phi[1:])[0]
    amounts = by_place.sum(dim=0)
    offsets = class_offsets(network, classes, seen, point.delta)[pair]
    bias = float(offsets[0] - offsets[1])
    evidence = [
        AttributeEvidence(name, amount, tuple(places))
        for name, amount, places in zip(table.attribute_names, amounts.tolist(), by_place.T.tolist(), strict=True)
    ]
    return Explanation(
        prediction=prediction,
        answer=prediction.name,
        runner_up=other,
        evidence=tuple(sorted(evidence, key=lambda one: -one.amount)),
        margin=float(amounts.sum()) + bias,
        bias=bias,
        picture=opened,
    )


def _read_parts(network: ERPCNet, found: Rollout, e_g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """a_j [1, A] where the rollout of a picture ended, and its parts [1, 1 + T, A]; None of the glance alone."""
    steps = int(found.steps[0])
    if not steps:
        return None, None
    assert found.e_l is not None
    a_j = found.a_j[:, steps - 1]
    parts = network.joint.parts(e_g, found.e_l[:, :steps])
    if parts is None:  # a head that is no sum: all of it counts as the glance's
        parts = torch.cat([a_j[:, None], a_j.new_zeros(1, steps, a_j.shape[1])], dim=1)
    return a_j, parts


def evidence_by_place(
    network: ERPCNet, a_g: Tensor, a_j: Tensor | None, parts: Tensor | None, phi: Tensor, other_phi: Tensor
) -> Tensor:
    """What each attribute, as read at each place, adds to the logit of one class over another's.

    Args:
        network: Whose compatibilities are used.
        a_g: [N, A].
        a_j: [N, A], the sum of `parts`; None: of the glance alone.
        parts: [N, 1 + T, A], what the glance and each locality add to a_j (see `JointHead.parts`).
        phi: The row [N, A] of each image's class.
        other_phi: The row [N, A] of the class that it is compared with.

    Returns:
        [N, 1 + T, A]: the glance first, with all of a_g; the sum over places and attributes is the margin of the two
        logits, less their class biases.
    """

    own, others = (attribute_evidence(network, a_g, a_j, rows, parts) for rows in (phi, other_phi))
    return own - others
