"""`erpcnet data`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from jsonargparse import Namespace

from erpcnet.cli.parser import Parser, add_json
from erpcnet.utils.files import as_path, plain_text

DESCRIPTION = "Make, start and check datasets."


def add_arguments(parser: Parser, words: Sequence[str]) -> None:
    actions = parser.add_subcommands(dest="action", title="actions", metavar="ACTION")
    make = Parser(description="Draw an embedded dataset.")
    make.add_argument("name", type=Literal["creatures"])
    make.add_argument("folder", type=str)
    make.add_argument("--seed", type=int, help="decides every pixel; by default that of the committed results")
    actions.add_subcommand("make", make, help="draw an embedded dataset")
    init = Parser(description="Start attributes.csv and splits.csv from a folder of class folders.")
    init.add_argument("folder", type=str)
    actions.add_subcommand("init", init, help="start the two CSV files of your own data")
    check = Parser(description="Read everything once and report what is wrong.")
    check.add_argument("folder", type=str)
    add_json(check, "print the report as JSON")
    actions.add_subcommand("check", check, help="read everything once and report")


def run(options: Namespace) -> int:
    return {"make": _make, "init": _init, "check": _check}[options.action](options[options.action])


def _make(options: Namespace) -> int:
    from erpcnet.data.creatures import CreatureSettings, is_creatures, make_creatures

    settings = CreatureSettings() if options.seed is None else CreatureSettings(seed=options.seed)
    folder = as_path(options.folder, "the folder")
    if is_creatures(folder, settings):
        print(f"{folder} holds these creatures already")
        return 0
    make_creatures(folder, settings)
    print(f"drew creatures into {folder}")
    return 0


def _init(options: Namespace) -> int:
    from erpcnet.data.folder import init_folder

    attributes, splits = init_folder(as_path(options.folder, "the folder"))
    print(f"{attributes}: name your attributes in the first line and give every class a value for each")
    print(f"{splits}: write 'unseen' for the classes to recognise without training images")
    return 0


def _check(options: Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from erpcnet.data.check import check_dataset

    report = check_dataset(as_path(options.folder, "the folder"))
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
        return 1 if report.problems else 0
    table = Table("", Column("", overflow="fold"), title=escape(plain_text(options.folder)))
    for name, value in report.facts.items():
        table.add_row(name, escape(plain_text(str(value))))
    Console().print(table)
    for problem in report.problems:
        print(plain_text(problem))
    for warning in report.warnings:
        print(plain_text(f"note: {warning}"))
    problems, notes = (
        f"{len(found)} {what}{'' if len(found) == 1 else 's'}"
        for found, what in ((report.problems, "problem"), (report.warnings, "note"))
    )
    print("all is well" if report.ok else f"{problems}, {notes}")
    return 1 if report.problems else 0
