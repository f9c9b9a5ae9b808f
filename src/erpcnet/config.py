"""The whole configuration: typed dataclasses, filled from a preset or a YAML file and overridden by flags."""

from __future__ import annotations

import hashlib
from argparse import SUPPRESS
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from erpcnet.data.settings import DataSettings
from erpcnet.errors import InputError
from erpcnet.evaluation.settings import EvaluationSettings
from erpcnet.model.settings import WITH_POLICY, ModelSettings, Variant
from erpcnet.presets import merge, read_values
from erpcnet.training.settings import Stage1Settings, Stage2Settings

set_parsing_settings(docstring_parse_attribute_docstrings=True)

DEFAULTS = 2  # raise it when a default changes: the settings' fingerprints change with it
UNCOUNTED = ("seed", "variant", "checkpoint_minutes", "deterministic")


@dataclass
class Config:
    """Everything that decides a run, but the data."""

    variant: Variant = "erpcnet"
    """erpcnet, rpcnet (no entropy), pcnet (random localities), globalnet (no localities), or hardnet: patches of the
    image through a second backbone, chosen by a policy, which the paper compares with."""
    seed: int = 0
    """The same seed gives the same weights on the same CPU with the same number of threads; on a GPU they differ by
    rounding, unless `deterministic` is set."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time, on a GPU; a CPU's always do."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the convolutions on a GPU (`auto`: bf16 where it has that); heads and policy then multiply in TF32. CPUs
    compute in fp32."""
    compile: bool = False
    """Compile the convolutions with torch.compile, which takes a minute or more before the first step."""
    graphs: bool = True
    """Record the steps of training as CUDA graphs, on a GPU and in one process: small batches do not wait for launches
    then."""
    checkpoint_minutes: float = 5.0
    """How often training keeps what it needs to go on after an interruption, between epochs; 0: after each."""
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    stage1: Stage1Settings = field(default_factory=Stage1Settings)
    stage2: Stage2Settings = field(default_factory=Stage2Settings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        if not self.checkpoint_minutes >= 0:
            raise InputError(f"checkpoint_minutes is {self.checkpoint_minutes}; it must not be negative.")
        if self.variant in WITH_POLICY and self.stage2.ending != "never" and self.model.sigma is None:
            raise InputError(f"stage2.ending '{self.stage2.ending}' ends episodes at sigma; set --model.sigma too.")

    def fingerprint(self) -> str:
        """Eight characters that change with any setting but the seed, the variant, a file's folder and what changes
        no figure.

        What has its default does not count: so rows keep theirs when there are more settings than there were.
        """
        own, usual = _flat(asdict(self)), _flat(asdict(Config()))
        own["model.backbone.weights"] = Path(self.model.backbone.weights).name
        changed = {name: value for name, value in own.items() if value != usual[name] and name not in UNCOUNTED}
        told = yaml.safe_dump({"defaults": DEFAULTS, **changed}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:8]

    def to_yaml(self) -> str:
        """All settings, as a file that `--config` takes."""
        values = asdict(self)
        values["data"]["crop_scale"] = list(values["data"]["crop_scale"])
        return yaml.safe_dump(values, sort_keys=False)


def load_config(name: str | Path | None = None, **overrides: Any) -> Config:
    """A configuration from a preset's name or a YAML file; `overrides` are nested dictionaries or values."""
    values = merge(read_values(name) if name is not None else {}, overrides)
    return to_config(config_parser(), values)


def config_parser(**options: Any) -> ArgumentParser:
    """A parser with a flag for every setting."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, **options)
    parser.add_class_arguments(Config, None)
    return parser


def help_with(parser: ArgumentParser, values: dict[str, Any]) -> ArgumentParser:
    """The parser, whose help shows these values as defaults, and no flags for whole groups of settings."""
    parser.set_defaults(_flat(values))
    flags = [flag for action in parser._actions for flag in action.option_strings]
    for action in parser._actions:
        if any(other.startswith(f"{flag}.") for flag in action.option_strings for other in flags):
            action.help = SUPPRESS
    return parser


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings as `group.name: value`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return flat


def to_config(parser: ArgumentParser, values: dict[str, Any] | Namespace) -> Config:
    """Checked values to the dataclasses; what does not fit is refused by name."""
    try:
        parsed = values if isinstance(values, Namespace) else parser.parse_object(values)
        made = parser.instantiate(parsed)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"configuration: {one_line(error)}") from None
    return Config(**{name: getattr(made, name) for name in Config.__dataclass_fields__})


def one_line(error: Exception) -> str:
    """jsonargparse's messages span lines; a user reads one."""
    return " ".join(str(error).split())
