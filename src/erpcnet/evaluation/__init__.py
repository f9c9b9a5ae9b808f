"""ZSL and GZSL figures under an honest protocol."""

from erpcnet.evaluation.metrics import harmonic_mean, per_class_accuracy, per_image_accuracy
from erpcnet.evaluation.protocol import Metrics, measure
from erpcnet.evaluation.runs import evaluate_run
from erpcnet.evaluation.score_matrix import GZSLMetrics, gzsl_metrics

__all__ = [
    "GZSLMetrics",
    "Metrics",
    "evaluate_run",
    "gzsl_metrics",
    "harmonic_mean",
    "measure",
    "per_class_accuracy",
    "per_image_accuracy",
]
