"""The network: plain torch, no files, no loops over data."""

from erpcnet.model.backbone import create_backbone, list_backbones, register_backbone
from erpcnet.model.backbone_split import SplitBackbone
from erpcnet.model.grid import Grid, entropy_ratios
from erpcnet.model.heads import JointHead, JointState, register_joint_head
from erpcnet.model.network import Classes, ERPCNet
from erpcnet.model.rollout import Rollout, rollout
from erpcnet.model.scoring import OperatingPoint, score
from erpcnet.model.selection import SelectionOrder, register_order

__all__ = [
    "Classes",
    "ERPCNet",
    "Grid",
    "JointHead",
    "JointState",
    "OperatingPoint",
    "Rollout",
    "SelectionOrder",
    "SplitBackbone",
    "create_backbone",
    "entropy_ratios",
    "list_backbones",
    "register_backbone",
    "register_joint_head",
    "register_order",
    "rollout",
    "score",
]
