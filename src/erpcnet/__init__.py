"""ERPCNet: zero-shot image recognition that looks where it needs to, and shows where it looked."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from erpcnet.config import Config, load_config
    from erpcnet.data.readers import read_dataset
    from erpcnet.errors import InputError
    from erpcnet.runs import evaluate_run, load, train_run

__all__ = ["Config", "InputError", "evaluate_run", "load", "load_config", "read_dataset", "train_run"]

_HOMES = {
    "Config": "erpcnet.config",
    "InputError": "erpcnet.errors",
    "evaluate_run": "erpcnet.runs",
    "load": "erpcnet.runs",
    "load_config": "erpcnet.config",
    "read_dataset": "erpcnet.data.readers",
    "train_run": "erpcnet.runs",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `erpcnet --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'erpcnet' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
