"""Two stages: the network on random localities, then the policy alone."""

from erpcnet.training.checkpoint import Checkpoint, Checkpoints
from erpcnet.training.context import Context, open_context
from erpcnet.training.episode_sources import DirectSource, TableSource, open_source, policy_table
from erpcnet.training.log import Log
from erpcnet.training.runs import train_run
from erpcnet.training.stage1 import train_stage1
from erpcnet.training.stage2 import train_stage2

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Context",
    "DirectSource",
    "Log",
    "TableSource",
    "open_context",
    "open_source",
    "policy_table",
    "train_run",
    "train_stage1",
    "train_stage2",
]
