from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import small_network
from erpcnet.data.settings import DataSettings
from erpcnet.errors import InputError
from erpcnet.inference import ClassTable, Recogniser
from erpcnet.inference.export import export

RUN = """
import json, sys, numpy, torch
about = {"about.json": ""}
program = torch.export.load(sys.argv[1], extra_files=about).module()
about = json.loads(about["about.json"])
pixels = torch.from_numpy(numpy.load(sys.argv[2]))
chosen = torch.tensor(json.loads(sys.argv[3]))
attributes, seen = (torch.tensor(about[name])[chosen] for name in ("attributes", "seen"))
scores, windows, steps = program(pixels, attributes, seen)
assert not [name for name in sys.modules if name.startswith("erpcnet")]
print(json.dumps([scores.tolist(), windows.tolist(), steps.tolist()]))
"""


def recogniser(variant: str) -> Recogniser:
    rng = np.random.default_rng(0)
    names = tuple(f"class {number}" for number in range(9))
    table = ClassTable(names, rng.random((9, 7), dtype=np.float32), np.arange(9) < 5, tuple("abcdefg"))
    # Kept at the size that the network takes, a picture of that size is shown as it is.
    data = DataSettings(image_size=64, cache_size=64, centre=1.0)
    network = small_network(variant, attraction=0.3)
    network.remember(torch.randn(5, 7, generator=torch.Generator().manual_seed(5)))
    return Recogniser(network, table, data, sigma=0.45, delta=0.3)


@pytest.mark.parametrize(("variant", "first"), [("erpcnet", 5), ("erpcnet", 0), ("globalnet", 0), ("hardnet", 5)])
def test_torch_alone_answers_as_predicting_does(variant: str, first: int, tmp_path: Path) -> None:
    model = recogniser(variant)
    pixels = np.random.default_rng(1).integers(0, 256, (5, 64, 64, 3), dtype=np.uint8)
    chosen = list(range(first, 9))  # the unseen classes, or all
    expected = model.predict([Image.fromarray(picture) for picture in pixels], [f"class {number}" for number in chosen])
    export(model, tmp_path / "model.pt2")
    np.save(tmp_path / "pixels.npy", pixels.transpose(0, 3, 1, 2))
    command = [sys.executable, "-c", RUN, str(tmp_path / "model.pt2"), str(tmp_path / "pixels.npy"), json.dumps(chosen)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    scores, windows, steps = json.loads(told)
    assert [f"class {chosen[int(np.argmax(row))]}" for row in scores] == [one.name for one in expected]
    assert steps == [one.steps for one in expected]
    for own, one, taken in zip(windows, expected, steps, strict=True):
        boxes = np.array([region.box for region in one.regions]).reshape(-1, 4)
        np.testing.assert_allclose(64 * np.array(own).reshape(-1, 4)[:taken], boxes, atol=1e-4)
    if (variant, first) == ("erpcnet", 5):
        assert len(set(steps)) > 1  # some are sure before others


def test_any_number_of_images_and_classes(tmp_path: Path) -> None:
    model = recogniser("erpcnet")
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for images, classes in ((1, 9), (2, 2), (7, 3)):
        pixels = torch.randint(0, 256, (images, 3, 64, 64), dtype=torch.uint8)
        table = [torch.from_numpy(one)[:classes] for one in (model.classes.attributes, model.classes.seen)]
        together, windows, steps = program(pixels, *table)
        assert together.shape == (images, classes)
        for number in range(images):
            alone, own, taken = program(pixels[number : number + 1], *table)
            torch.testing.assert_close(alone[0], together[number], atol=1e-4, rtol=1e-4)
            assert torch.equal(own[0], windows[number])
            assert taken[0] == steps[number]


def test_what_looks_at_random_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'pcnet' looks at random"):
        export(recogniser("pcnet"), tmp_path / "model.pt2")
