"""What is wrong in every way, handed over: it is refused in one sentence, or what comes of it is sound."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trust import wrong_calls, wrong_files, wrong_pictures, wrong_runs, wrong_texts
from trust.batches import Maker, run_batch
from trust.cases import Row, Size, clean, generator
from trust.world import World, build_world

PROMISE = "refused in one sentence, or sound: no traceback, no hang, bounded memory, nothing absurd accepted"
SHORT = 5  # cases of a kind in the short form
KINDS: dict[str, Callable[[World], Sequence[Maker]]] = {
    "CSV tables of a dataset": wrong_texts.tables,
    "CSV tables of new classes": wrong_texts.new_classes,
    "YAML configurations": wrong_texts.configurations,
    "settings by flags": wrong_texts.settings,
    "flags and words of every command": wrong_texts.words,
    "pictures": wrong_pictures.pictures,
    "stored models": wrong_runs.models,
    "JSON files of a run": wrong_runs.notes,
    "checkpoints": wrong_runs.checkpoints,
    ".mat files and lists": wrong_files.matlab,
    "caches": wrong_files.caches,
    "arguments of the library's functions": wrong_calls.calls,
}


def run(size: Size, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of this campaign."""
    folder.chmod(0o755)  # another user comes by
    world = build_world(clean(folder / "world"), seed)
    home = Path.cwd()
    try:
        for kind, make in KINDS.items():
            makers = make(world)
            if size == "short":
                # Spread over all that there is of a kind, which begins with what is known to be wrong.
                chosen = generator(seed, kind).choice(len(makers), size=min(SHORT, len(makers)), replace=False)
                makers = [makers[number] for number in sorted(chosen)]
            yield run_batch(Row("inputs", kind, PROMISE), makers, seed, clean(folder / "batch"))
        yield wrong_files.permissions(world, size, clean(folder / "permissions"))
        if size == "full":
            yield wrong_runs.interrupted(world, seed, clean(folder / "interrupted"))
    finally:
        os.chdir(home)
