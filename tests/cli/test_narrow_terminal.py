"""Tables on a terminal of 80 columns: no line is longer, and nothing in them is cut."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from erpcnet.cli import main
from erpcnet.config import list_presets
from erpcnet.data import ZeroShotDataset
from erpcnet.experiments import bench

WIDTH = 80
SMALL = ["--config", "creatures", "--data.image_size", "64"]
QUICK = [
    *SMALL,
    *("--evaluation.folds", "1", "--stage1.epochs", "1", "--stage1.batch_size", "16", "--stage2.epochs", "1"),
    *("--data.test_crops", "4", "--model.hubness", "0.3"),  # both of which have a place in tables
]
BENCH = ["--batches", "1", "--stage1-batches", "2", "--stage2-images", "4", "--repeats", "4", "--no-growth"]
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(creatures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "run"
    assert main(["train", *QUICK, "--dataset", str(creatures), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def check(text: str) -> None:
    """What is printed fits, and is whole."""
    for line in text.splitlines():
        assert cell_len(line) <= WIDTH, line
    assert "…" not in text


ABLATION = ["--dataset", "DATA", "--out", "OUT", "--seeds", "0", "--methods", "GlobalNet; centre first"]
# Of each command: a command line, and what stands in its table.
COMMANDS: dict[str, tuple[list[str], str]] = {
    "predict": (["RUN", "PICTURES", "--top", "5"], "image class confidence steps"),
    "baseline": ([*SMALL, "--dataset", "DATA"], "ESZSL ridge, nearest class T1 delta"),
    "ablation": ([*QUICK, *ABLATION], "GlobalNet, 4 crops, hubness 0.3 centre first AUSUC"),
    "bench": ([*BENCH, "--image-size", "64"], "building tables backbone, fused GMAC"),
    "data": (["check", "DATA"], "seen classes attribute norms validation folds"),
    "evaluate": (["RUN", "--baseline"], "AUSUC 4 crops; hubness 0.3 ridge, nearest class"),
    "presets": ([], "cub-zoom-fast Anyone's own photographs"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit_a_narrow_terminal(
    command: str, run: Path, creatures: Path, dataset: ZeroShotDataset, tmp_path: Path, capsys: Said
) -> None:
    words, told = COMMANDS[command]
    pictures = (creatures / dataset.image_paths[dataset.test_unseen[0]]).parent
    places = {"RUN": run, "DATA": creatures, "PICTURES": pictures, "OUT": tmp_path / "rows.csv"}
    capsys.readouterr()
    assert main([command, *(str(places.get(word, word)) for word in words)]) == 0
    out = capsys.readouterr().out
    out = out[: out.rindex("┘") + 1] if command == "data" else out  # what is to say follows in lines of any length
    check(out)
    for word in told.split():  # a cell may take several lines
        assert word in out


def test_predictions_are_named_whole(
    run: Path, creatures: Path, dataset: ZeroShotDataset, tmp_path: Path, capsys: Said
) -> None:
    """Of pictures with long names, in classes with long names."""
    picture = tmp_path / f"{'a_long_name_without_a_space' * 5}.png"
    shutil.copy(creatures / "images" / "00a" / "000.png", picture)
    assert main(["predict", str(run), str(picture), "--top", "5"]) == 0
    out = capsys.readouterr().out
    check(out)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    assert "".join(row[0] for row in rows) == str(picture)
    starts = [number for number, row in enumerate(rows) if row[2].endswith("%")]
    named = [" ".join(row[1] for row in rows[start:end]).strip() for start, end in pairwise([*starts, len(rows)])]
    assert len(set(named)) == 5
    assert set(named) <= set(dataset.classes)


def test_every_preset_is_named_whole(capsys: Said) -> None:
    assert main(["presets"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[1:3].strip()]
    assert set(list_presets()) < set(names)


def test_a_bench_of_large_figures_fits(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    """What a GPU has: more ways, larger batches, and a peak of memory."""
    about = {"backbone": "wide_resnet101_2", "image_size": 448, "zoom": 2, "device": "NVIDIA RTX 6000 Ada Generation"}
    row = {"batch": 65536, "ms_per_image": 12345.678, "spread": 1.57, "gmac_per_image": 1234.567, "peak_mib": 143771.0}
    named = [("stage II", "building tables", "minibatches of 1024"), ("inference", "sequential graph", "")]
    rows = [{**row, "group": group, "name": name, "grown": grown} for group, name, grown in named]
    ratios = {"stage I, batch 65536, globalnet: rate against its arithmetic's share of the backbone's": 123.456}
    results: dict[str, Any] = {**about, "rows": rows, "ratios": ratios}
    monkeypatch.setattr(bench, "run_bench", lambda *_: results)
    assert main(["bench", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    check(out)
    for figure in ("65536", "12345.678", "157%", "1234.567", "143771", "123.456", "NVIDIA RTX 6000 Ada Generation"):
        assert figure in out
    for text in ("minibatches", "building", "sequential", "backbone's"):
        assert text in out


def test_a_folder_of_a_long_name_fits(tmp_path: Path, capsys: Said) -> None:
    folder = tmp_path / ("a_long_name_without_a_space" * 5)
    (folder / "crow").mkdir(parents=True)
    (folder / "attributes.csv").write_text("class,black\ncrow,1\n")
    (folder / "splits.csv").write_text("image,class,split\ncrow/0.jpg,owl,seen\n")
    assert main(["data", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    table = out[: out.rindex("┘") + 1]
    check(table)
    cells = [line.strip("│").split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]
    assert "".join(cells) == str(folder)
