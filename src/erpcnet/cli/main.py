"""`erpcnet`: every command, and what happens to a person's mistakes."""

from __future__ import annotations

import difflib
import errno
import sys
from argparse import ArgumentError
from collections.abc import Sequence

from erpcnet import __version__
from erpcnet.cli import (
    ablation,
    analyse,
    baseline,
    bench,
    data,
    demo,
    evaluate,
    experiment,
    explain,
    export,
    predict,
    presets,
    serve,
    train,
)
from erpcnet.cli.parser import Command, Parser, add_quiet, one_line
from erpcnet.errors import InputError
from erpcnet.utils.files import plain_text
from erpcnet.utils.progress import quietly

COMMANDS: tuple[Command, ...] = (
    Command("train", train, "train and evaluate"),
    Command("evaluate", evaluate, "evaluate a run again"),
    Command("predict", predict, "name what is in pictures"),
    Command("explain", explain, "why one class and not another"),
    Command("analyse", analyse, "the paper's figures and analyses of a run"),
    Command("demo", demo, "try a run in the browser"),
    Command("serve", serve, "a page and a REST interface"),
    Command("export", export, "a file that torch alone can run"),
    Command("baseline", baseline, "what the backbone gives without training"),
    Command("ablation", ablation, "the paper's ablation, over seeds"),
    Command("experiment", experiment, "the paper's figures that need trainings of their own"),
    Command("bench", bench, "how fast it is, and against what"),
    Command("data", data, "make, start and check datasets"),
    Command("presets", presets, "the names that --config takes"),
)
EPILOG = "Exit codes: 0 done, 1 checked and found wanting, 2 wrong input."
# What comes with an extra of the package, and with which.
EXTRAS = {
    "train": ("accelerate", "tensorboard", "sklearn", "scipy", "filelock", "psutil"),
    "timm": ("timm",),
    "serve": ("fastapi", "uvicorn", "pydantic"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "hub": ("huggingface_hub",),
    "heic": ("pillow_heif",),
}


OUT_OF_MEMORY = (
    "out of memory; lower --stage1.batch_size, --stage2.rollout_batch_size, --evaluation.batch_size, --data.image_size "
    "or --data.cache_size."
)
LONGEST = 2000  # characters of a complaint
TELL_NOTHING_ELSE = ("data", "demo", "presets", "serve")  # but what they are asked for
PATHS = ("run", "out", "dataset", "folder", "picture", "config", "host", "device")  # arguments that must not be empty

# What settings are called elsewhere, or were once, and a share of letters from which on a flag may be meant.
ELSEWHERE = {"learning_rate": "lr", "wd": "weight_decay", "views": "crops", "output": "out", "data_dir": "dataset"}
CLOSE = 0.75


def build_parser(words: Sequence[str] = ()) -> Parser:
    """The parser of all commands; `words` are what it is for, as defaults may depend on them."""
    parser = Parser(
        prog="erpcnet",
        description="Zero-shot image recognition that looks where it needs to.",
        epilog=EPILOG,
        version=__version__,
    )
    commands = parser.add_subcommands(dest="command", title="commands", metavar="COMMAND")
    asked = next((command for command in COMMANDS if words and words[0] == command.name), None)
    every = not words or words[0].startswith("--print")  # as completion needs them
    for command in COMMANDS:
        own = Parser(description=command.module.DESCRIPTION)
        commands.add_subcommand(command.name, own, help=command.help)
        own.prog = f"erpcnet {command.name}"
        if every or command is asked:  # nobody waits for the arguments of other commands
            command.module.add_arguments(own, words if asked else ())
            if command.name not in TELL_NOTHING_ELSE:
                add_quiet(own)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what a person or the machine did wrong is one sentence on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except InputError as error:
        return _complain(str(error))
    except ModuleNotFoundError as error:
        extra = next((extra for extra, names in EXTRAS.items() if error.name in names), None)
        if extra is None:
            raise
        return _complain(f"this needs '{error.name}'; pip install 'erpcnet[{extra}]'.")
    except BrokenPipeError:  # of `erpcnet ... | head`
        sys.stdout = None  # which would fail again at exit
        return 0
    except OSError as error:
        return _complain(_of_system(error))
    except MemoryError:
        return _complain(OUT_OF_MEMORY)
    except KeyboardInterrupt:
        remedy = "; the same command resumes it" if words[:1] == ["train"] else ""
        print(f"erpcnet: interrupted{remedy}", file=sys.stderr)
        return 130
    except RuntimeError as error:
        from erpcnet.utils.memory import is_out_of_memory  # which waits for torch

        if not is_out_of_memory(error):
            raise
        return _complain(OUT_OF_MEMORY)


def _complain(message: str) -> int:
    plain = plain_text(message)  # names of files may be no UTF-8, and hold anything
    print(f"erpcnet: {plain if len(plain) <= LONGEST else plain[: LONGEST - 3] + '...'}", file=sys.stderr)
    return 2


def _of_system(error: OSError) -> str:
    """What the system refused: a full disk, a folder that may not be written, a name that no file can have."""
    where = f"{str(error.filename)[:200]}: " if error.filename else ""
    remedy = {
        errno.ENOSPC: "; make room, and the same command goes on",
        errno.EMFILE: "; allow more with `ulimit -n`",
    }.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{remedy}."


def _run(words: list[str]) -> int:
    words = ["--help"] if words == ["help"] else words
    if any("\0" in word for word in words):
        raise InputError("an argument holds a NUL byte, which no name can have.")
    try:
        parser = build_parser(words or ["--help"])
        options = parser.parse_args(words)
    except ArgumentError as error:
        if not words:
            parser.print_help()
            return 2
        prog = " ".join(["erpcnet", *(one.name for one in COMMANDS if one.name == words[0])])
        if any(word.partition("=")[0] == "--data" for word in words):
            raise InputError("the folder of the dataset is --dataset DIR, no longer --data.") from None
        message = one_line(error).replace(f"{words[0]}.", "")  # as in predict.images
        raise InputError(f"{message}{_closest_flag(words)}; see `{prog} --help`.") from None
    except SystemExit as done:  # after --help or --version
        return int(done.code or 0)
    except InputError:
        raise
    except (ValueError, RecursionError, OverflowError) as error:  # of numbers without end
        raise InputError(f"an argument cannot be read ({' '.join(str(error).split())[:120]}).") from None
    command = next(one for one in COMMANDS if one.name == options.command)
    own = options[options.command]
    for name in PATHS:
        if own.get(name) == "":
            raise InputError(f"--{name} is empty; give a path." if name != "run" else "the run is empty; give a path.")
    with quietly(bool(own.get("quiet") or own.get("json"))):
        return int(command.module.run(own))


def _closest_flag(words: list[str]) -> str:
    """Which flag a word that is none may mean: one of its name in any group, or one that is spelt nearly so."""
    command = next((one for one in COMMANDS if one.name == words[0]), None)
    if command is None:
        return ""
    own = Parser()
    command.module.add_arguments(own, ())
    flags = [flag for action in own._actions for flag in action.option_strings if flag.startswith("--")]
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        if word not in flags:
            group, _, last = word.removeprefix("--").rpartition(".")
            meant = ELSEWHERE.get(last, last)
            same = [flag for flag in flags if flag.removeprefix("--").rpartition(".")[2] == meant]
            same = [flag for flag in same if flag == f"--{group}.{meant}"] or same
            close = same or difflib.get_close_matches(word, flags, n=1, cutoff=CLOSE)
            return f" (perhaps {' or '.join(close)})" if close else ""
    return ""
