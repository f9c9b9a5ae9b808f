"""Using a trained network: prediction on pictures, new classes, explanation."""

from erpcnet.inference.engine import Engine, Execution
from erpcnet.inference.recogniser import ClassTable, Recogniser, Recognition, Region

__all__ = ["ClassTable", "Engine", "Execution", "Recogniser", "Recognition", "Region"]
