"""The command line: one function a command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from erpcnet import __version__
from erpcnet.errors import InputError
from erpcnet.files import output_file
from erpcnet.printing import print_bench, print_metrics
from erpcnet.progress import SPEAKS, console

if TYPE_CHECKING:
    from erpcnet.config import Config

USAGE = """\
erpcnet: zero-shot image recognition that looks where it needs to.

  erpcnet train --config PRESET_OR_YAML --data DIR --out RUN    train and evaluate
  erpcnet evaluate RUN [--data DIR] [--json]                    evaluate a run again
  erpcnet predict RUN IMAGE... [--classes all] [--json]         name what is in pictures
  erpcnet analyse RUN [--data DIR] [--out FOLDER]               the paper's figures and analyses of a run
  erpcnet demo RUN [--port 8000]                                try it in the browser
  erpcnet export RUN [--out FILE.pt2]                           a file that torch alone can run
  erpcnet ablation --config PRESET --data DIR --out FILE.csv    the paper's ablation, over seeds
  erpcnet bench [--json] [--out FILE.csv]                       how fast it is, and against what
  erpcnet data make creatures DIR                               draw the embedded dataset
  erpcnet data init DIR                                         start the two CSV files of your own data
  erpcnet data check DIR [--json]                               read everything once and report
  erpcnet presets                                               the names --config takes

`erpcnet COMMAND --help` says more. Exit codes: 0 done, 1 checked and found wanting, 2 wrong input.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a person's mistake is one sentence on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"erpcnet {__version__}")
        return 0
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "evaluate": _evaluate,
        "predict": _predict,
        "analyse": _analyse,
        "demo": _demo,
        "export": _export,
        "ablation": _ablation,
        "bench": _bench,
        "data": _data,
        "presets": _presets,
    }
    try:
        if words[0] not in commands:
            raise InputError(f"there is no command '{words[0]}'; the commands are {', '.join(commands)}.")
        return commands[words[0]](words[1:])
    except InputError as error:
        print(f"erpcnet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        on = "; the same command resumes it" if words[0] == "train" else ""
        print(f"erpcnet: interrupted{on}", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are one sentence, like everyone's."""

    def error(self, message: str) -> Any:
        raise InputError(f"{self.prog}: {message}; see `{self.prog} --help`.")


def _train(words: list[str]) -> int:
    from erpcnet.runs import train_run

    overwrite, words = _take_flag(words, "--overwrite")
    parsed = _configured(
        words,
        "erpcnet train",
        "Train ERPCNet (Stage I, then Stage II) on a dataset, evaluate it, and leave a run.",
        {"--out": ("runs/latest", "folder for the run; an unfinished one there is resumed")},
        "replace a finished run in that folder",
    )
    if parsed is None:
        return 0
    config, options = parsed
    console.print(config.to_yaml(), markup=False, end="")
    _tell_what_was_measured(options["--config"], config)
    metrics = train_run(config, options["--data"], options["--out"], overwrite)
    if SPEAKS:
        print_metrics([metrics.to_json()], title=options["--out"])
    return 0


def _ablation(words: list[str]) -> int:
    from erpcnet.data import read_dataset
    from erpcnet.experiments.ablation import METHODS, check_methods, run_ablation
    from erpcnet.experiments.rows import write_rows

    overwrite, words = _take_flag(words, "--overwrite")
    parsed = _configured(
        words,
        "erpcnet ablation",
        "GlobalNet, PCNet, RPCNet, ERPCNet and fixed orders, over several seeds, as a CSV file.",
        {
            "--out": ("runs/ablation.csv", "file for the rows"),
            "--seeds": ("0,1,2", "seeds, separated by commas"),
            "--methods": ("; ".join(METHODS), "which of these methods, separated by semicolons"),
        },
        "replace that file",
    )
    if parsed is None:
        return 0
    config, options = parsed
    try:
        seeds = [int(seed) for seed in options["--seeds"].split(",")]
    except ValueError:
        raise InputError(f"--seeds is '{options['--seeds']}'; it takes whole numbers, separated by commas.") from None
    methods = [name.strip() for name in options["--methods"].split(";")]
    check_methods(methods)
    out, dataset = output_file(options["--out"], overwrite), read_dataset(options["--data"])
    _tell_what_was_measured(options["--config"], config)
    rows: list[dict[str, Any]] = []
    for row in run_ablation(config, dataset, seeds, methods):
        rows.append(row)
        write_rows(out, rows)  # after each row, so that nothing measured is lost
    print_metrics([{**row, "variant": row["method"]} for row in rows], title=options["--out"])
    return 0


def _tell_what_was_measured(preset: str, config: Config) -> None:
    """One line, if this run starts from other weights than the figures of its preset do."""
    from erpcnet.presets import measured_backbone

    measured, own = measured_backbone(preset), config.model.backbone
    if measured is not None and measured != {"name": own.name, "weights": Path(own.weights).name}:
        console.print(
            f"note: the figures of '{preset}' in docs/ were measured with {measured['name']} and weights "
            f"{measured['weights']}; with {own.name} and {Path(own.weights).name} they were not.",
            soft_wrap=True,
        )


def _take_flag(words: list[str], flag: str) -> tuple[bool, list[str]]:
    """Whether a flag without a value is among the words, and the others."""
    return flag in words, [word for word in words if word != flag]


def _configured(
    words: list[str], program: str, description: str, options: dict[str, tuple[str, str]], overwrite: str
) -> tuple[Config, dict[str, str]] | None:
    """The configuration and the plain options of a command; None after printing help, which says what --overwrite does.

    `--data` names the dataset, while `--data.image_size` is a setting, so these are taken out by hand.
    """
    from erpcnet.config import config_parser, help_with, one_line, to_config
    from erpcnet.presets import read_values

    plain = {
        "--config": ("photos", "a preset (see `erpcnet presets`) or a YAML file of settings"),
        "--data": ("data", "folder of the dataset"),
        **options,
    }
    values = {}
    for flag, (default, _) in plain.items():
        words, values[flag] = _take_option(words, flag, default)
    parser = config_parser(prog=program, description=description)
    if "-h" in words or "--help" in words:
        told = help_with(parser, read_values(values["--config"]))
        for flag, (default, text) in plain.items():
            print(f"{flag:12s} {text} (default: {default})")
        print(f"{'--overwrite':12s} {overwrite}")
        print(f"\nSettings, with their values in '{values['--config']}':")
        told.print_help()
        return None
    try:
        parsed = parser.parse_args(words, namespace=parser.parse_object(read_values(values["--config"])))
    except argparse.ArgumentError as error:
        raise InputError(f"{program}: {one_line(error)}") from None
    return to_config(parser, parsed), values


def _take_option(words: list[str], flag: str, default: str) -> tuple[list[str], str]:
    """Take `flag VALUE` or `flag=VALUE` out of the words; the last one counts."""
    rest: list[str] = []
    value = default
    position = 0
    while position < len(words):
        word = words[position]
        if word == flag:
            if position + 1 == len(words):
                raise InputError(f"{flag} needs a value after it.")
            value = words[position + 1]
            position += 2
            continue
        if word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
        else:
            rest.append(word)
        position += 1
    return rest, value


def _evaluate(words: list[str]) -> int:
    from erpcnet.runs import dataset_of, evaluate_run

    parser = _Parser(prog="erpcnet evaluate", description="Evaluate a run's network on the test images.")
    parser.add_argument("run", help="folder that `erpcnet train` left")
    parser.add_argument("--data", help="the dataset; by default the one that the run was trained on")
    _add_views(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(words)
    found = evaluate_run(options.run, options.data or dataset_of(options.run), options.views).to_json()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print_metrics([found], title=options.run)
    return 0


def _add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--views",
        type=int,
        choices=(1, 2, 4),
        help="views of each picture (data.test_views); by default as many as sigma and delta were chosen for",
    )


def _add_overwrite(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--overwrite", action="store_true", help=what)


def _predict(words: list[str]) -> int:
    from dataclasses import asdict

    from erpcnet.inference.explain import draw_localities
    from erpcnet.runs import load

    parser = _Parser(prog="erpcnet predict", description="Name what is in pictures, from attributes alone.")
    parser.add_argument("run", help="folder that `erpcnet train` left")
    parser.add_argument("images", nargs="+", help="picture files")
    parser.add_argument("--classes", default="unseen", help="'unseen' (default), 'all', or names separated by commas")
    parser.add_argument("--picture", metavar="FILE", help="also draw where it looked, as a PNG")
    parser.add_argument("--device", help="cpu, cuda, ...; by default a GPU if there is one")
    _add_views(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    _add_overwrite(parser, "replace a file of that name")
    options = parser.parse_args(words)
    picture = output_file(options.picture, options.overwrite, options.images) if options.picture else None
    candidates = options.classes if options.classes in ("unseen", "all") else options.classes.split(",")
    found = load(options.run, options.device, test_views=options.views).predict(options.images, candidates)
    if picture is not None:
        draw_localities(options.images, found, [None] * len(found), picture)
    if options.json:
        pairs = zip(options.images, found, strict=True)
        print(json.dumps([{"image": path, **asdict(recognition)} for path, recognition in pairs], indent=2))
        return 0
    table = Table(Column("image", overflow="fold"), Column("class", overflow="fold"), "confidence", "steps")
    for path, recognition in zip(options.images, found, strict=True):
        table.add_row(path, recognition.name, f"{recognition.confidence:.1%}", str(recognition.steps))
    Console().print(table)
    return 0


def _analyse(words: list[str]) -> int:
    from erpcnet.experiments.analyse import analyse_run
    from erpcnet.runs import dataset_of

    parser = _Parser(
        prog="erpcnet analyse",
        description="The threshold, the steps, failures, classes and embeddings of a run, as a page with pictures.",
    )
    parser.add_argument("run", help="folder that `erpcnet train` left")
    parser.add_argument("--data", help="the dataset; by default the one that the run was trained on")
    parser.add_argument("--out", metavar="FOLDER", help="(default: analysis in the run's folder)")
    _add_views(parser)
    _add_overwrite(parser, "replace the pages and pictures of an earlier analysis there")
    options = parser.parse_args(words)
    data, out = options.data or dataset_of(options.run), Path(options.out or Path(options.run) / "analysis")
    page = analyse_run(options.run, data, out, options.views, options.overwrite)
    console.print(f"wrote {page}")
    return 0


def _demo(words: list[str]) -> int:
    from erpcnet.inference.demo import Demo, serve
    from erpcnet.runs import example_pictures, load

    parser = _Parser(prog="erpcnet demo", description="Try a run in the browser: drop pictures, add classes.")
    parser.add_argument("run", help="folder that `erpcnet train` left")
    parser.add_argument("--data", help="where examples come from; by default the dataset that the run was trained on")
    parser.add_argument("--host", default="127.0.0.1", help="(default: %(default)s, so that only this machine sees it)")
    parser.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, ...; by default a GPU if there is one")
    _add_views(parser)
    options = parser.parse_args(words)
    recogniser = load(options.run, options.device, test_views=options.views)
    with serve(Demo(recogniser, example_pictures(options.run, options.data)), options.host, options.port) as server:
        console.print(f"http://{options.host}:{server.server_port} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _export(words: list[str]) -> int:
    from erpcnet.inference.export import export
    from erpcnet.runs import load

    parser = _Parser(
        prog="erpcnet export", description="Write a run's network as a program that torch.export.load reads."
    )
    parser.add_argument("run", help="folder that `erpcnet train` left")
    parser.add_argument("--out", metavar="FILE", help="(default: model.pt2 in the run's folder)")
    _add_views(parser)
    _add_overwrite(parser, "replace a file of that name")
    options = parser.parse_args(words)
    recogniser, run = load(options.run, "cpu", test_views=options.views), Path(options.run)
    inputs = [run] if run.is_file() else run.iterdir()
    path = output_file(options.out or run / "model.pt2", options.overwrite, (p for p in inputs if p.suffix != ".pt2"))
    export(recogniser, path)
    console.print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0


def _bench(words: list[str]) -> int:
    import torch

    from erpcnet.experiments.bench import run_bench
    from erpcnet.experiments.bench_cases import CPU, GPU
    from erpcnet.experiments.rows import write_rows

    usual = GPU if torch.cuda.is_available() else CPU
    parser = _Parser(prog="erpcnet bench", description="Time training, the policy and prediction, by turns, as ratios.")
    parser.add_argument("--backbone", default=usual.backbone, help="(default: %(default)s)")
    parser.add_argument("--image-size", type=int, default=usual.image_size, help="(default: %(default)s)")
    for flag, sizes, what in (
        ("--batches", usual.batches, "batches to predict"),
        ("--stage1-batches", usual.stage1_batches, "batches of Stage I"),
    ):
        usually = ",".join(str(size) for size in sizes)
        parser.add_argument(flag, type=_numbers, default=usually, help=f"sizes of {what} (default: %(default)s)")
    parser.add_argument(
        "--stage2-images",
        type=int,
        default=usual.stage2_images,
        help="images that Stage II plays (default: %(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=usual.repeats, help="turns (default: %(default)s)")
    parser.add_argument("--no-growth", dest="growth", action="store_false", help="leave out how times grow")
    parser.add_argument("--out", metavar="FILE", help="also write the rows, as CSV")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    _add_overwrite(parser, "replace a file of that name")
    options = vars(parser.parse_args(words))
    out, as_json, overwrite = options.pop("out"), options.pop("json"), options.pop("overwrite")
    path = output_file(out, overwrite) if out else None

    def keep(found: dict[str, Any]) -> None:
        if path is not None:
            write_rows(path, found["rows"])

    found = run_bench(replace(usual, **options), keep)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_bench(found)
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers such as 1,8,32") from None


def _data(words: list[str]) -> int:
    parser = _Parser(prog="erpcnet data", description="Make and check datasets.")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=_Parser)
    make = actions.add_parser("make", help="draw an embedded dataset")
    make.add_argument("name", choices=["creatures"])
    make.add_argument("folder")
    make.add_argument("--seed", type=int, help="decides every pixel; by default that of the committed results")
    init = actions.add_parser("init", help="start attributes.csv and splits.csv from a folder of class folders")
    init.add_argument("folder")
    check = actions.add_parser("check", help="read everything once and report what is wrong")
    check.add_argument("folder")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(words)
    return {"make": _make, "init": _init, "check": _check}[options.action](options)


def _make(options: argparse.Namespace) -> int:
    from erpcnet.data.creatures import CreatureSettings, is_creatures, make_creatures

    settings = CreatureSettings() if options.seed is None else CreatureSettings(seed=options.seed)
    folder = Path(options.folder)
    if is_creatures(folder, settings):
        print(f"{folder} holds these creatures already")
        return 0
    make_creatures(folder, settings)
    print(f"drew creatures into {folder}")
    return 0


def _init(options: argparse.Namespace) -> int:
    from erpcnet.data.folder import init_folder

    attributes, splits = init_folder(Path(options.folder))
    print(f"{attributes}: name your attributes in the first line and give every class a value for each")
    print(f"{splits}: write 'unseen' for the classes to recognise without training images")
    return 0


def _check(options: argparse.Namespace) -> int:
    from erpcnet.data.check import check_dataset

    report = check_dataset(options.folder)
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
        return 0 if report.ok else 1
    table = Table("", "", title=options.folder)
    for name, value in report.facts.items():
        table.add_row(name, str(value))
    Console().print(table)
    for problem in report.problems:
        print(problem)
    print("all is well" if report.ok else f"{len(report.problems)} problems")
    return 0 if report.ok else 1


def _presets(words: list[str]) -> int:
    from erpcnet.presets import about_preset, list_presets

    _Parser(prog="erpcnet presets", description="The names that --config takes.").parse_args(words)
    table = Table("preset", "what it is", box=SIMPLE_HEAD)
    for name in list_presets():
        table.add_row(name, about_preset(name))
    Console().print(table)
    return 0
