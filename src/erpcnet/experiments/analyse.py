"""`erpcnet analyse`: what to know of a run, and the paper's figures and analyses of it, as a page with pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from erpcnet.config import TestCrops
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.evaluation.baselines import learning_curve
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.evaluation.runs import OpenedRun, Validation, open_run, read_validation
from erpcnet.experiments import figures
from erpcnet.experiments.analysis import (
    Trajectories,
    class_records,
    embed,
    failures,
    follow,
    thresholds,
)
from erpcnet.experiments.attribute_places import attribute_places
from erpcnet.experiments.diagnosis import (
    CHANCE,
    WELL,
    attribute_records,
    close_pairs,
    more_would_bring,
    seen_records,
)
from erpcnet.experiments.page import Block, Page, Picture, Section, Slider, Table
from erpcnet.experiments.sheets import draw_sheets
from erpcnet.inference.examples import load_picture
from erpcnet.model.scoring import OperatingPoint
from erpcnet.model.selection import default_order
from erpcnet.utils.files import output_file, write_atomically
from erpcnet.utils.runtime import Runtime

SHOWN = 6  # pictures of a kind
LISTED = 10  # classes, attributes, pairs
DELTAS = 101  # at which a person can look
PAGE, HTML = "analysis.md", "analysis.html"
WRITTEN = (
    PAGE,
    HTML,
    "attributes.png",
    "mistaken.png",
    "learning.png",
    "seen-unseen.png",
    "steps.png",
    "thresholds.png",
    "glance.png",
    "won.png",
    "lost.png",
    "failures.png",
    "embeddings.png",
)


def analyse_run(
    run: str | Path,
    dataset: str | Path | None,
    out: Path,
    test_crops: TestCrops | None = None,
    overwrite: bool = False,
    device: str | None = None,
) -> Path:
    """Write the page `out`/analysis.md with its pictures, and `out`/analysis.html, which holds them; returns that.

    `overwrite`: those of an earlier analysis there may be replaced.
    """
    for name in WRITTEN:
        output_file(out / name, overwrite)
    opened = open_run(run, dataset, test_crops, device)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be made ({error.strerror}).") from None
    rollouts, point = opened.rollouts(), opened.point
    metrics, found = measure(rollouts, point, opened.config.seed), follow(rollouts, point)
    validation = read_validation(run)
    sections = [
        _attributes(validation, rollouts, out),
        _places(opened),
        _classes(rollouts, found, out),
        _seen_classes(rollouts, point),
        _more(opened, out),
        _curve(validation, rollouts, point, out),
    ]
    if opened.network.steps:
        sections += [_steps(rollouts, metrics, found, out), _threshold(rollouts, point, out)]
        sections += [_what_localities_change(run, rollouts, found, test_crops, out)]
    sections += [_embeddings(rollouts, found, out)]
    page = Page(*_head(run, metrics), [section for section in sections if section is not None])
    write_atomically(out / PAGE, f"{page.to_markdown()}\n".encode())
    write_atomically(out / HTML, page.to_html(out).encode())
    return out / HTML


def _head(run: str | Path, metrics: Metrics) -> tuple[str, str]:
    shown = {"T1": metrics.t1, "U": metrics.u, "S": metrics.s, "H": metrics.h, "AUSUC": metrics.ausuc}
    text = ", ".join(f"{name} {100 * value:.1f}" for name, value in shown.items() if value is not None)
    how = f"per cent; sigma and delta: {metrics.protocol}; crops: {metrics.crops}"
    return (
        f"{metrics.variant} on {metrics.dataset}: {Path(run).name}",
        f"{text} ({how}). All of this is of test images unless it says otherwise; nothing is chosen by it.",
    )


def _attributes(validation: Validation | None, rollouts: EvaluationRollouts, out: Path) -> Section | None:
    records = attribute_records(rollouts, None if validation is None else validation.attribute_auc)
    if not records:
        return None
    known = [one.on_validation if one.on_validation is not None else one.on_unseen or 0.0 for one in records]
    poorly, well = sum(area < CHANCE for area in known), sum(area >= WELL for area in known)
    shown = records if len(records) <= 2 * LISTED else [*records[:LISTED], *records[-LISTED:]]
    figures.draw_attributes(shown, out / "attributes.png")
    which = "every attribute" if shown is records else f"the {LISTED} that are read worst and the {LISTED} read best"
    return Section(
        "Attributes",
        [
            "How well each attribute is read off a picture: the chance that a picture of a class that has it gets a "
            "higher value than one of a class that has not (AUC; 50% is chance), on classes that were not trained on. "
            f"Of {len(records)} attributes {well} are read well ({WELL:.0%} or more), and {poorly} hardly at all "
            f"(below {CHANCE:.0%}): leave those out, describe them better, or add seen classes that differ in them.",
            Picture("attributes.png", f"AUC of {which}"),
        ],
    )


def _places(opened: OpenedRun) -> Section | None:
    """Where attributes are read, on datasets that know where parts are."""
    config, network, dataset = opened.config, opened.network, opened.dataset
    if "parts" not in dataset.extras or not network.steps or not network.tabulable:
        return None
    with Runtime.of(config.precision).autocast():
        order = default_order(network, config.seed)
        records = attribute_places(network, dataset, opened.loader, order, config.evaluation.batch_size)
    if not records:
        return None
    header = ("part", "images", "read in a locality that holds it", "one of T by chance", "any of T", "the middle one")
    rows = [
        (
            one.part,
            str(one.images),
            *(f"{share:.0%}" for share in (one.read, one.selected, one.any_selected, one.centre)),
        )
        for one in records
    ]
    blocks: list[Block] = [
        "For each part, the attribute of it that says most for the answer over the runner-up: how often the locality "
        "in which it was read (`erpcnet explain` shows it) holds the part, in the centre crop and after all T steps.",
        Table(header, rows),
    ]
    if records[0].pcp is not None:
        blocks += [
            "Percentage of correctly localised parts, by the rule of APN: a box of a quarter of the bird's width and "
            "height, where the localities say most of the attribute, overlaps one round the part by half.",
            Table(
                ("part", "where it is said most", "the middle"),
                [(one.part, f"{one.pcp:.0%}", f"{one.pcp_centre:.0%}") for one in records],
            ),
        ]
    return Section("Where attributes are read", blocks)


def _classes(rollouts: EvaluationRollouts, found: Trajectories, out: Path) -> Section:
    records = class_records(rollouts, found)
    rows = [
        (one.name, f"{one.accuracy:.0%}", f"{one.mistaken_for} ({one.how_often:.0%})" if one.mistaken_for else "")
        for one in records[:LISTED]
    ]
    perfect = sum(one.accuracy == 1 for one in records)
    blocks: list[Block] = [
        f"The {len(rows)} of {len(records)} unseen classes that fare worst, among unseen classes alone (always "
        f"right: {perfect}).",
        Table(("class", "right", "mistaken most often for"), rows),
    ]
    mistaken = [one for one in records if one.mistaken_for][:SHOWN]
    if mistaken:
        shown = mistaken_pictures(rollouts.dataset, found, [(one.name, one.mistaken_for) for one in mistaken])
        figures.draw_mistaken(shown, out / "mistaken.png")
        blocks.append(Picture("mistaken.png", "Above: mistaken for the class below, of which one picture is shown"))
    pairs = close_pairs(rollouts, found)[:LISTED]
    if pairs:
        blocks += [
            "Unseen classes whose rows are most alike. Where rows hardly differ, no picture helps: give such classes "
            "an attribute that tells them apart.",
            Table(
                ("class", "class", "cosine of their rows", "taken for each other"),
                [(one.first, one.second, f"{one.cosine:.2f}", f"{one.confused:.0%}") for one in pairs],
            ),
        ]
    return Section("Unseen classes", blocks)


def mistaken_pictures(
    dataset: ZeroShotDataset, found: Trajectories, pairs: Sequence[tuple[str, str]]
) -> list[tuple[str, Image.Image, str, Image.Image]]:
    """For each (class, what it is mistaken for): a picture that was, and one of the other class, each with its title.

    Of a class that several are mistaken for, each has another picture beside it as long as there are some.
    """
    labels, answers = found.labels.cpu().numpy(), found.answers[:, -1].cpu().numpy()
    shown, times = [], Counter[str]()
    for name, other in pairs:
        own, taken = dataset.classes.index(name), dataset.classes.index(other)
        picture = np.flatnonzero((labels == own) & (answers == taken))[0]
        examples = np.flatnonzero(labels == taken)
        example = examples[times[other] % len(examples)]
        times[other] += 1
        above, below = (load_picture(dataset, dataset.test_unseen[place]) for place in (picture, example))
        shown.append((name, above, f"taken for {other}", below))
    return shown


def _seen_classes(rollouts: EvaluationRollouts, point: OperatingPoint) -> Section | None:
    records = seen_records(rollouts, point)
    if not records:
        return None
    worst = [
        (one.name, f"{one.accuracy:.0%}", f"{one.mistaken_for} ({one.how_often:.0%})" if one.mistaken_for else "")
        for one in records[:LISTED]
    ]
    claiming = sorted(records, key=lambda one: -one.claims)[:LISTED]
    return Section(
        "Seen classes",
        [
            f"Among all classes, at delta {point.delta:.2f}: the {len(worst)} of {len(records)} seen classes that fare "
            "worst,",
            Table(("class", "right", "mistaken most often for"), worst),
            "and those for which pictures of unseen classes are taken most often (a share of all of these pictures).",
            Table(("class", "claims"), [(one.name, f"{one.claims:.1%}") for one in claiming if one.claims]),
        ],
    )


def _more(opened: OpenedRun, out: Path) -> Section | None:
    title = "More pictures, or more classes?"
    try:
        points = learning_curve(opened.config, opened.dataset)
    except InputError as error:
        return Section(title, [f"Not estimated: {error}"])
    figures.draw_learning(points, out / "learning.png")
    return Section(
        title,
        [
            "By ESZSL in closed form on the backbone's features before training, with fewer pictures of every seen "
            "class, and with fewer seen classes: an estimate within seconds, not of this network. "
            f"{more_would_bring(points)}",
            Picture(
                "learning.png", "T1 of ESZSL over what there is to learn from; bars: standard deviation of 3 draws"
            ),
        ],
    )


def _curve(
    validation: Validation | None, rollouts: EvaluationRollouts, point: OperatingPoint, out: Path
) -> Section | None:
    if rollouts.seen is None:
        return None
    figures.draw_curve(seen_unseen_curve(rollouts, point.sigma), point.delta, out / "seen-unseen.png")
    blocks: list[Block] = [
        "Calibrated stacking: delta, subtracted from the logits of seen classes, moves answers to unseen ones. "
        "`erpcnet evaluate --delta` tries another.",
        Picture(
            "seen-unseen.png", "S over U over all deltas, with the one that is used and the best one on test images"
        ),
    ]
    if validation is not None and validation.curve is not None:
        curve = validation.curve
        deltas = sorted({*np.linspace(0, max(curve.deltas), DELTAS).tolist(), point.delta})
        values = np.array([curve.at(delta) for delta in deltas]) * 100
        columns = {name: values[:, column].tolist() for column, name in enumerate("USH")}
        blocks += [
            f"What other deltas give on the validation data, in per cent ({curve.describe()}):",
            Slider("delta", deltas, columns, point.delta),
        ]
    return Section("Seen and unseen classes together", blocks)


def _steps(rollouts: EvaluationRollouts, metrics: Metrics, found: Trajectories, out: Path) -> Section:
    by_step = [metrics.t1_global, *metrics.t1_by_step]
    figures.draw_steps(by_step, found, out / "steps.png")
    table = Table(
        ("after step", *(str(step) for step in range(len(by_step)))),
        [("T1", *(f"{100 * t1:.1f}" for t1 in by_step))],
    )
    return Section(
        "Steps",
        ["If nobody stops; 0 is the glance.", table, Picture("steps.png", "T1 over steps, and steps taken")],
    )


def _threshold(rollouts: EvaluationRollouts, point: OperatingPoint, out: Path) -> Section | None:
    if rollouts.network.policy is None:  # which never stops
        return None
    sweep = thresholds(rollouts)
    figures.draw_thresholds(sweep, point.sigma, out / "thresholds.png")
    rows = [
        ("never" if math.isinf(one.sigma) else f"{one.sigma:g}", f"{100 * one.t1:.1f}", f"{one.mean_steps:.2f}")
        for one in sweep
    ]
    used = "never" if math.isinf(point.sigma) else f"{point.sigma:g}"
    return Section(
        "The threshold",
        [
            f"Images stop once they are sure by sigma; {used} is used.",
            Table(("sigma", "T1", "mean steps"), rows),
            Picture("thresholds.png", "T1 and steps over sigma"),
        ],
    )


def _what_localities_change(
    run: str | Path, rollouts: EvaluationRollouts, found: Trajectories, test_crops: TestCrops | None, out: Path
) -> Section:
    fates, steps = failures(found), found.steps.double()
    groups = (
        ("right at once: after the glance and at the end", fates.at_once),
        ("won: wrong after the glance, right at the end", fates.won),
        ("lost: right on the way, wrong at the end", fates.lost),
        ("never right", fates.never),
    )
    rows = [
        (name, str(len(images)), f"{float(steps[images].mean()):.2f}" if len(images) else "") for name, images in groups
    ]
    blocks: list[Block] = [
        f"Of {len(steps)} images {fates.right} are right at the end; localities won {len(fates.won)} of them, and lost "
        f"{len(fates.lost)} that were right before.",
        Table(("", "images", "localities, on average"), rows),
    ]
    if rollouts.network.policy is not None:  # chance would select others the next time
        blocks += draw_sheets(run, rollouts, found, fates, test_crops, out)
    if len(fates.lost):
        figures.draw_failures(fates, out / "failures.png")
        at = fates.lost_at.tolist()
        after = range(1, len(fates.chance_of_kept))
        blocks += [
            Table(("lost at step", *map(str, after)), [("images", *(str(at.count(step)) for step in after))]),
            Table(
                ("chance of the true class after step", *map(str, range(len(fates.chance_of_lost)))),
                [("lost", *(f"{100 * value:.1f}" for value in fates.chance_of_lost.tolist()))],
            ),
            Picture("failures.png", "When right answers were lost, and how sure the network was of the true class"),
        ]
    return Section("What localities change", blocks)


def _embeddings(rollouts: EvaluationRollouts, found: Trajectories, out: Path) -> Section | None:
    embeddings = embed(rollouts, found)
    if embeddings is None:
        return None
    figures.draw_embeddings(embeddings, rollouts.dataset.classes, out / "embeddings.png")
    count, also = (
        len(np.unique(embeddings.labels)),
        "" if embeddings.of_both is None else ", and with what localities add",
    )
    return Section(
        "Embeddings",
        [
            f"t-SNE of the {count} unseen classes that the glance mistakes most often, by what it says of their images"
            f"{also}.",
            Picture("embeddings.png", "Each point is an image, and each colour a class"),
        ],
    )
