"""The network: plain torch, no files, no loops over data."""

from erpcnet.model.backbone import SplitBackbone, create_backbone, list_backbones
from erpcnet.model.grid import Grid, entropy_ratios
from erpcnet.model.network import Classes, ERPCNet
from erpcnet.model.settings import ModelSettings, Variant

__all__ = [
    "Classes",
    "ERPCNet",
    "Grid",
    "ModelSettings",
    "SplitBackbone",
    "Variant",
    "create_backbone",
    "entropy_ratios",
    "list_backbones",
]
