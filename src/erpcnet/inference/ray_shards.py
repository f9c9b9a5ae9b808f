"""A list of pictures in shards that are done once: which pictures each holds, and the files that they become."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from erpcnet.data.images import find_images
from erpcnet.errors import InputError
from erpcnet.utils.files import as_path, read_json, write_json

MANIFEST, PARTIAL = "job.json", ".partial-"
PATH, BYTES = "path", "bytes"  # columns of pictures; those that `ray.data.read_binary_files` gives
ATTEMPTS = 5  # at a shard whose workers are lost: it may be the shard that kills them
WHAT = {
    "format": "version of this program",
    "pictures": "list of pictures",
    "count": "list of pictures",
    "model": "model",
    "candidates": "choice of candidates",
    "top": "number of classes to name",
    "shard_size": "size of shards",
}


def existing_source(source: str | Path) -> Path:
    """The absolute path of a folder or a Parquet file, which is there."""
    path = as_path(source, "the source").absolute()
    if not path.is_dir() and path.suffix.lower() != ".parquet":
        raise InputError(f"{path} is neither a folder nor a Parquet file.")
    if not path.exists():
        raise InputError(f"{path} is not there.")
    return path


def divide_pictures(source: Path, size: int) -> tuple[Path, list[str], dict[str, Any]]:
    """What paths are relative to, the shards as JSON, and what a manifest says of the list of pictures."""
    root = source if source.is_dir() else source.parent
    files = [source]
    if source.is_dir():
        files = sorted(file for file in source.rglob("*.parquet") if not file.name.startswith("."))
    digest = hashlib.sha256()
    shards = list(_shards_of_rows(root, files, size, digest) if files else _shards_of_folder(source, size, digest))
    if not shards:
        raise InputError(f"{source} holds no picture.")
    count = sum(shard.pop("count") for shard in shards)
    encoded = [json.dumps({"number": number, **shard}) for number, shard in enumerate(shards)]
    return root, encoded, {"pictures": digest.hexdigest(), "count": count}


def _shards_of_folder(root: Path, size: int, digest: Any) -> Iterator[dict[str, Any]]:
    names: list[str] = []
    for name in find_images(root):
        digest.update(os.fsencode(str(name)) + b"\0")
        names.append(str(name))
        if len(names) == size:
            yield {"paths": names, "count": size}
            names = []
    if names:
        yield {"paths": names, "count": len(names)}


def _shards_of_rows(root: Path, files: Sequence[Path], size: int, digest: Any) -> Iterator[dict[str, Any]]:
    """Shards as ranges of rows (file, first, count), so that a list of a billion takes no memory here."""
    rows: list[tuple[str, int, int]] = []
    room = size
    for file in files:
        name = str(file.relative_to(root))
        count = _digest_paths(file, name, digest)
        first = 0
        while first < count:
            taken = min(room, count - first)
            rows.append((name, first, taken))
            first, room = first + taken, room - taken
            if not room:
                yield {"rows": rows, "count": size}
                rows, room = [], size
    if rows:
        yield {"rows": rows, "count": size - room}


def _digest_paths(file: Path, name: str, digest: Any) -> int:
    """How many pictures a Parquet file lists; its size stands for what it holds beside their paths."""
    import pyarrow as pa

    digest.update(f"{name}\0{file.stat().st_size}\0".encode("utf-8", "backslashreplace"))
    with _parquet(file) as opened:
        kinds = {field.name: field.type for field in opened.schema_arrow}
        if kinds.get(PATH) not in (pa.string(), pa.large_string()):
            raise InputError(f"{file} has no column '{PATH}' of texts; it needs one, and may have one of '{BYTES}'.")
        if BYTES in kinds and kinds[BYTES] not in (pa.binary(), pa.large_binary()):
            raise InputError(f"{file}: the column '{BYTES}' holds {kinds[BYTES]}; it must hold the pictures' files.")
        for batch in opened.iter_batches(columns=[PATH]):
            digest.update("\0".join(batch.column(0).fill_null("").to_pylist()).encode() + b"\0")
        return int(opened.metadata.num_rows)


def read_rows(root: Path, ranges: Sequence[tuple[str, int, int]]) -> dict[str, list[Any]]:
    """The columns of some rows; only the row groups that hold them are read."""
    found: dict[str, list[Any]] = {PATH: [], BYTES: []}
    for name, first, count in ranges:
        with _parquet(root / name) as opened:
            sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
            starts = np.cumsum([0, *sizes])
            groups = [
                group for group in range(len(sizes)) if starts[group] < first + count and first < starts[group + 1]
            ]
            columns = [column for column in found if column in opened.schema_arrow.names]
            table = opened.read_row_groups(groups, columns=columns).slice(first - int(starts[groups[0]]), count)
            for column, values in found.items():
                values += table.column(column).to_pylist() if column in columns else [None] * count
    return found


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            yield opened
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file} cannot be read as Parquet ({str(error)[:200]}).") from None


def claim_job(out: Path, source: Path, job: Mapping[str, Any]) -> None:
    """Make the folder this job's, unless it is another's."""
    if out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{out} lies inside of {source}, which is read; give another folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / MANIFEST).exists():
            if any(out.iterdir()):
                raise InputError(f"{out} holds other files; give a new or an empty folder.")
            write_json(out / MANIFEST, dict(job), indent=2)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}).") from None
    begun = read_json(out / MANIFEST, "remove the folder to begin anew")
    for key, value in job.items():
        if begun.get(key) != value:
            raise InputError(
                f"{out} holds another job, with another {WHAT[key]}; go on with what that one was given, "
                "or give another folder."
            )


def digest_of(file: Path) -> str:
    """SHA-256 of what a file holds, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def shard_file_name(number: int) -> str:
    """The name of a shard's file, in the order of its pictures."""
    return f"part-{number:06d}.parquet"


@contextmanager
def shard_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once all went well.

    Not `whole_file`: a worker that was given up may yet be writing, so each has one of its own; and those that lost
    workers leave behind are counted.
    """
    for attempt in range(ATTEMPTS):
        partial = path.with_name(f"{PARTIAL}{attempt}-{path.name}")
        try:
            file = partial.open("xb")
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(path, error) from None
    else:
        raise InputError(
            f"{ATTEMPTS} workers were lost with {path.name}; a picture of that shard may be too large for them."
        )
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror}); the shards that are finished stay.")


def remove_partial(out: Path) -> None:
    """What workers left behind that were lost or stopped."""
    for partial in out.glob(f"{PARTIAL}*"):
        partial.unlink(missing_ok=True)
