"""Every setting, typed and checked; presets and YAML files. Nothing here waits for torch."""

from erpcnet.config.config import Config, load_config
from erpcnet.config.data import DataSettings, TestCrops
from erpcnet.config.evaluation import EvaluationSettings
from erpcnet.config.model import (
    WITH_POLICY,
    BackboneSettings,
    JointSettings,
    LocalSettings,
    ModelSettings,
    PolicySettings,
    Variant,
)
from erpcnet.config.presets import describe_preset, list_presets, measured_backbone, read_values
from erpcnet.config.training import LossWeights, Stage1Settings, Stage2Settings

__all__ = [
    "WITH_POLICY",
    "BackboneSettings",
    "Config",
    "DataSettings",
    "EvaluationSettings",
    "JointSettings",
    "LocalSettings",
    "LossWeights",
    "ModelSettings",
    "PolicySettings",
    "Stage1Settings",
    "Stage2Settings",
    "TestCrops",
    "Variant",
    "describe_preset",
    "list_presets",
    "load_config",
    "measured_backbone",
    "read_values",
]
