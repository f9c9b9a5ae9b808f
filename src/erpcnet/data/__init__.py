"""Zero-shot datasets: one description, one reader per source, one loader."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erpcnet.data.cache import ImageCache, open_cache
    from erpcnet.data.dataset import Fold, ZeroShotDataset
    from erpcnet.data.loader import Batch, ImageLoader
    from erpcnet.data.readers import read_dataset

__all__ = ["Batch", "Fold", "ImageCache", "ImageLoader", "ZeroShotDataset", "open_cache", "read_dataset"]

_MODULES = {
    "cache": ("ImageCache", "open_cache"),
    "dataset": ("Fold", "ZeroShotDataset"),
    "loader": ("Batch", "ImageLoader"),
    "readers": ("read_dataset",),
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that reading and checking a dataset does not wait for torch."""
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"erpcnet.data.{module}"), name)
    raise AttributeError(f"module 'erpcnet.data' has no attribute '{name}'")
