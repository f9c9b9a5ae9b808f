"""Reference pages of the documentation that are written by script: settings, commands, imports, backbones.

python -m erpcnet.experiments.reference             # settings and commands
python -m erpcnet.experiments.reference imports     # measures, and writes benchmarks/results/imports.csv too
python -m erpcnet.experiments.reference backbones   # builds one of every family: a minute on one core
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

import erpcnet.config
from erpcnet.config import Config, list_presets, read_values
from erpcnet.config.config import flatten
from erpcnet.errors import InputError
from erpcnet.experiments.markdown import fill, markdown_table
from erpcnet.experiments.rows import read_rows, write_rows
from erpcnet.model import SplitBackbone, create_backbone

DOCS, IMPORTS = Path("docs"), Path("benchmarks/results/imports.csv")
REPEATS = 5
# What is timed, and the modules that take long to import.
STATEMENTS = {
    "import erpcnet; erpcnet.load": "import erpcnet; erpcnet.load",
    "erpcnet --help": "from erpcnet.cli import main; main(['--help'])",
    "erpcnet presets": "from erpcnet.cli import main; main(['presets'])",
    "erpcnet train --help": "from erpcnet.cli import main; main(['train', '--help'])",
    "erpcnet data init DIR": "from erpcnet.cli import main; main(['data', 'init', DIR])",
}
# A small member of every family of backbones that is tested (tests/model/test_backbone_families.py).
FAMILIES = {
    "ResNet": "resnet18",
    "ResNet as published, v1": "resnet50_v1",
    "ResNeXt": "resnext50_32x4d",
    "Wide ResNet": "wide_resnet50_2",
    "the small one of this package": "small",
    "RegNet": "regnet_x_400mf",
    "ConvNeXt": "convnext_tiny",
    "EfficientNet": "efficientnet_b0",
    "MobileNet V2": "mobilenet_v2",
    "MobileNet V3": "mobilenet_v3_small",
    "DenseNet": "densenet121",
    "VGG": "vgg11",
    "AlexNet": "alexnet",
    "SqueezeNet": "squeezenet1_1",
    "Inception V3": "inception_v3",
    "GoogLeNet": "googlenet",
    "ShuffleNet V2": "shufflenet_v2_x0_5",
    "MNASNet": "mnasnet0_5",
    "Swin": "swin_t",
    "Swin V2": "swin_v2_t",
    "ViT": "vit_b_16",
    "MaxViT": "maxvit_t",
    "ResNet, timm": "timm/resnet10t",
    "ResNet V2 (BiT), timm": "timm/resnetv2_50",
    "ConvNeXt, timm": "timm/convnext_atto",
    "EfficientNet, timm": "timm/efficientnet_b0",
    "RegNet, timm": "timm/regnetx_002",
    "DenseNet, timm": "timm/densenet121",
    "MobileNet V4, timm": "timm/mobilenetv4_conv_small",
    "HGNet, timm": "timm/hgnet_tiny",
    "HGNet V2, timm": "timm/hgnetv2_b0",
    "ViT, timm": "timm/vit_tiny_patch16_224",
    "ViT of CLIP, timm": "timm/vit_xsmall_patch16_clip_224",
    "ViT with registers, timm": "timm/vit_wee_patch16_reg1_gap_256",
    "DeiT, timm": "timm/deit_tiny_patch16_224",
    "DeiT, distilled, timm": "timm/deit_tiny_distilled_patch16_224",
    "hybrid ViT, timm": "timm/vit_tiny_r_s16_p8_224",
    "EVA-02, timm": "timm/eva02_tiny_patch14_224",
    "Swin, timm": "timm/swin_tiny_patch4_window7_224",
    "MaxViT, timm": "timm/maxvit_rmlp_pico_rw_256",
    "VGG, timm": "timm/vgg11",
    "DLA, timm": "timm/dla34",
    "HRNet, timm": "timm/hrnet_w18_small",
    "MLP-Mixer, timm": "timm/mixer_s32_224",
}
HEAVY = ("torch", "torchvision", "accelerate", "tensorboard", "sklearn", "matplotlib", "scipy", "jsonargparse")


class Setting(NamedTuple):
    """One setting: its dotted name, its default, and what its docstring says."""

    name: str
    default: Any
    about: str


def list_settings(kind: type = Config, above: str = "") -> Iterator[Setting]:
    """Every setting, in the order of declaration; groups are gone into."""
    about = _docstrings(kind)
    default = kind()
    for field in fields(kind):
        value = getattr(default, field.name)
        if is_dataclass(value):
            yield from list_settings(type(value), f"{above}{field.name}.")
        else:
            yield Setting(f"{above}{field.name}", value, about[field.name])


def _docstrings(kind: type) -> dict[str, str]:
    """The strings below the fields of a dataclass."""
    source = Path(sys.modules[kind.__module__].__file__ or "").read_text(encoding="utf-8")
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    (body,) = (node.body for node in classes if node.name == kind.__name__)
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            found[node.target.id] = " ".join(str(after.value.value).split())
    return found


def settings_table() -> str:
    """Every setting with its default, the presets that change it, and what it is for."""
    changes = {name: flatten(read_values(name)) for name in list_presets()}

    def changed(setting: Setting) -> str:
        values = {name: own.get(setting.name, setting.default) for name, own in changes.items()}
        groups: dict[str, list[str]] = {}
        for name, value in values.items():
            if _shown(value) != _shown(setting.default):
                groups.setdefault(_shown(value), []).append(name)
        return "; ".join(f"{value}: {', '.join(names)}" for value, names in groups.items())

    rows = [(f"`{one.name}`", _shown(one.default), changed(one), one.about) for one in list_settings()]
    return f"{len(rows)} settings.\n\n" + markdown_table(("setting", "default", "presets that change it", ""), rows)


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else str(value)


def commands_page() -> str:
    """What `--help` says, command by command; of settings, their own page."""
    overview = _help()
    names = re.findall(r"^    (\w+)  ", overview, re.MULTILINE)
    parts = [f"```\n{overview}\n```"]
    for name in names:
        text = _help(name)
        parts.append(f"## erpcnet {name}\n\n```\n{_without_settings(text) if '--stage1.epochs' in text else text}\n```")
    return "\n\n".join(parts)


def _help(*words: str) -> str:
    command = [sys.executable, "-m", "erpcnet", *words, "--help"]
    wide = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, env=wide, capture_output=True, text=True, check=True).stdout.strip()


def _without_settings(text: str) -> str:
    """Help less the groups of settings."""
    first, options, rest = text.partition("\noptions:")
    own = rest.partition("\n\n")[0]
    return f"{first}{options}{own}\n\nAnd every setting, as --GROUP.NAME VALUE: docs/settings.md."


def measure_imports(version: str) -> list[dict[str, Any]]:
    """Seconds until a statement is done in a new interpreter, and the modules that it loads."""
    rows = []
    for name, statement in STATEMENTS.items():
        taken, modules = [], list[str]()
        for _ in range(REPEATS):
            seconds, modules = _run(statement)
            taken.append(seconds)
        loaded = [module for module in HEAVY if module in modules]
        row = {"version": version, "what": name, "seconds": median(taken), "modules": len(modules)}
        rows.append({**row, "heavy": " ".join(loaded)})
    return rows


def _run(statement: str) -> tuple[float, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "photos" / "crow"
        inside.mkdir(parents=True)
        (inside / "a.jpg").write_bytes(b"")
        program = (
            f"import contextlib, io, json, sys\nDIR = {str(inside.parent)!r}\n"
            f"with contextlib.redirect_stdout(io.StringIO()):\n    {statement}\n"
            "print(json.dumps(sorted(sys.modules)))"
        )
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return time.perf_counter() - started, json.loads(done.stdout)


def imports_table(rows: list[dict[str, str]]) -> str:
    """Before and after, side by side."""
    versions = list(dict.fromkeys(row["version"] for row in rows))
    by = {(row["version"], row["what"]): row for row in rows}
    header = ["", *(f"{what}, {version}" for version in versions for what in ("seconds", "modules", "heavy ones"))]
    table = []
    for name in dict.fromkeys(row["what"] for row in rows):
        cells = [f"`{name}`"]
        for version in versions:
            row = by[version, name]
            cells += [f"{float(row['seconds']):.2f}", row["modules"], row["heavy"].replace(" ", ", ") or "none"]
        table.append(cells)
    return markdown_table(header, table)


def backbone_cells(backbone: SplitBackbone) -> list[str]:
    """Of one that can be split: the side of e^{n-1} at 224 pixels, its channels, those of e_g, and parameters."""
    training = backbone.training
    with torch.no_grad():
        side = backbone.eval().trunk(torch.zeros(1, 3, 224, 224)).shape[-1]
    backbone.train(training)
    millions = sum(parameter.numel() for parameter in backbone.parameters()) / 1e6
    return [f"{side} x {side}", str(backbone.map_channels), str(backbone.channels), f"{millions:.1f} M"]


def refusal(error: InputError) -> str:
    """Why a backbone cannot be split, out of the sentence that says so."""
    return str(error).partition("last block: ")[2].partition("; choose")[0]


def backbones_table() -> str:
    """The tested families, those first that can be split, and why the others cannot."""
    split, refused = [], []
    for family, name in FAMILIES.items():
        try:
            split.append([family, f"`{name}`", *backbone_cells(create_backbone(name))])
        except InputError as error:
            refused.append([family, f"`{name}`", refusal(error)])
    header = ("family", "tested: name to give", "e^{n-1} at 224", "its channels", "channels of e_g", "parameters")
    tables = markdown_table(header, split), markdown_table(("family", "tested", "refused, because"), refused)
    return "\n\n".join(tables)


def main() -> None:
    """Write the pages."""
    if sys.argv[1:] == ["backbones"]:
        fill(DOCS / "backbones.md", "backbones", backbones_table())
        return
    if sys.argv[1:] == ["imports"]:
        before = [row for row in read_rows(IMPORTS) if row["version"] != erpcnet.__version__]
        write_rows(IMPORTS, [*before, *measure_imports(erpcnet.__version__)])
    fill(DOCS / "settings.md", "settings", settings_table())
    fill(DOCS / "cli.md", "commands", commands_page())
    fill(DOCS / "architecture.md", "imports", imports_table(read_rows(IMPORTS)))


if __name__ == "__main__":
    main()
