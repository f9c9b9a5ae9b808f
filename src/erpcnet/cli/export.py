"""`erpcnet export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_crops, add_device, add_overwrite, add_run
from erpcnet.errors import InputError
from erpcnet.utils.files import output_file
from erpcnet.utils.progress import console

DESCRIPTION = "Write a run's network as one file for torch.export.load or for ONNX runtimes."
Format = Literal["pt2", "onnx"]
FORMATS: tuple[str, ...] = get_args(Format)


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    add_run(parser)
    parser.add_argument("--format", type=Format, help="by default as the ending of --out says, or else pt2")
    parser.add_argument("--out", type=str, metavar="FILE", help="by default model.FORMAT in the run's folder")
    add_device(parser, "what a .pt2 file will compute on: cpu, cuda, ...; by default cpu, which is everywhere")
    add_crops(parser)
    add_overwrite(parser, "replace a file of that name")


def run(options: Namespace) -> int:
    from erpcnet.inference.model_file import model_path
    from erpcnet.utils.runtime import check_device

    source, device = model_path(options.run), check_device(options.device or "cpu")
    inputs = [source] if source == Path(options.run) else source.parent.iterdir()
    read = (one for one in inputs if one.suffix.removeprefix(".") not in FORMATS)
    out = options.out or source.parent / f"model.{options.format or FORMATS[0]}"
    path = output_file(out, options.overwrite, read)
    if path.suffix.removeprefix(".") not in ((options.format,) if options.format else FORMATS):
        raise InputError(f"{path} must end in .{options.format or ' or .'.join(FORMATS)}.")
    if path.suffix == ".onnx" and device.type != "cpu":
        raise InputError(f"--device is {device}, but an ONNX file computes wherever it is run; leave --device out.")
    from erpcnet.inference import load
    from erpcnet.inference.export import export

    export(load(source, device, test_crops=options.crops), path)
    console.print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0
