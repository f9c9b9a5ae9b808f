"""What the commands' parsers share."""

from __future__ import annotations

import argparse
import re
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_parsing_settings

from erpcnet.config import Config, list_presets, measured_backbone, read_values
from erpcnet.config.config import flatten
from erpcnet.errors import InputError
from erpcnet.utils.progress import console

if TYPE_CHECKING:
    from erpcnet.inference import ZeroShotClassifier

set_parsing_settings(docstring_parse_attribute_docstrings=True, add_print_completion_argument=True)

DEFAULT_PRESET = "photos"
# The settings that `--help` shows; `--help-all` shows every one.
USUAL = (
    "variant",
    "seed",
    "model.backbone.name",
    "model.backbone.weights",
    "data.image_size",
    "data.test_crops",
    "stage1.epochs",
    "stage1.batch_size",
    "stage2.epochs",
    "evaluation.folds",
)
# What jsonargparse says of values that do not fit, and how a person would.
PLAINLY = {
    r'Parser key "([^"]+)": Expected a typing\.Literal\[(.+?)\]\. Got value: (.*)': r"\1 is '\3'; it must be one of \2",
    # Of several types, None may be named first.
    r'Parser key "([^"]+)": .*?Expected an? <class \'(?!NoneType)(\w+)\'>\.?.*? (?:Got|Given) value: ?(.*)': (
        r"\1 is '\3'; it must be of type \2"
    ),
    r'Parser key "([^"]+)": .*?Expected an? <class \'NoneType\'>\.?.*? (?:Got|Given) value: ?(.*)': (
        r"\1 is '\2'; it must be of another kind"
    ),
}


class CommandModule(Protocol):
    """A module of this package."""

    DESCRIPTION: str

    def add_arguments(self, parser: Parser, words: Sequence[str]) -> None:
        """Declare its arguments; `words` are those of the command line, if it is for this command."""

    def run(self, options: Namespace) -> int:
        """Do it; the exit code."""


class Command(NamedTuple):
    """A command: its name, its module and a line of help."""

    name: str
    module: Any  # a CommandModule
    help: str


class HelpFormatter(DefaultHelpFormatter):
    """Says a flag's default where it has one, and its type where neither the default nor the name tells it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = super()._get_help_string(action)
        plain = self._get_type_str(action) == "str" or str(action.metavar).startswith("{")
        if plain or action.required or action.default is not None:
            text = re.sub(r"(required, )?type: %\(type\)s(, )?", "", text)
        if action.nargs == 0 or action.default in (None, ""):
            text = re.sub(r"(, )?default: %\(default\)s", "", text)
        return text.replace(" ()", "")


class Parser(ArgumentParser):
    """jsonargparse whose complaints are exceptions, and which takes whole flags only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(exit_on_error=False, allow_abbrev=False, formatter_class=HelpFormatter, **options)
        self.rarely_used: list[argparse.Action] = []

    def format_help(self, *options: Any, **named: Any) -> str:
        """What `--help` shows: all but what few people set."""
        texts = [action.help for action in self.rarely_used]
        for action in self.rarely_used:
            action.help = SUPPRESS
        try:
            more = f"\n{len(texts)} more settings: {self.prog} --help-all\n" if texts else ""
            return f"{super().format_help(*options, **named)}{more}"
        finally:
            for action, text in zip(self.rarely_used, texts, strict=True):
                action.help = text


class HelpAll(argparse.Action):
    """`--help-all`: what `--help` shows, and what it leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None, **_: Any) -> None:
        super().__init__(option_strings, SUPPRESS, nargs=0, default=SUPPRESS, help=help)

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.rarely_used.clear()
        parser.print_help()
        parser.exit()


def add_run(parser: Parser) -> None:
    parser.add_argument("run", type=str, help="folder that `erpcnet train` left")


def add_dataset(parser: Parser) -> None:
    parser.add_argument("--dataset", type=str, metavar="DIR", help="by default the one that the run was trained on")


def add_crops(parser: Parser) -> None:
    parser.add_argument(
        "--crops",
        type=Literal[1, 2, 4],
        help="test-time augmentation: crops of each picture; by default as many as sigma and delta were chosen for",
    )


def add_device(parser: Parser, what: str = "cpu, cuda, ...; by default a GPU if there is one") -> None:
    parser.add_argument("--device", type=str, help=what)


def add_candidates(parser: Parser) -> None:
    parser.add_argument(
        "--classes",
        type=str,
        default="all",
        help="what to choose among: 'all', 'unseen', names separated by semicolons or commas, or a .csv of classes",
    )
    parser.add_argument(
        "--add-classes",
        dest="add_classes",
        type=str,
        metavar="FILE.csv",
        help="classes to add, as rows like those of attributes.csv; attributes that it has no column for are 0",
    )


def candidates_of(text: str, classifier: ZeroShotClassifier) -> str | list[str]:
    """What `--classes` asks for; the classes of a file are made known."""
    from erpcnet.inference.class_files import choose_from

    if text.lower().endswith(".csv") and text not in classifier.classes.names:
        return choose_from(classifier, text)
    return read_candidates(text, classifier.classes.names)


def read_candidates(text: str, known: Sequence[str]) -> str | list[str]:
    """The same of words; a name may hold a comma itself."""
    if text in ("all", "unseen"):
        return text
    if text in known:
        return [text]
    names = [name.strip() for name in text.split(";" if ";" in text else ",")]
    if not all(names):
        raise InputError(f"--classes is '{text[:60]}'; it takes 'all', 'unseen', or names separated by commas.")
    return names


def add_overwrite(parser: Parser, what: str) -> None:
    parser.add_argument("--overwrite", action="store_true", help=what)


def add_json(parser: Parser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"{what}, and nothing else")


def add_quiet(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print results and problems alone")


def add_baseline(parser: Parser) -> None:
    parser.add_argument(
        "--baseline", action="store_true", help="print what the backbone gives without training beside it"
    )


def add_config(parser: Parser, words: Sequence[str]) -> None:
    """`--config`, `--dataset` and a flag for every setting, whose defaults are those of the preset in `words`."""
    parser.usage = f"{parser.prog} [--config PRESET_OR_YAML] [--dataset DIR] [--out OUT] [--SETTING VALUE ...]"
    parser.add_argument("--help-all", action=HelpAll, help="show every setting, and exit")
    parser.add_argument(
        "--config",
        type=str,
        default=DEFAULT_PRESET,
        metavar="PRESET_OR_YAML",
        help=f"{', '.join(list_presets())}, or a file of settings",
    )
    parser.add_argument("--dataset", type=str, default="data", metavar="DIR", help="folder of the dataset")
    parser.add_class_arguments(Config, None)
    _hide_groups(parser)
    parser.rarely_used = _rarely_used(parser)
    if words:
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        first.add_argument("--config", default=DEFAULT_PRESET)
        preset = first.parse_known_args(list(words))[0].config
        parser.set_defaults(flatten(Config.check_values(read_values(preset))))


def _hide_groups(parser: Parser) -> None:
    """Flags for whole groups of settings, as files, are no use beside `--config`."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    for action in parser._actions:
        if any(other.startswith(f"{flag}.") for flag in action.option_strings for other in flags):
            action.help = SUPPRESS


def _rarely_used(parser: Parser) -> list[argparse.Action]:
    """The flags of settings that few people change."""
    rare = {f"--{name}" for name in flatten(Config().to_values()) if name not in USUAL}
    return [action for action in parser._actions if action.help != SUPPRESS and rare & set(action.option_strings)]


def config_of(options: Namespace) -> Config:
    """The configuration that a command line asks for."""
    values = options.as_dict()
    return Config.from_values({name: values[name] for name in Config.__dataclass_fields__})


def note_other_weights(preset: str, config: Config) -> None:
    """One line, if this run starts from other weights than the figures of its preset do."""
    measured, own = measured_backbone(preset), config.model.backbone
    if measured is not None and measured != {"name": own.name, "weights": Path(own.weights).name}:
        console.print(
            f"note: the figures of '{preset}' in docs/ were measured with {measured['name']} and weights "
            f"{measured['weights']}; with {own.name} and {Path(own.weights).name} they were not.",
            soft_wrap=True,
        )


def one_line(error: Exception) -> str:
    """jsonargparse's messages span lines and name types of Python; a user reads one, of plain words."""
    text = " ".join(str(error).split())
    for pattern, plain in PLAINLY.items():
        text = re.sub(pattern, plain, text)
    return text
