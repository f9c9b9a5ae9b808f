"""Trainings of several processes: the figures of one, whoever dies ends all, and any number of them goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trust.cases import TINY_FLAGS, Row, Size, clean, draw_tiny, generator, left_running
from trust.sabotage import read_moments

TESTS = Path(__file__).parents[1]
LIMIT = 300.0  # seconds that a training of seconds may take
ENDS = 60.0  # seconds after which a training of which a process has died has ended
# Weights are not compared: rounding decides on which side of 0 a ReLU is, a unit of an early block changes gradients by
# per cents, and steps add that up (tests/training/test_processes.py compares the gradients of one batch). So a few of
# the images, of which there are 20 and 24 and most are hardly told apart, may be answered otherwise; delta lies in the
# middle between the margins of two images, which may be the next two.
NEXT_MARGIN = 0.05
MAY_DIFFER = {"t1": 2 / 20, "u": 2 / 20, "s": 2 / 24, "mean_steps": 0.2, "sigma": 0.0}
# Norms that learn, mixed images, dropout, rows that are swapped, a policy: all that depends on a whole batch. AdamW
# would divide gradients that are nearly 0, and what rounding makes of them, by their size.
ALL_OF_IT = (
    *("--stage1.epochs", "4", "--model.dropout", "0.2", "--stage1.mixup", "0.3", "--variant", "erpcnet"),
    *("--stage1.optimizer", "sgd", "--stage1.lr", "0.003"),
)


class Told(NamedTuple):
    """How a training ended: its exit code, None if it had to be stopped, and what it said."""

    code: int | None
    said: str
    seconds: float


def run(size: Size, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of this campaign."""
    random = generator(seed, "processes")
    data = draw_tiny(folder / "creatures")
    yield same_figures(folder, data, seed, (2,) if size == "short" else (2, 3))
    yield same_evaluation(folder, data, seed, (2,) if size == "short" else (2, 3))
    yield too_many(folder, data)
    if size == "full":
        yield killed_ranks(folder, data, random, 5)
        yield two_nodes(folder, data)


def words_of(data: Path, out: Path, *more: str) -> list[str]:
    """What `train` is told."""
    return ["train", *TINY_FLAGS, *more, "--dataset", str(data), "--out", str(out)]


def launch(processes: int, words: Sequence[str], module: Sequence[str] = ("-m", "erpcnet")) -> list[str]:
    """The command that starts so many processes."""
    if processes == 1:
        return [sys.executable, *module, *words]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return [*start, *module, *words]


def finish(command: Sequence[str], seconds: float = LIMIT) -> Told:
    """Run a command to its end."""
    started = time.monotonic()
    child = begin(command)
    try:
        said, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        stop(child)
        return Told(None, "", time.monotonic() - started)
    return Told(child.returncode, said, time.monotonic() - started)


def begin(command: Sequence[str], prefix: Sequence[str] = (), device: str = "") -> subprocess.Popen[str]:
    """Start a command in a session of its own; processes exchange over a network `device`, if one is named."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    environment |= {"GLOO_SOCKET_IFNAME": device} if device else {}
    return subprocess.Popen(
        [*prefix, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def stop(child: subprocess.Popen[str]) -> None:
    """End a command and all that it started."""
    for process in left_running(child.pid):
        with suppress(ProcessLookupError):
            os.kill(process, 9)
    child.wait()


def figures(run_: Path) -> dict[str, float]:
    """What the run says of the test images."""
    return dict(json.loads((run_ / "metrics.json").read_text()))


def difference(found: Path, expected: Path) -> str | None:
    """Which figure is not as in another run, but for rounding."""
    one, other = figures(expected), figures(found)
    for name, most in MAY_DIFFER.items():
        if abs(one[name] - other[name]) > most + 1e-9:
            return f"{name} is {other[name]} in place of {one[name]}"
    if abs(one["delta"] - other["delta"]) > NEXT_MARGIN * one["delta"]:
        return f"delta is {other['delta']} in place of {one['delta']}"
    return None


def same_figures(folder: Path, data: Path, seed: int, processes: Sequence[int]) -> Row:
    """The same training by one process and by several."""
    what = f"1 = {' = '.join(map(str, processes))} processes"
    row = Row("processes", what, "the same sigma; figures within two images, delta within 5 %")
    cases: Mapping[str, Sequence[str]] = {
        "all of it": (*ALL_OF_IT, "--seed", str(seed)),
        "frozen backbone": ("--stage1.freeze_backbone", "true", "--variant", "erpcnet", "--seed", str(seed + 1)),
        "hardnet": ("--variant", "hardnet", "--stage1.epochs", "1", "--stage2.epochs", "1", "--seed", str(seed + 2)),
    }
    for name, more in list(cases.items())[: 1 if len(processes) == 1 else None]:
        place = clean(folder / "same")
        alone = finish(launch(1, words_of(data, place / "1", *more)))
        for count in processes:
            together = finish(launch(count, words_of(data, place / str(count), *more)))
            codes = alone.code, together.code
            problem = None if codes == (0, 0) else f"exit codes {codes}: {(alone.said + together.said)[-500:]}"
            row.count(problem or difference(place / str(count), place / "1"), f"{name}, {count}")
    return row


def same_evaluation(folder: Path, data: Path, seed: int, processes: Sequence[int]) -> Row:
    """The same weights, evaluated as a training does in the end, by one process and by several."""
    what = f"evaluation by 1 = {' = '.join(map(str, processes))} processes"
    row = Row(
        "processes", what, "the same rollouts and figures, to the bit; each process looks at a part of the images"
    )
    for variant in ("erpcnet", "hardnet"):  # of tables, and of localities that are computed one by one
        place = clean(folder / "evaluation")
        run = stored_weights(place / "run", data, variant, seed)
        told = {}
        for count in (1, *processes):
            ended = finish(launch(count, [str(run), str(data), str(place / str(count))], ("-m", "trust.measure")))
            files = [place / f"{count}-{rank}" for rank in range(count)]
            told[count] = [json.loads(file.read_text()) for file in files if file.exists()]
            if ended.code != 0 or len(told[count]) != count:
                row.count(f"exit code {ended.code}: {ended.said[-500:]}", f"{variant}, {count}")
            elif count > 1:
                row.count(_other_evaluation(told[count], told[1]), f"{variant}, {count}")
    return row


def _other_evaluation(together: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> str | None:
    """What several processes have told otherwise than one did."""
    if not alone:
        return "one process alone has told nothing"
    for rank, own in enumerate(together):
        for name in ("rollouts", "figures"):
            if own[name] != alone[0][name]:
                return f"process {rank}: {name} {own[name]} in place of {alone[0][name]}"
        if own["looked"] >= alone[0]["looked"]:
            return f"process {rank} looked at {own['looked']} crops, and one alone at {alone[0]['looked']}"
    return None


def stored_weights(folder: Path, data: Path, variant: str, seed: int) -> Path:
    """A run of a network that nobody trained, which is evaluated in more batches than there are processes."""
    import torch

    from erpcnet.config import load_config
    from erpcnet.data import read_dataset
    from erpcnet.inference.model_file import MODEL, save_model
    from erpcnet.model import ERPCNet, OperatingPoint
    from erpcnet.model.preprocessing import preprocessing_for

    sizes = {"data": {"image_size": 64, "cache_size": 72}, "model": {"steps": 3}, "evaluation": {"batch_size": 3}}
    config, dataset = load_config("creatures", variant=variant, seed=seed, **sizes), read_dataset(data)
    torch.manual_seed(seed)
    network = ERPCNet(config.model, len(dataset.attribute_names), config.data.image_size, config.variant).eval()
    preprocessing = preprocessing_for(config.model.backbone, config.data.crop_share)
    folder.mkdir()
    save_model(folder / MODEL, network, dataset, config, OperatingPoint(0.4, 0.1, "fixed"), preprocessing)
    return folder


def too_many(folder: Path, data: Path) -> Row:
    """More processes than a batch has images."""
    row = Row("processes", "a batch smaller than the processes", "one sentence, nothing left behind")
    place = clean(folder / "many")
    told = finish(launch(3, words_of(data, place / "run", "--stage1.batch_size", "2")))
    problem = None if told.code else f"exit code {told.code}"
    if "3 processes cannot share batches of 2 images" not in " ".join(told.said.split()):
        problem = f"what was said: {told.said[-500:]}"
    row.count(problem or (f"left behind: {list(place.iterdir())}" if any(place.iterdir()) else None))
    return row


def killed_ranks(folder: Path, data: Path, random: np.random.Generator, count: int) -> Row:
    """A process dies; the same training is resumed by another number of them."""
    promise = f"all end within {ENDS:.0f} s, nothing runs on; any number of them resumes it, to figures as near"
    row = Row("processes", "one of several killed", promise)
    place = clean(folder / "killed")
    whole, notes = place / "whole" / "run", place / "notes"
    more = (*ALL_OF_IT, "--seed", "5")
    alone = finish(launch(2, ["-1", "0", str(notes), *words_of(data, whole, *more)], ("-m", "trust.rank")))
    if alone.code != 0:
        row.count(f"the uninterrupted training ended with {alone.code}: {alone.said[-500:]}")
        return row
    moments = [read_moments(Path(f"{notes}-{rank}")) for rank in range(2)]
    for case in range(count):
        work = clean(place / "case")
        processes, rank = 2 + case % 2, int(random.integers(2 + case % 2))
        at = int(random.integers(len(moments[min(rank, 1)]) - 20))  # in the last ones it has nothing to do any more
        words = words_of(data, work / "run", *more)
        started = time.monotonic()
        child = begin(launch(processes, [str(at), str(rank), str(notes), *words], ("-m", "trust.rank")))
        try:
            said, _ = child.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            stop(child)
            row.count(f"it did not end in {time.monotonic() - started:.0f} s", case)
            continue
        problem = None if child.returncode else f"nobody died: {said[-300:]}"
        if left_running(child.pid):
            problem = "processes run on"
            stop(child)
        again = finish(launch(1 + (processes + case) % 3, words))
        problem = problem or (None if again.code == 0 else f"resuming ended with {again.code}: {again.said[-500:]}")
        row.count(problem or difference(work / "run", whole), f"{case} (rank {rank} of {processes}, {at})")
    return row


def two_nodes(folder: Path, data: Path) -> Row:
    """Two machines: network namespaces that are joined by a cable, or, without them, two launchers on one."""
    row = Row("processes", "two nodes", "figures as near to those of one process")
    place = clean(folder / "nodes")
    more = (*ALL_OF_IT, "--seed", "6")
    alone = finish(launch(1, words_of(data, place / "one", *more)))
    cable = _cable()
    row.note = "network namespaces" if cable else "two launchers on one machine"
    try:
        address = "10.213.7.1" if cable else "127.0.0.1"
        nodes = []
        for rank in range(2):
            start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
            start += ["--node_rank", str(rank), "--master_addr", address, "--master_port", "29613", "-m", "erpcnet"]
            prefix = ["ip", "netns", "exec", f"erpcnet{rank}"] if cable else []
            device = f"erpcnet-{'ab'[rank]}" if cable else "lo"
            nodes.append(begin([*start, *words_of(data, place / "two", *more)], prefix, device))
        said = [_last_words(node) for node in nodes]
    finally:
        if cable:
            _unplug()
    codes = [alone.code, *(node.returncode for node in nodes)]
    problem = None if codes == [0, 0, 0] else f"exit codes {codes}: {alone.said[-300:]} {' '.join(said)[-800:]}"
    row.count(problem or difference(place / "two", place / "one"))
    return row


def _last_words(node: subprocess.Popen[str]) -> str:
    try:
        return node.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        stop(node)
        return "it hung"


CABLE = (
    "netns add erpcnet0",
    "netns add erpcnet1",
    "link add erpcnet-a netns erpcnet0 type veth peer name erpcnet-b netns erpcnet1",
    "-n erpcnet0 addr add 10.213.7.1/24 dev erpcnet-a",
    "-n erpcnet1 addr add 10.213.7.2/24 dev erpcnet-b",
    *(f"-n erpcnet{node} link set {device} up" for node in (0, 1) for device in ("lo", f"erpcnet-{'ab'[node]}")),
)


def _cable() -> bool:
    """Whether two namespaces with a cable between them could be made."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    _unplug()
    for line in CABLE:
        if subprocess.run(["ip", *line.split()], capture_output=True, check=False).returncode:
            _unplug()
            return False
    return True


def _unplug() -> None:
    for node in (0, 1):
        subprocess.run(["ip", "netns", "delete", f"erpcnet{node}"], capture_output=True, check=False)
