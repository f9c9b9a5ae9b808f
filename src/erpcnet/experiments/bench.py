"""How fast it is, and against what: everything in one run, by turns, so that ratios can be trusted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from erpcnet.config import Stage2Settings
from erpcnet.experiments.bench_cases import MIN_REPEATS, BenchSettings, Case, all_cases
from erpcnet.utils.progress import track

# Ways to predict; the fastest of each is compared.
OURS = ("sequential", "parallel", "graph", "sequential graph")
HARDNET = ("hardnet", "hardnet, graph")
BARE = ("backbone, fused", "backbone, graph")


def run_bench(settings: BenchSettings, keep: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """All cases by turns; rows, and the ratios that matter.

    `keep` gets them after every turn from the fourth on, so that a bench that is cut short leaves what it measured.
    """
    with settings.runtime.autocast():
        cases = all_cases(settings)
        for case in track(cases, total=len(cases), what="Warming up"):
            case.memory = _peak(case.warm, settings.device)
        for turn in track(range(1, settings.repeats + 1), total=settings.repeats, what="Measuring"):
            for case in cases:
                case.seconds.append(_timed(case.run, settings.device))
            if keep is not None and turn >= MIN_REPEATS:
                keep(_results(cases, settings))
        return _results(cases, settings)


def _results(cases: Sequence[Case], settings: BenchSettings) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if settings.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    about = {"backbone": settings.backbone, "image_size": settings.image_size, "zoom": settings.zoom, "device": device}
    rows = [{**about, **case.row()} for case in cases]
    return {**about, "torch": torch.__version__, "rows": rows, "ratios": ratios(rows)}


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The comparisons one asks for, by name."""
    rows = [row for row in rows if not row["grown"]]
    time_of = {(row["group"], row["name"], row["batch"]): row["ms_per_image"] for row in rows}
    macs_of = {(row["group"], row["name"]): row["gmac_per_image"] for row in rows}
    found: dict[str, float] = {}
    batches = sorted({row["batch"] for row in rows if row["group"] == "inference"})
    for (group, name, batch), value in time_of.items():
        if group == "stage I" and name != "backbone":
            bare, what = time_of[group, "backbone", batch], f"stage I, batch {batch}, {name}"
            found[f"{what}: time against the backbone's"] = value / bare
            if name.startswith("backbone"):
                continue
            share = macs_of[group, name] / macs_of[group, "backbone"]
            found[f"{what}: rate against its arithmetic's share of the backbone's"] = share * bare / value
    epoch_of = {name: value for (group, name, _), value in time_of.items() if group == "stage II"}
    found["stage II: tables against direct"] = epoch_of["tables"] / epoch_of["direct"]
    found["stage II: tables against HardNet"] = epoch_of["tables"] / epoch_of["hardnet"]
    usual = Stage2Settings()
    epochs = usual.epochs
    built = epoch_of["tables"] + epoch_of["building tables"] * usual.crops / epochs
    found[f"stage II: tables, built over {epochs} epochs, against HardNet"] = built / epoch_of["hardnet"]
    for batch in batches:
        ours, hardnet, bare = (
            min(time_of["inference", way, batch] for way in ways if ("inference", way, batch) in time_of)
            for ways in (OURS, HARDNET, BARE)
        )
        found[f"inference, batch {batch}: against HardNet"] = ours / hardnet
        found[f"inference, batch {batch}: against the backbone, fused alike"] = ours / bare
        found[f"inference, batch {batch}: against the backbone as it comes"] = (
            ours / time_of["inference", "backbone", batch]
        )
    return found


def _timed(run: Callable[[], object], device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - started


def _peak(run: Callable[[], object], device: str) -> float | None:
    """MiB of the GPU's memory that this takes at its peak, beside what was there before; a CPU does not say."""
    if device != "cuda":
        _timed(run, device)
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _timed(run, device)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
