"""The card of a model that is shared: what it was trained on, how it was measured, what it does and does not do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from erpcnet.errors import InputError
from erpcnet.inference.run_files import METRICS, PICTURE, RUN
from erpcnet.utils.files import read_json, write_atomically

if TYPE_CHECKING:
    from erpcnet.inference.classifier import ZeroShotClassifier

HOW = {
    "validation": "on classes held out of the seen ones, by trainings without them",
    "fixed": "by hand, before the training",
    "test": "on the test classes themselves, so these figures are optimistic",
}
LISTED = 60  # classes


def write_card(classifier: ZeroShotClassifier, folder: Path) -> None:
    """Write README.md beside the files of a run."""
    write_atomically(folder / "README.md", model_card(classifier, folder).encode())


def model_card(classifier: ZeroShotClassifier, folder: Path) -> str:
    """The card, in the Hub's form: YAML between lines of dashes, then Markdown.

    Args:
        classifier: The model.
        folder: Where metrics.json and run.json of its run are, if they are anywhere.
    """
    metrics, about = (_read(folder / name) for name in (METRICS, RUN))
    head = {
        "library_name": "erpcnet",
        "pipeline_tag": "zero-shot-image-classification",
        "tags": ["zero-shot-learning", "attributes", "erpcnet", classifier.network.variant],
        "model-index": [_index(metrics)] if metrics else [],
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {_plain(metrics.get('dataset', 'ERPCNet'))}: zero-shot recognition by attributes",
        _summary(classifier),
        '## Use\n\n```python\nimport erpcnet\n\nmodel = erpcnet.ZeroShotClassifier.from_pretrained("OWNER/NAME")  '
        '# or a folder\nprint(model.predict("some.jpg"))\n```',
        _figures(metrics),
        f"![Localities on pictures of unseen classes]({PICTURE})" if (folder / PICTURE).is_file() else "",
        _data(classifier, about),
        _limits(classifier, metrics),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path, "remove it to do without")
    except InputError:
        return {}


def _summary(classifier: ZeroShotClassifier) -> str:
    network, table = classifier.network, classifier.classes
    seen, point = int(table.seen.sum()), classifier.point
    sigma = "never" if point.sigma == float("inf") else f"once the reward reaches {point.sigma:g}"
    looks = (
        "It looks at the whole picture alone."
        if not network.steps
        else f"It glances at the whole picture, then reads up to {network.steps} of {network.grid.cells} localities"
        + (f", {network.zoom} times finer" if network.zoom > 1 else "")
        + (f"; it stops early {sigma}." if network.policy is not None else ".")
    )
    return (
        f"An `{network.variant}` (Li et al., *An Entropy-guided Reinforced Partial Convolutional Network for Zero-Shot "
        f"Learning*) on a `{network.settings.backbone.name}` backbone, for images of {network.image_size} pixels. It "
        f"names {len(table.names)} classes by {len(table.attribute_names)} attributes; training had pictures of {seen} "
        f"of them, and any further class can be added by its attributes alone. {looks}"
    )


def _figures(metrics: dict[str, Any]) -> str:
    if not metrics:
        return ""
    rows = [(_extras(metrics), metrics), *((_extras(one), one) for one in metrics.get("plainer", []))]
    lines = [
        f"| {name} | " + " | ".join(_percent(row.get(key)) for key in ("t1", "u", "s", "h")) + " |"
        for name, row in rows
    ]
    steps = metrics.get("mean_steps")
    return (
        "## Figures\n\nMeans over classes, in per cent. T1: images of unseen classes among the unseen classes; U and S:"
        " images of unseen and of seen classes among all; H: their harmonic mean.\n\n"
        "| test-time augmentation and hubness correction | T1 | U | S | H |\n| --- | --- | --- | --- | --- |\n"
        + "\n".join(lines)
        + f"\n\nsigma and delta were chosen {HOW.get(str(metrics.get('protocol')), 'otherwise')}; seed "
        f"{metrics.get('seed')}, one training. "
        + (f"Mean steps {steps:.2f}. " if isinstance(steps, int | float) else "")
        + f"The confidence is off by {_percent(metrics.get('ece'))} points on average (ECE)."
    )


def _extras(row: dict[str, Any]) -> str:
    crops, hubness = row.get("crops", 1), row.get("hubness", 0)
    what = "1 crop" if crops == 1 else f"{crops} crops"
    return f"{what}, {f'hubness correction {hubness:g}' if hubness else 'no correction'}"


def _data(classifier: ZeroShotClassifier, about: dict[str, Any]) -> str:
    table = classifier.classes
    data = about.get("dataset", {})
    counts = (
        f"{data.get('images')} images, {data.get('seen_classes')} seen and {data.get('unseen_classes')} unseen "
        f"classes; digest `{data.get('digest')}`. "
        if data
        else ""
    )
    lists = []
    for title, names in (
        ("Seen", [name for name, seen in zip(table.names, table.seen, strict=True) if seen]),
        ("Unseen", [name for name, seen in zip(table.names, table.seen, strict=True) if not seen]),
    ):
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        lists.append(f"{title}: {', '.join(map(_plain, names[:LISTED])) or 'none'}{more}.")
    versions = about.get("packages", {})
    made = (
        f"\n\nTrained with erpcnet {about.get('erpcnet')}, torch {versions.get('torch')}, on {about.get('device')}, in "
        f"{about.get('seconds')} s; `config.yaml` has every setting."
        if "erpcnet" in about  # not after damage
        else ""
    )
    return f"## Data\n\n{counts}{' '.join(lists)}{made}"


def _limits(classifier: ZeroShotClassifier, metrics: dict[str, Any]) -> str:
    unknown = metrics.get("auroc_unknown")
    rejection = "It names one of its classes whatever it is shown" + (
        f"; `predict --reject` tells pictures of none of them apart with AUROC {_percent(unknown)}."
        if classifier.point.reject is not None and unknown is not None
        else "."
    )
    return (
        f"## Limits\n\nWhat no seen class has, nothing has taught: a new class that differs in such an attribute alone "
        f"is not told apart. {rejection} The figures are of the classes and pictures above; others will differ. "
        "Nothing in this repository is code: weights are safetensors, settings YAML and JSON."
    )


def _index(metrics: dict[str, Any]) -> dict[str, Any]:
    """What the Hub shows as results."""
    names = {"t1": "T1", "u": "U", "s": "S", "h": "H"}
    return {
        "name": f"erpcnet-{metrics.get('variant')}",
        "results": [
            {
                "task": {"type": "zero-shot-image-classification"},
                "dataset": {"name": str(metrics.get("dataset")), "type": str(metrics.get("dataset"))},
                "metrics": [
                    {"type": key, "name": name, "value": round(100 * float(metrics[key]), 2)}
                    for key, name in names.items()
                    if isinstance(metrics.get(key), int | float)
                ],
            }
        ],
    }


def _percent(value: object) -> str:
    return f"{100 * value:.1f}" if isinstance(value, int | float) else ""


def _plain(name: object) -> str:
    """A name as text in Markdown: no name makes a link, a table or HTML of itself."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|!&" else sign for sign in str(name))
