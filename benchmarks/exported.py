"""How long does a picture take in the library, in the exported program, and in onnxruntime? By turns, on CPU threads.

    python benchmarks/exported.py RUN [--batches 1 32] [--repeats 20] [--out FILE.csv]

All three get the same pictures, whole, as bytes [N, 3, side, side], among all classes of the run, and give the same
probabilities; what an exported program does not do (opening files) is left out. The library takes them as arrays.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from prediction import by_turns

import erpcnet
from erpcnet.experiments.rows import write_rows
from erpcnet.inference.export import INPUTS, export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = erpcnet.load(options.run, "cpu")
    side = model.data.stored_size
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("model.pt2", "model.onnx"):
            export(model, Path(folder) / name)
        program = torch.export.load(Path(folder) / "model.pt2").module()
        threads = onnxruntime.SessionOptions()
        threads.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", threads, providers=["CPUExecutionProvider"])
    attributes, seen = torch.from_numpy(model.classes.attributes), torch.from_numpy(model.classes.seen)
    for batch in options.batches:
        drawn = torch.randint(0, 256, (batch, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()
        given = drawn, torch.full((batch, 2), float(side)), attributes, seen
        fed = {name: one.numpy() for name, one in zip(INPUTS, given, strict=True)}
        pictures = list(drawn.permute(0, 2, 3, 1).numpy())
        with torch.inference_mode():
            ways = {
                "erpcnet.load(...).predict": partial(model.predict, pictures),
                "model.pt2, torch.export": partial(program, *given),
                "model.onnx, onnxruntime": partial(session.run, None, fed),
            }
            seconds = by_turns(list(ways.values()), options.repeats)
        steps = float(np.mean([one.steps for one in model.predict(pictures)]))
        for way, taken in zip(ways, seconds, strict=True):
            row = {
                "way": way,
                "backbone": model.network.settings.backbone.name,
                "input": model.data.image_size,
                "batch": batch,
                "ms_per_image": 1000 * taken / batch,
                "against_predict": taken / seconds[0],
                "mean_steps": steps,
                "threads": torch.get_num_threads(),
            }
            rows.append(row)
            print(f"{way:28s} batch {batch:3d}  {row['ms_per_image']:8.2f} ms  {row['against_predict']:.2f}")
    if options.out is not None:
        write_rows(options.out, rows)


if __name__ == "__main__":
    main()
