"""`erpcnet analyse`: the paper's figures and analyses of a run, as a page with pictures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from erpcnet.config import TestCrops
from erpcnet.data import ZeroShotDataset
from erpcnet.errors import InputError
from erpcnet.evaluation.gzsl import seen_unseen_curve
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.rollouts import EvaluationRollouts
from erpcnet.evaluation.runs import open_run
from erpcnet.experiments import figures
from erpcnet.experiments.analysis import (
    Failures,
    Trajectories,
    class_records,
    embed,
    failures,
    follow,
    thresholds,
)
from erpcnet.experiments.report import markdown_table
from erpcnet.inference.drawing import draw_localities
from erpcnet.inference.examples import load_picture
from erpcnet.inference.loading import load
from erpcnet.model.scoring import OperatingPoint
from erpcnet.utils.files import output_file

SHOWN = 6  # pictures of failures
LISTED = 10  # classes
PAGE = "analysis.md"
WRITTEN = (PAGE, "seen-unseen.png", "steps.png", "thresholds.png", "failures.png", "lost.png", "embeddings.png")


def analyse_run(
    run: str | Path,
    dataset: str | Path | None,
    out: Path,
    test_crops: TestCrops | None = None,
    overwrite: bool = False,
    device: str | None = None,
) -> Path:
    """Write the page `out`/analysis.md and its pictures; returns the page.

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
    parts = [_head(run, metrics), _curve(rollouts, point, out)]
    if opened.network.steps:
        parts.append(_steps(rollouts, metrics, found, point, out))
        parts.append(_failures(run, rollouts, failures(found), test_crops, out))
    parts += [_classes(rollouts, found), _embeddings(rollouts, found, out)]
    page = out / PAGE
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return page


def _head(run: str | Path, metrics: Metrics) -> str:
    figures = {"T1": metrics.t1, "U": metrics.u, "S": metrics.s, "H": metrics.h, "AUSUC": metrics.ausuc}
    text = ", ".join(f"{name} {100 * value:.1f}" for name, value in figures.items() if value is not None)
    how = f"per cent; sigma and delta: {metrics.protocol}; crops: {metrics.crops}"
    return (
        f"# {metrics.variant} on {metrics.dataset}: {Path(run).name}\n\n{text} ({how}). All of this is of test images; "
        "nothing is chosen by it."
    )


def _curve(rollouts: EvaluationRollouts, point: OperatingPoint, out: Path) -> str:
    if rollouts.seen is None:
        return ""
    figures.draw_curve(seen_unseen_curve(rollouts, point.sigma), point.delta, out / "seen-unseen.png")
    return (
        "## Seen and unseen classes together\n\nCalibrated stacking: delta, subtracted from the logits of seen "
        "classes, moves answers to unseen ones.\n\n![S over U](seen-unseen.png)"
    )


def _steps(
    rollouts: EvaluationRollouts, metrics: Metrics, found: Trajectories, point: OperatingPoint, out: Path
) -> str:
    by_step = [metrics.t1_global, *metrics.t1_by_step]
    figures.draw_steps(by_step, found, out / "steps.png")
    table = markdown_table(
        ("after step", *(str(step) for step in range(len(by_step)))),
        [("T1", *(f"{100 * t1:.1f}" for t1 in by_step))],
    )
    text = f"## Steps\n\nIf nobody stops; 0 is the glance.\n\n{table}\n\n![T1 over steps, and steps taken](steps.png)"
    if rollouts.network.policy is None:  # which never stops
        return text
    sweep = thresholds(rollouts)
    figures.draw_thresholds(sweep, point.sigma, out / "thresholds.png")
    rows = [
        ("never" if math.isinf(one.sigma) else f"{one.sigma:g}", f"{100 * one.t1:.1f}", f"{one.mean_steps:.2f}")
        for one in sweep
    ]
    used = "never" if math.isinf(point.sigma) else f"{point.sigma:g}"
    return (
        f"{text}\n\n## The threshold\n\nImages stop once they are sure by sigma; {used} is used.\n\n"
        f"{markdown_table(('sigma', 'T1', 'mean steps'), rows)}\n\n![T1 and steps over sigma](thresholds.png)"
    )


def _failures(
    run: str | Path, rollouts: EvaluationRollouts, found: Failures, test_crops: TestCrops | None, out: Path
) -> str:
    lost, steps = len(found.lost), range(1, len(found.chance_of_kept))
    text = (
        f"## Right answers lost on the way\n\nOf {found.images} images {found.right} are right at the end, "
        f"{found.won} of which were not after the glance; {found.never} never are, and {lost} were right and are not "
        "any more."
    )
    if not lost:
        return text
    shown = ""
    if rollouts.network.policy is not None:  # chance would select others the next time
        text += " The paper calls these failures of the policy."
        lost_rows = rollouts.dataset.test_unseen[found.lost.cpu().numpy()]
        _draw_lost(run, rollouts.dataset, lost_rows, test_crops, out / "lost.png")
        shown = "\n\n![Some of them](lost.png)"
    figures.draw_failures(found, out / "failures.png")
    at = found.lost_at.tolist()
    counts = markdown_table(("lost at step", *map(str, steps)), [("images", *(str(at.count(step)) for step in steps))])
    chance = markdown_table(
        ("chance of the true class after step", *map(str, range(len(found.chance_of_lost)))),
        [("lost", *(f"{100 * value:.1f}" for value in found.chance_of_lost.tolist()))],
    )
    return f"{text}\n\n{counts}\n\n{chance}\n\n![When, and how sure](failures.png){shown}"


def _draw_lost(
    run: str | Path, dataset: ZeroShotDataset, rows: np.ndarray, test_crops: TestCrops | None, out: Path
) -> None:
    """The localities of some of these images, from the first class to the last."""
    rows = rows[np.argsort(dataset.labels[rows], kind="stable")]
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, SHOWN).astype(int))]
    pictures = [load_picture(dataset, row) for row in rows]
    found = load(run, test_crops=test_crops).predict(pictures, "unseen")
    draw_localities(pictures, found, [dataset.classes[dataset.labels[row]] for row in rows], out)


def _classes(rollouts: EvaluationRollouts, found: Trajectories) -> str:
    records = class_records(rollouts, found)
    rows = [
        (one.name, f"{one.accuracy:.0%}", f"{one.mistaken_for} ({one.how_often:.0%})" if one.mistaken_for else "")
        for one in records[:LISTED]
    ]
    perfect = sum(one.accuracy == 1 for one in records)
    table = markdown_table(("class", "right", "mistaken most often for"), rows)
    return (
        f"## Classes\n\nThe {len(rows)} of {len(records)} unseen classes that fare worst; {perfect} are always right."
        f"\n\n{table}"
    )


def _embeddings(rollouts: EvaluationRollouts, found: Trajectories, out: Path) -> str:
    embeddings = embed(rollouts, found)
    if embeddings is None:
        return ""
    figures.draw_embeddings(embeddings, rollouts.dataset.classes, out / "embeddings.png")
    count, also = (
        len(np.unique(embeddings.labels)),
        "" if embeddings.of_both is None else ", and with what localities add",
    )
    return (
        f"## Embeddings\n\nt-SNE of the {count} unseen classes that the glance mistakes most often, by what it says of "
        f"their images{also}.\n\n![t-SNE](embeddings.png)"
    )
