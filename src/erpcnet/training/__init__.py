"""Two stages: the network on random localities, then the policy alone."""

from erpcnet.model.locality_tables import LocalityTable, build_table
from erpcnet.training.checkpoint import Checkpoint, Checkpoints
from erpcnet.training.log import Log
from erpcnet.training.settings import Stage1Settings, Stage2Settings
from erpcnet.training.stage1 import train_stage1
from erpcnet.training.stage2 import DirectSource, TableSource, open_source, policy_table, train_stage2

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "DirectSource",
    "LocalityTable",
    "Log",
    "Stage1Settings",
    "Stage2Settings",
    "TableSource",
    "build_table",
    "open_source",
    "policy_table",
    "train_stage1",
    "train_stage2",
]
