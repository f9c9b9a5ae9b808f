"""Metrics as tables on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from erpcnet.evaluation.runs import Validation


def print_metrics(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Figures in per cent, a row a run."""
    Console().print(metrics_table(rows, title))


def metrics_table(rows: Sequence[dict[str, Any]], title: str | None = None) -> Table:
    """The table that `print_metrics` prints."""
    protocols = " and ".join(sorted({row["protocol"] for row in rows}))
    extras = [_extras(row) for row in rows]
    # There is little room: what is the same for all stands below them.
    alike = [extra for extra in extras[0] if all(extra in others for others in extras)]
    caption = "; ".join([f"per cent; sigma and delta: {protocols}; steps: of unseen classes, of all", *alike])
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    percent = {"t1": "T1", "ece": "ECE", "u": "U", "s": "S", "h": "H", "ausuc": "AUSUC"}
    table.add_column("variant", overflow="fold")  # in a narrow terminal a name takes two lines, and no figure is cut
    for name in (*percent.values(), "steps", "of all", "sigma", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    for row, own in zip(rows, extras, strict=True):
        sigma = "never" if row["sigma"] is None else f"{row['sigma']:.2f}"
        figures = ["" if row[name] is None else f"{100 * row[name]:.1f}" for name in percent]
        steps = [f"{row['mean_steps']:.2f}", "" if row["mean_steps_all"] is None else f"{row['mean_steps_all']:.2f}"]
        delta = f"{row['delta']:.2f}"
        name = ", ".join([row["variant"], *(extra for extra in own if extra not in alike)])
        table.add_row(name, *figures, *steps, sigma, delta)
    return table


def _extras(row: dict[str, Any]) -> list[str]:
    """What the figures owe to more than the network and one look at each image."""
    crops = [f"{row['crops']} crops"] if row["crops"] > 1 else []
    return crops + ([f"hubness {row['hubness']:g}"] if row["hubness"] else [])


FEW = 3  # unseen classes among which an answer says little


def print_choices(metrics: dict[str, Any], validation: Validation | None) -> None:
    """What sigma, delta and the threshold of rejection rest on, in sentences, and where figures say little.

    Args:
        metrics: Of the test images, at the delta that was used.
        validation: What the run's operating point was chosen by; None if it was given.
    """
    tell = Console(highlight=False).print
    if metrics["unseen_classes"] < FEW:
        classes = "one unseen class" if metrics["unseen_classes"] == 1 else "two unseen classes"
        tell(f"\nWith {classes} T1 says little: a guess is often right.")
    if validation is None:
        return
    if validation.stop is not None:
        tell(f"\nsigma: {validation.stop.describe()}.")
    if validation.reject is not None:
        tell(f"\nrejection: {validation.reject.describe()}.")
        if metrics["auroc_unknown"] is not None:
            tell(f"On the test classes, AUROC {100 * metrics['auroc_unknown']:.1f}.")
    curve = validation.curve
    if curve is not None:
        tell(f"\n{curve.describe()}.")
        for delta in dict.fromkeys((curve.chosen, metrics["delta"])):
            u, s, h = (100 * value for value in curve.at(delta))
            tell(f"On the validation classes, at delta {delta:.2f}: U {u:.1f}  S {s:.1f}  H {h:.1f}")


def print_baselines(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Figures of baselines in per cent, a row each."""
    caption = "per cent; constants and delta: validation"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("baseline")
    for name in ("T1", "U", "S", "H", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        figures = ["" if row[name] is None else f"{100 * row[name]:.1f}" for name in ("t1", "u", "s", "h")]
        table.add_row(row["method"], *figures, "" if row["delta"] is None else f"{row['delta']:.3f}")
    Console().print(table)
