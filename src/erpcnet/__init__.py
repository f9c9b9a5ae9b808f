"""ERPCNet: zero-shot image recognition that looks where it needs to, and shows where it looked."""

from typing import TYPE_CHECKING

from erpcnet.utils.lazy import lazy_attributes

__version__ = "0.2.0"

if TYPE_CHECKING:
    from erpcnet.config import Config, load_config
    from erpcnet.data import ZeroShotDataset, read_dataset
    from erpcnet.errors import InputError
    from erpcnet.evaluation import GZSLMetrics, Metrics, evaluate_run, gzsl_metrics
    from erpcnet.inference import Locality, Prediction, ZeroShotClassifier, load
    from erpcnet.model import register_backbone, register_joint_head, register_order
    from erpcnet.training import train_run

__all__ = [
    "Config",
    "GZSLMetrics",
    "InputError",
    "Locality",
    "Metrics",
    "Prediction",
    "ZeroShotClassifier",
    "ZeroShotDataset",
    "evaluate_run",
    "gzsl_metrics",
    "load",
    "load_config",
    "read_dataset",
    "register_backbone",
    "register_joint_head",
    "register_order",
    "train_run",
]

# On first use, so that `erpcnet --help` does not wait for torch, nor `erpcnet.load` for training code.
__getattr__ = lazy_attributes(
    __name__,
    {
        "config": ("Config", "load_config"),
        "data": ("ZeroShotDataset", "read_dataset"),
        "errors": ("InputError",),
        "evaluation": ("GZSLMetrics", "Metrics", "evaluate_run", "gzsl_metrics"),
        "inference": ("Locality", "Prediction", "ZeroShotClassifier", "load"),
        "model": ("register_backbone", "register_joint_head", "register_order"),
        "training": ("train_run",),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
