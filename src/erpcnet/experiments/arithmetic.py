"""What a locality costs with each kind of kernel, counted: a table of docs/speed.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from erpcnet.config import LocalSettings
from erpcnet.experiments.bench_cases import BenchSettings, count_macs, drawn_network
from erpcnet.experiments.rows import write_rows


def kernel_arithmetic(backbone: str, image_size: int) -> list[dict[str, Any]]:
    """GMAC of one locality with each kind of kernel, beside the whole backbone and HardNet's patch."""
    rows = []
    bare = drawn_network("globalnet", BenchSettings(backbone=backbone, image_size=image_size))
    rows.append(
        {"what": "backbone", "gmac": count_macs(bare.backbone, torch.zeros(1, 3, image_size, image_size)) / 1e9}
    )
    for kind in ("bottleneck", "full"):
        for mode in ("same", "valid"):
            local = LocalSettings(kernel_kind=kind, kernel_mode=mode)
            network = drawn_network("pcnet", BenchSettings(backbone=backbone, image_size=image_size), local)
            grid = network.grid
            source = torch.zeros(1, network.backbone.map_channels, grid.height, grid.width)
            cost = count_macs(network.embed_localities, source, torch.zeros(1, 1, dtype=torch.long))
            rows.append({"what": f"one locality, {kind} kernel, {mode}", "gmac": cost / 1e9})
    hard = drawn_network("hardnet", BenchSettings(backbone=backbone, image_size=image_size))
    patch = torch.zeros(1, 3, hard.grid.window, hard.grid.window)
    rows.append({"what": "one patch of HardNet", "gmac": count_macs(hard.backbone, patch) / 1e9})
    return rows


def main() -> None:
    """Write the table's rows."""
    write_rows(Path("benchmarks/results/arithmetic.csv"), kernel_arithmetic("resnet50", 224))


if __name__ == "__main__":
    main()
