"""The whole configuration: typed dataclasses, built from plain values. Nothing here waits for torch."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from erpcnet.config.build import build, check
from erpcnet.config.data import DataSettings
from erpcnet.config.evaluation import EvaluationSettings
from erpcnet.config.model import WITH_POLICY, ModelSettings, Variant
from erpcnet.config.presets import merge, read_values
from erpcnet.config.ranges import Settings, ranged
from erpcnet.config.training import Stage1Settings, Stage2Settings
from erpcnet.errors import InputError

DEFAULTS = 3  # raise it when a name or a default changes: the fingerprints of settings change with it
UNCOUNTED = ("seed", "variant", "checkpoint_minutes", "deterministic")

Precision = Literal["auto", "fp32", "bf16"]


@dataclass
class Config(Settings):
    """Everything that decides a run, but the data.

    The settings below, each of which says what it is, and five groups of more.

    Raises:
        InputError: A value is out of its range, or two settings contradict each other.

    Examples:
        >>> config = Config(variant="pcnet", seed=1)
        >>> Path("mine.yaml").write_text(config.to_yaml())
    """

    variant: Variant = "erpcnet"
    """erpcnet, rpcnet (no entropy), pcnet (random localities), globalnet (no localities), or hardnet: patches of the
    image through a second backbone, chosen by a policy, which the paper compares with."""
    seed: int = ranged(0, 0, 2**32 - 1)
    """The same seed gives the same weights on the same CPU with the same number of threads; on a GPU they differ by
    rounding, unless `deterministic` is set."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time, on a GPU; a CPU's always do."""
    precision: Precision = "auto"
    """Of the convolutions on a GPU (`auto`: bf16 where it has that; fp32 is cuDNN's TF32). With bf16 the policy's
    training and prediction multiply in TF32, too. CPUs compute in fp32."""
    compile: bool = False
    """Compile the convolutions with torch.compile, which takes a minute or more before the first step."""
    cuda_graphs: bool = True
    """Capture the steps of training as CUDA graphs, on a GPU and in one process: small batches do not wait for kernel
    launches then."""
    checkpoint_minutes: float = ranged(5.0, 0, 10**6)
    """How often training writes a checkpoint to resume from, between epochs; 0: after each."""
    data: DataSettings = field(default_factory=DataSettings)
    """How images are cropped and resized."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """The whole network."""
    stage1: Stage1Settings = field(default_factory=Stage1Settings)
    """Stage I: everything but the policy, on random localities, without early stop."""
    stage2: Stage2Settings = field(default_factory=Stage2Settings)
    """Stage II: the policy alone, by PPO."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """How the operating point, sigma and delta, is chosen where it is not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant in WITH_POLICY and self.stage2.stop_at_sigma and self.model.sigma is None:
            raise InputError("stage2.stop_at_sigma ends episodes at sigma; set --model.sigma too.")
        if self.stage1.freeze_backbone and self.variant == "hardnet":
            raise InputError(
                "HardNet's patches are too many for a table; stage1.freeze_backbone needs another variant."
            )

    @property
    def input_data(self) -> DataSettings:
        """The settings of what the network is fed: with zoom, of images so many times larger than the glance."""
        zoom = self.model.local.zoom
        return replace(self.data, image_size=zoom * self.data.image_size)

    def fingerprint(self) -> str:
        """Eight characters that change with any setting but the seed, the variant, a file's folder and what changes
        no figure.

        What has its default does not count: so rows keep theirs when there are more settings than there were.
        """
        own, default = flatten(asdict(self)), flatten(asdict(Config()))
        own["model.backbone.weights"] = Path(self.model.backbone.weights).name
        changed = {name: value for name, value in own.items() if value != default[name] and name not in UNCOUNTED}
        text = yaml.safe_dump({"defaults": DEFAULTS, **changed}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def to_values(self) -> dict[str, Any]:
        """All settings as plain values, which `from_values` takes."""
        values = asdict(self)
        values["data"]["crop_scale"] = list(values["data"]["crop_scale"])
        return values

    @classmethod
    def from_values(cls, values: Any) -> Config:
        """Settings from plain values, as YAML and JSON have them: names, types and ranges are checked here.

        Args:
            values: Nested dictionaries; what is left out has its default.

        Raises:
            InputError: There is no such setting, or a value does not fit it.

        Examples:
            >>> Config.from_values({"model": {"steps": 4}}).model.steps
            4
        """
        return build(cls, values)

    @classmethod
    def check_values(cls, values: Any) -> dict[str, Any]:
        """Values on top of the defaults, names and types checked, ranges not yet: more may follow."""
        return merge(cls().to_values(), check(cls, values))

    def to_yaml(self) -> str:
        """All settings, as a file that `--config` takes."""
        return yaml.safe_dump(self.to_values(), sort_keys=False)


def load_config(name: str | Path | None = None, **overrides: Any) -> Config:
    """A configuration from a preset or a YAML file.

    Args:
        name: Name of a preset (`erpcnet presets` lists them), or a file; None: the defaults.
        overrides: Settings on top, as values or nested dictionaries.

    Raises:
        InputError: There is no such preset, file or setting, or a value does not fit.

    Examples:
        >>> load_config("cub", seed=1, model={"steps": 4}).model.steps
        4
    """
    return Config.from_values(merge(read_values(name) if name is not None else {}, overrides))


def flatten(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings as `group.name: value`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return flat
