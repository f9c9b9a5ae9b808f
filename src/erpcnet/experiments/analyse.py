"""`erpcnet analyse`: the paper's figures and analyses of a run, as a page with pictures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from erpcnet.data import ZeroShotDataset
from erpcnet.data.settings import TestViews
from erpcnet.errors import InputError
from erpcnet.evaluation.protocol import EvaluationWalks, Metrics, measure, seen_unseen_curve
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
from erpcnet.files import output_file
from erpcnet.inference.explain import draw_localities
from erpcnet.model.scoring import OperatingPoint
from erpcnet.pipeline import walk_test
from erpcnet.runs import load, picture_of, reopen

SHOWN = 6  # pictures of failures
LISTED = 10  # classes
PAGE = "analysis.md"
WRITTEN = (PAGE, "seen-unseen.png", "steps.png", "thresholds.png", "failures.png", "lost.png", "embeddings.png")


def analyse_run(
    run: str | Path, data: str | Path, out: Path, test_views: TestViews | None = None, overwrite: bool = False
) -> Path:
    """Write the page `out`/analysis.md and its pictures; returns the page.

    `overwrite`: those of an earlier analysis there may be replaced.
    """
    for name in WRITTEN:
        output_file(out / name, overwrite)
    shop, network, settings = reopen(run, data, test_views)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be made ({error.strerror}).") from None
    walks = walk_test(shop, network.to(shop.accelerator.device), shop.dataset)
    metrics, found = measure(walks, settings, shop.config.seed), follow(walks, settings)
    parts = [_head(run, metrics), _curve(walks, settings, out)]
    if network.steps:
        parts += [_steps(walks, metrics, found, settings, out), _failures(run, walks, failures(found), test_views, out)]
    parts += [_classes(walks, found), _embeddings(walks, found, out)]
    page = out / PAGE
    page.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return page


def _head(run: str | Path, metrics: Metrics) -> str:
    figures = {"T1": metrics.t1, "U": metrics.u, "S": metrics.s, "H": metrics.h, "AUSUC": metrics.ausuc}
    told = ", ".join(f"{name} {100 * value:.1f}" for name, value in figures.items() if value is not None)
    how = f"per cent; sigma and delta: {metrics.protocol}; views: {metrics.views}"
    return (
        f"# {metrics.variant} on {metrics.dataset}: {Path(run).name}\n\n{told} ({how}). All of this is of test images; "
        "nothing is chosen by it."
    )


def _curve(walks: EvaluationWalks, settings: OperatingPoint, out: Path) -> str:
    if walks.seen is None:
        return ""
    figures.draw_curve(seen_unseen_curve(walks, settings.sigma), settings.delta, out / "seen-unseen.png")
    return (
        "## Seen and unseen classes together\n\nWhat seen classes give up, delta, moves answers from seen to unseen "
        "classes.\n\n![S over U](seen-unseen.png)"
    )


def _steps(walks: EvaluationWalks, metrics: Metrics, found: Trajectories, settings: OperatingPoint, out: Path) -> str:
    by_step = [metrics.t1_global, *metrics.t1_by_step]
    figures.draw_steps(by_step, found, out / "steps.png")
    table = markdown_table(
        ("after step", *(str(step) for step in range(len(by_step)))),
        [("T1", *(f"{100 * t1:.1f}" for t1 in by_step))],
    )
    told = f"## Steps\n\nIf nobody stops; 0 is the glance.\n\n{table}\n\n![T1 over steps, and steps taken](steps.png)"
    if walks.network.policy is None:  # which never stops
        return told
    sweep = thresholds(walks)
    figures.draw_thresholds(sweep, settings.sigma, out / "thresholds.png")
    rows = [
        ("never" if math.isinf(one.sigma) else f"{one.sigma:g}", f"{100 * one.t1:.1f}", f"{one.mean_steps:.2f}")
        for one in sweep
    ]
    used = "never" if math.isinf(settings.sigma) else f"{settings.sigma:g}"
    return (
        f"{told}\n\n## The threshold\n\nImages stop once they are sure by sigma; {used} is used.\n\n"
        f"{markdown_table(('sigma', 'T1', 'mean steps'), rows)}\n\n![T1 and steps over sigma](thresholds.png)"
    )


def _failures(run: str | Path, walks: EvaluationWalks, found: Failures, test_views: TestViews | None, out: Path) -> str:
    lost, steps = len(found.lost), range(1, len(found.sure_of_kept))
    told = (
        f"## Right answers lost on the way\n\nOf {found.images} images {found.right} are right at the end, "
        f"{found.won} of which were not after the glance; {found.never} never are, and {lost} were right and are not "
        "any more."
    )
    if not lost:
        return told
    shown = ""
    if walks.network.policy is not None:  # chance would look elsewhere the next time
        told += " The paper calls these failures of the policy."
        lost_rows = walks.dataset.test_unseen[found.lost.cpu().numpy()]
        _draw_lost(run, walks.dataset, lost_rows, test_views, out / "lost.png")
        shown = "\n\n![Some of them](lost.png)"
    figures.draw_failures(found, out / "failures.png")
    at = found.lost_at.tolist()
    counts = markdown_table(("lost at step", *map(str, steps)), [("images", *(str(at.count(step)) for step in steps))])
    sure = markdown_table(
        ("chance of the true class after step", *map(str, range(len(found.sure_of_lost)))),
        [("lost", *(f"{100 * value:.1f}" for value in found.sure_of_lost.tolist()))],
    )
    return f"{told}\n\n{counts}\n\n{sure}\n\n![When, and how sure](failures.png){shown}"


def _draw_lost(
    run: str | Path, dataset: ZeroShotDataset, rows: np.ndarray, test_views: TestViews | None, out: Path
) -> None:
    """Where the network looked on some of these images, from the first class to the last."""
    rows = rows[np.argsort(dataset.labels[rows], kind="stable")]
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, SHOWN).astype(int))]
    pictures = [picture_of(dataset, row) for row in rows]
    found = load(run, test_views=test_views).predict(pictures)
    draw_localities(pictures, found, [dataset.classes[dataset.labels[row]] for row in rows], out)


def _classes(walks: EvaluationWalks, found: Trajectories) -> str:
    records = class_records(walks, found)
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


def _embeddings(walks: EvaluationWalks, found: Trajectories, out: Path) -> str:
    embeddings = embed(walks, found)
    if embeddings is None:
        return ""
    figures.draw_embeddings(embeddings, walks.dataset.classes, out / "embeddings.png")
    count, also = (
        len(np.unique(embeddings.labels)),
        "" if embeddings.union is None else ", and with what localities add",
    )
    return (
        f"## Embeddings\n\nt-SNE of the {count} unseen classes that the glance mistakes most often, by what it says of "
        f"their images{also}.\n\n![t-SNE](embeddings.png)"
    )
