from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import erpcnet
from erpcnet.cli import main
from erpcnet.cli.parser import USUAL
from erpcnet.config import TestCrops, describe_preset, list_presets, load_config
from erpcnet.config.config import DEFAULTS
from erpcnet.data.images import load_image, squeeze
from erpcnet.data.transforms import CroppedImages, resample
from erpcnet.errors import InputError
from erpcnet.evaluation.runs import open_run
from erpcnet.evaluation.tables import print_metrics
from erpcnet.experiments.reference import list_settings
from erpcnet.model.scoring import stack_logits
from erpcnet.training.context import create_network

QUICK = [
    *("--evaluation.folds", "1"),
    "--data.image_size",
    "64",
    "--stage1.epochs",
    "1",
    "--stage2.epochs",
    "2",
    "--stage1.batch_size",
    "16",
    "--model.hubness",
    "0.3",
]
KEYS = {
    "t1",
    "t1_per_image",
    "ece",
    "u",
    "s",
    "h",
    "ausuc",
    "delta",
    "sigma",
    "mean_steps",
    "mean_steps_all",
    "temperature",
    "crops",
    "hubness",
    "protocol",
    "seed",
    "variant",
}


@pytest.fixture(scope="module")
def run(creatures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    code = main(
        ["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(out), "--seed", "3", *QUICK]
    )
    assert code == 0
    return out


def test_a_run_leaves_what_it_promises(run: Path, creatures: Path) -> None:
    names = {path.name for path in run.iterdir()}
    files = {"model.safetensors", "metrics.json", "validation.json", "run.json", "console.log", "localities.png"}
    assert names == {"config.yaml", "logs", *files}
    # Whoever may read the one may read the other.
    assert (run / "model.safetensors").stat().st_mode == (run / "config.yaml").stat().st_mode
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics) >= KEYS
    assert (metrics["seed"], metrics["variant"], metrics["protocol"]) == (3, "erpcnet", "validation")
    assert list((run / "logs").glob("events.*"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["image_size"] == 64
    with Image.open(run / "localities.png") as picture:
        assert picture.width > 800


def test_evaluating_again_gives_the_same_figures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    metrics = json.loads((run / "metrics.json").read_text())
    for name in KEYS:
        assert again[name] == pytest.approx(metrics[name]), name


def test_another_delta_may_be_tried(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = json.loads((run / "validation.json").read_text())["delta"]
    assert main(["evaluate", str(run), "--delta", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"delta {known['chosen']:.2f} from {known['classes']} validation classes" in said
    u, s = 100 * known["unseen"][0], 100 * known["seen"][0]
    assert f"On the validation classes, at delta 0.00: U {u:.1f} S {s:.1f}" in said
    assert main(["evaluate", str(run), "--delta", "1000", "--json"]) == 0
    far = json.loads(capsys.readouterr().out)
    assert (far["protocol"], far["delta"], far["s"]) == ("fixed", 1000, 0)
    assert far["u"] == pytest.approx(far["t1"], abs=0.2)  # among unseen classes, but that others stop elsewhere
    assert main(["evaluate", str(run), "--delta", "nan"]) == 2
    (run / "validation.json").rename(run / "kept.json")
    try:
        (run / "validation.json").write_text("{")
        assert main(["evaluate", str(run)]) == 0
        told = capsys.readouterr()
        assert "validation.json is damaged; nothing is said of how" in told.err
        assert "validation classes" not in told.out
    finally:
        (run / "kept.json").replace(run / "validation.json")


@pytest.mark.parametrize("crops", [1, 2, 4])
def test_predicting_agrees_with_the_evaluation(
    run: Path, creatures: Path, crops: TestCrops, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = erpcnet.read_dataset(creatures)
    model = erpcnet.load(run, test_crops=crops)
    rows = dataset.test_unseen
    found = model.predict([creatures / dataset.image_paths[row] for row in rows], "unseen", batch_size=24)
    right = torch.tensor([dataset.classes[dataset.labels[row]] == f.name for row, f in zip(rows, found, strict=True)])
    assert main(["evaluate", str(run), "--json", "--crops", str(crops)]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["crops"] == crops
    close = close_calls(run, creatures, crops)  # which rounding may decide either way: other batches, folded norms
    assert close < len(rows) / 4
    share = close / len(rows)
    assert right.double().mean().item() == pytest.approx(metrics["t1_per_image"], abs=share + 1e-6)
    if crops == 1:  # of several crops, a prediction holds the steps of the first
        assert sum(f.steps for f in found) / len(found) == pytest.approx(metrics["mean_steps"], abs=6 * share + 1e-6)
    among_all = model.predict([creatures / dataset.image_paths[row] for row in rows], "all")
    u = torch.tensor([dataset.classes[dataset.labels[row]] == f.name for row, f in zip(rows, among_all, strict=True)])
    assert u.double().mean().item() == pytest.approx(metrics["u"], abs=share + 1e-6)  # as many images in every class


@torch.inference_mode()
def close_calls(run: Path, creatures: Path, crops: TestCrops) -> int:
    """Test images of unseen classes whose answer, or whose last step, hangs on less than rounding may change."""
    opened = open_run(run, creatures, crops)
    rollouts, dataset, point = opened.rollouts(), opened.dataset, opened.point
    close = torch.zeros(len(dataset.test_unseen), dtype=torch.bool)
    for classes in (dataset.unseen, np.concatenate([dataset.seen, dataset.unseen])):
        scored = rollouts.score("unseen", classes)
        close |= ((scored.reward - point.sigma).abs() < 1e-4).any(dim=2).any(dim=0)
        logits, seen = scored.stopped(point.sigma).final, torch.from_numpy(np.isin(classes, dataset.seen))
        close |= stack_logits(logits, seen, point.delta).topk(2).values.diff().abs()[:, 0] < 1e-3
    return int(close.sum())


def test_crops_of_a_picture_are_averaged(run: Path, creatures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = erpcnet.read_dataset(creatures)
    pictures = [load_image(creatures / dataset.image_paths[row]) for row in dataset.test_unseen[:12]]
    one, both = erpcnet.load(run), erpcnet.load(run, test_crops=2)
    never = replace(one.point, sigma=float("inf"))  # nobody stops, whatever rounding says
    one.point = both.point = never
    found, plain = both.predict(pictures), one.predict(pictures)
    pixels = torch.from_numpy(np.stack([squeeze(picture, one.data.stored_size) for picture in pictures]))
    objects = torch.tensor([two.object_crop for two in found]) / torch.tensor(
        [picture.size * 2 for picture in pictures]
    )
    close_up = resample(pixels.contiguous(), objects, one.data.image_size)
    monkeypatch.setattr(one, "_crop", lambda _: CroppedImages(close_up[None], objects, None))
    close = one.predict(pictures)
    same = 0
    for two, first, second in zip(found, plain, close, strict=True):
        assert [own.box for own in two.localities] == [pytest.approx(same.box) for same in first.localities]
        assert (first.object_crop, two.crops) == (None, 2)
        for name, value in two.attributes.items():
            assert value == pytest.approx((first.attributes[name] + second.attributes[name]) / 2, abs=1e-4)
        if first.name == second.name:  # two logits that agree agree when they are averaged
            same += 1
            assert two.name == first.name
            for name, value in two.evidence.items():
                assert value == pytest.approx((first.evidence[name] + second.evidence[name]) / 2, abs=1e-3)
    assert same > 0


def test_a_class_can_be_added_at_run_time(run: Path, creatures: Path) -> None:
    dataset = erpcnet.read_dataset(creatures)
    model = erpcnet.load(run)
    picture = creatures / dataset.image_paths[dataset.test_unseen[0]]
    before = model.predict([picture])[0]
    likely = dict(before.attributes)
    # What was predicted fits best what was predicted, and its opposite worst.
    model.add_classes({"as predicted": list(likely.values()), "opposite": [-value for value in likely.values()]})
    after = model.predict([picture], ["opposite", before.name, "as predicted"])[0]
    assert (after.name, after.confidence > 0.5) == ("as predicted", True)
    assert model.predict([picture], ["opposite", before.name])[0].name == before.name
    assert model.classes.names == (*dataset.classes, "as predicted", "opposite")
    with pytest.raises(InputError, match="known already"):
        model.add_classes({"as predicted": list(likely.values())})
    with pytest.raises(InputError, match="there is no attribute 'hat'"):
        model.add_classes({"gentleman": {"hat": 1.0}})
    with pytest.raises(InputError, match="there is no class 'unicorn'"):
        model.predict([picture], ["unicorn"])


def test_predict_prints_and_draws(
    run: Path, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(creatures / "images/00a/000.png")
    words = ["predict", str(run), picture, "--json", "--crops", "2", "--picture", str(tmp_path / "where.png")]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told[0]["image"] == picture
    assert told[0]["localities"]
    for locality in told[0]["localities"]:
        left, upper, right, lower = locality["box"]
        assert 0 <= left < right <= 64
        assert 0 <= upper < lower <= 64
    with Image.open(tmp_path / "where.png") as drawn:
        assert drawn.width > 100


def test_predict_takes_folders_and_writes_as_it_goes(
    run: Path, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(creatures / "images/00a", folder / "deep")
    names = sorted(path.name for path in (folder / "deep").iterdir())
    (folder / "deep" / names[0]).write_bytes(b"no picture")
    model = erpcnet.load(run)
    expected = model.predict([folder / "deep" / name for name in names[1:]])
    out = tmp_path / "found.csv"
    assert main(["predict", str(run), str(folder), "--out", str(out), "--top", "3"]) == 1  # one is broken
    said = capsys.readouterr()
    assert f"{names[0]} does not decode" in said.err
    assert f"{len(names) - 1} pictures, among all {len(model.classes.names)} classes" in said.out
    rows = list(csv.DictReader(out.open()))
    assert [Path(row["image"]).name for row in rows] == names[1:]
    for row, own in zip(rows, expected, strict=True):
        assert row["class"] == own.name == own.top[0][0]
        assert float(row["confidence"]) == pytest.approx(own.confidence, abs=1e-3)
        assert (row["class_2"], row["class_3"]) == (own.top[1][0], own.top[2][0])
        assert own.confidence == pytest.approx(own.top[0][1])
        assert [chance for _, chance in own.top] == sorted((chance for _, chance in own.top), reverse=True)
        assert repr(own).startswith(f"<Prediction {own.name} ")
    pattern, lines = str(folder / "deep" / "*.png"), tmp_path / "found.jsonl"
    assert main(["predict", str(run), pattern, "--out", str(lines), "--classes", "unseen"]) == 1
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [Path(one["image"]).name for one in told] == names[1:]
    assert {one["among"] for one in told} == {int((~model.classes.seen).sum())}
    assert main(["predict", str(run), str(folder / "deep" / names[0])]) == 2
    capsys.readouterr()
    for words, problem in {
        (str(folder), "--out", str(out)): "is there already",
        (str(folder), "--out", "found.txt"): "must be .csv or .jsonl",
        (str(tmp_path / "*.gif"),): "no file matches",
    }.items():
        assert main(["predict", str(run), *words]) == 2
        assert problem in capsys.readouterr().err
    assert main(["predict", str(run), str(run), "--json"]) == 0  # a folder that holds one picture
    assert [Path(one["image"]).name for one in json.loads(capsys.readouterr().out)] == ["localities.png"]


def _class_of(creatures: Path, folder: str) -> str:
    """The name of the class whose images a folder holds."""
    lines = (creatures / "splits.csv").read_text().splitlines()
    return next(line.split(",")[1] for line in lines if line.startswith(f"images/{folder}/"))


def _broken(creatures: Path, tmp_path: Path, how: str) -> Path:
    root = tmp_path / how
    shutil.copytree(creatures, root, ignore=shutil.ignore_patterns(".erpcnet-cache"))
    if how == "no-attributes":
        text, taken = (root / "attributes.csv").read_text().splitlines(keepends=True), _class_of(creatures, "03a")
        (root / "attributes.csv").write_text("".join(line for line in text if not line.startswith(taken)))
    if how == "undecodable":
        (root / "images/00a/000.png").write_bytes(b"\x89PNG and nothing more")
    return root


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "NOWHERE"], "is not a folder"),
        (["--dataset", "no-attributes"], "' has no row in"),
        (["--dataset", "undecodable"], "images/00a/000.png does not decode"),
        (["--dataset", "GOOD", "--config", "creature"], "there is no preset 'creature', perhaps 'creatures'"),
        (["--dataset", "GOOD", "--config", "mine.yaml"], "mine.yaml is not there"),
        (["--dataset", "GOOD", "--model.steps", "17"], "the grid has only 16 cells"),
        (
            ["--dataset", "GOOD", "--model.backbone.name", "timm/mixer_s32_224", "--model.backbone.weights", "none"],
            "'timm/mixer_s32_224' gives no feature map",
        ),
        (["--dataset", "GOOD", "--model.sgima", "0.7"], "--model.sgima"),
        (["--dataset", "GOOD", "--model.sigma", "high"], "model.sigma"),
        (["--dataset", "GOOD", "--variant", "ercpnet"], "variant"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(
    words: list[str], message: str, creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"GOOD": str(creatures), "NOWHERE": str(tmp_path / "nowhere")}
    for how in ("no-attributes", "undecodable"):
        if how in words:
            places[how] = str(_broken(creatures, tmp_path, how))
    words = [places.get(word, word) for word in words]
    config = [] if "--config" in words else ["--config", "creatures"]
    assert main(["train", *config, "--out", str(tmp_path / "out"), *QUICK, *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("erpcnet: ")
    assert message in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "invalid choice: 'fly'"),
        (["evaluate", "nowhere"], "nowhere/model.safetensors is not there"),
        (["predict", "nowhere", "a.png"], "nowhere/model.safetensors is not there"),
        (["data", "make", "unicorns", "x"], "name is 'unicorns'; it must be one of 'creatures'"),
        (["data", "check", "nowhere"], "nowhere is not a folder"),
        (["train", "--dataset"], "expected one argument"),
        (["train", "--data", "photos"], "the folder of the dataset is --dataset DIR"),
        (["evaluate", "run", "--data=photos"], "the folder of the dataset is --dataset DIR"),
        (["evaluate"], "required"),
        (["predict", "run", "a.png", "--crops", "3"], "crops is '3'; it must be one of 1, 2, 4"),
    ],
)
def test_other_commands_complain_in_the_same_way(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("erpcnet: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_run_is_not_overwritten(run: Path, creatures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "creatures", "--dataset", str(creatures), "--out", str(run), *QUICK]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_data_check_reports_counts_and_problems(
    creatures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", str(creatures), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert (facts["train"], facts["test_seen"], facts["test_unseen"]) == (36, 24, 20)
    assert main(["data", "check", str(_broken(creatures, tmp_path, "undecodable"))]) == 1
    assert "000.png does not decode" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_is_a_whole_configuration(name: str) -> None:
    config = load_config(name)
    assert load_config_text(config.to_yaml()) == config


def load_config_text(text: str) -> erpcnet.Config:
    return load_config(None, **yaml.safe_load(text))


def test_the_papers_numbers_stand_in_its_presets() -> None:
    table = {
        "sun": (6, 0.7, 0.2, 0.0),
        "cub": (6, 0.5, 0.8, 0.5),
        "apy": (6, 1.1, 0.5, 0.5),
        "awa2": (10, 0.5, 0.5, 0.0),
    }
    for name, numbers in table.items():
        model = load_config(f"{name}-paper").model
        assert (model.steps, model.sigma, model.delta, model.dropout) == numbers
        assert (model.backbone.name, model.joint.kind, model.compatibility) == (
            "resnet101",
            "concatenation",
            "dot",
        )
    paper = load_config("cub-paper")
    assert (paper.stage1.lr, paper.stage1.weight_decay, paper.stage1.step_epochs) == (1e-3, 1e-5, 30)
    assert (paper.stage2.lr, paper.stage2.gamma, paper.stage2.clip_coef) == (3e-4, 0.99, 0.2)


def test_a_yaml_file_extends_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: cub-paper\nmodel: {steps: 4}\n")
    config = load_config(tmp_path / "mine.yaml")
    assert (config.model.steps, config.model.sigma) == (4, 0.5)
    (tmp_path / "mine.yaml").write_text("model: {stesp: 4}\n")
    with pytest.raises(InputError, match="stesp"):
        load_config(tmp_path / "mine.yaml")


def test_own_photographs_from_class_folders_to_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The README's four commands on 30 images in 5 class folders."""
    colours = {
        "crow": (20, 20, 25),
        "fox": (200, 90, 30),
        "frog": (40, 160, 60),
        "swan": (240, 240, 240),
        "seal": (90, 95, 110),
    }
    for number, (name, colour) in enumerate(colours.items()):
        (tmp_path / name).mkdir()
        for image in range(6):
            shade = tuple(abs(value - 3 * image) for value in colour)  # no two pictures are the same
            Image.new("RGB", (90 + 10 * number, 80), shade).save(tmp_path / name / f"{image}.jpg")
    assert main(["data", "init", str(tmp_path)]) == 0
    table = [
        "class,dark,red,green",
        "crow,1,0.1,0.1",
        "fox,0.3,1,0.2",
        "frog,0.4,0.1,1",
        "seal,0.6,0.2,0.2",
        "swan,0,0.9,0.9",
    ]
    (tmp_path / "attributes.csv").write_text("\n".join(table) + "\n")
    splits = (tmp_path / "splits.csv").read_text().replace("seal,seen", "seal,unseen")
    (tmp_path / "splits.csv").write_text(splits)
    assert main(["data", "check", str(tmp_path)]) == 0
    run = tmp_path / "run"
    small = [
        "--model.backbone.name",
        "small",
        "--model.backbone.weights",
        "default",
        "--data.image_size",
        "64",
        "--stage1.epochs",
        "2",
        "--stage2.epochs",
        "2",
    ]
    assert main(["train", "--dataset", str(tmp_path), "--out", str(run), *small]) == 0
    assert main(["evaluate", str(run)]) == 0
    capsys.readouterr()
    pictures = [str(tmp_path / name / "0.jpg") for name in colours]
    assert main(["predict", str(run), *pictures, "--classes", "all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = erpcnet.load(run).predict(pictures, "all")
    assert [(one["image"], one["name"]) for one in told] == [
        (picture, one.name) for picture, one in zip(pictures, expected, strict=True)
    ]
    assert len({one["name"] for one in told}) > 1  # black, red, green, white and grey are not all the same


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"local": {"stride": 0}}}, r"model\.local\.stride is 0"),
        ({"model": {"local": {"kernel": 4}}}, "a kernel that keeps the size"),
        ({"model": {"sigma": -0.1}}, r"model\.sigma is -0.1"),
        ({"model": {"pooling": 0.5}}, r"model\.pooling is 0.5"),
        ({"evaluation": {"batch_size": 0}}, r"evaluation\.batch_size is 0"),
        ({"data": {"crop_share": 0.0}}, r"data\.crop_share is 0.0; it must be above 0 to 1"),
        ({"data": {"cache_size": -3}}, r"data\.cache_size is -3"),
        ({"data": {"crop_scale": [0.9, 0.1]}}, r"data\.crop_scale"),
        ({"stage1": {"epochs": 0}}, r"stage1\.epochs is 0"),
        ({"stage2": {"reward_temperature": 0.0}}, r"stage2\.reward_temperature is 0"),
        ({"model": {"sigma": float("inf")}}, r"model\.sigma is inf"),
        ({"seed": -1}, r"seed is -1; it must be from 0 to 4294967295"),
        ({"model": {"policy": {"width": 0}}}, r"model\.policy\.width is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config("creatures", **settings)


def test_a_valid_kernel_larger_than_the_window_is_refused() -> None:
    local = {"kernel_mode": "valid", "kernel": 5}
    config = load_config("creatures", data={"image_size": 64}, model={"local": local})
    with pytest.raises(InputError, match="'valid' kernel of 5 does not fit windows of 2"):
        create_network(config, 3)


def test_files_that_extend_each_other_are_named(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"extends: {two}\n")
    two.write_text(f"extends: {one}\n")
    with pytest.raises(InputError, match=r"one\.yaml extends itself, by way of"):
        load_config(one)


def test_what_is_no_model_is_named(tmp_path: Path, run: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(InputError, match=r"model\.safetensors is damaged, or no model of this version"):
        erpcnet.load(tmp_path)
    with pytest.raises(InputError, match=r"test_crops is 3; it must be 1, 2 or 4"):
        erpcnet.load(run, test_crops=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="candidates are 'unseen', 'all' or a list of names"):
        erpcnet.load(run).predict([Image.new("RGB", (64, 64))], "unsen")


def test_help_shows_the_values_of_the_preset_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "cub", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Passes over the training images. (default: 16)" in told
    assert "--data.image_size" in told
    assert "--model CONFIG" not in told  # flags for whole groups


def test_help_is_short_and_help_all_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {f"--{one.name}" for one in list_settings()}

    def shown(flag: str) -> set[str]:
        assert main(["train", flag]) == 0
        return set(re.findall(r"^  (--[\w.-]+)", capsys.readouterr().out, re.MULTILINE))

    short, whole = shown("--help"), shown("--help-all")
    assert short & settings == {f"--{name}" for name in USUAL}
    assert whole == short | settings
    assert {"--config", "--dataset", "--out", "--help-all"} <= short


def test_presets_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert all(name in told for name in list_presets())
    assert "Anyone's own photographs" in told
    assert all(describe_preset(name) for name in list_presets())


def test_a_narrow_terminal_cuts_no_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row: dict[str, object] = {"t1": 0.123, "ece": 0.234, "u": 0.345, "s": 0.456, "h": 0.567, "ausuc": None}
    row |= {"mean_steps": 6.0, "mean_steps_all": 5.43, "sigma": None, "delta": 9.87, "protocol": "validation"}
    for crops, hubness in ((1, 0.0), (4, 0.0), (4, 0.3)):
        tested = {"crops": crops, "hubness": hubness, "variant": "a variant of a long name"}
        print_metrics([{**row, **tested}], title="figures")
        printed = capsys.readouterr().out
        for figure in ("12.3", "23.4", "34.5", "45.6", "56.7", "6.00", "5.43", "never", "9.87"):
            assert figure in printed
        assert "long name" in " ".join(printed.split())
        assert ("crops" in printed) == (crops > 1)  # one is what everyone expects
        assert ("0.3" in printed) == (hubness > 0)


def test_a_fingerprint_says_what_was_set() -> None:
    plain = load_config("cub")
    assert load_config("cub", seed=3, variant="pcnet").fingerprint() == plain.fingerprint()
    assert load_config("cub", stage1={"epochs": plain.stage1.epochs}).fingerprint() == plain.fingerprint()
    assert load_config("cub", stage1={"epochs": 7}).fingerprint() != plain.fingerprint()
    here, there, other = (
        load_config("cub", model={"backbone": {"weights": file}}).fingerprint()
        for file in ("here/resnet.pth", "there/resnet.pth", "here/other.pth")
    )
    assert here == there != other


def test_settings_at_their_defaults_leave_no_fingerprint() -> None:
    # So one more setting, at its default, changes none.
    assert erpcnet.Config().fingerprint() == hashlib.sha256(f"defaults: {DEFAULTS}\n".encode()).hexdigest()[:8]
