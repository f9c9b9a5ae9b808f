"""Using a trained network: prediction on pictures, new classes, explanation, export, a page to try it on."""

from erpcnet.inference.class_table import ClassTable
from erpcnet.inference.classifier import ZeroShotClassifier
from erpcnet.inference.engine import Engine, Execution
from erpcnet.inference.loading import load
from erpcnet.inference.prediction import Locality, Prediction

__all__ = ["ClassTable", "Engine", "Execution", "Locality", "Prediction", "ZeroShotClassifier", "load"]
