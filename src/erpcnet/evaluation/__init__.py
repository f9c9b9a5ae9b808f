"""ZSL and GZSL figures under an honest protocol."""

from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy, per_image_accuracy
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.runs import evaluate_run

__all__ = [
    "Metrics",
    "evaluate_run",
    "harmonic_mean",
    "measure",
    "per_class_accuracy",
    "per_image_accuracy",
]
