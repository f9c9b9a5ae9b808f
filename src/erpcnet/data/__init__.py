"""Zero-shot datasets: one description, one reader per source, one loader."""

from typing import TYPE_CHECKING

from erpcnet.utils.lazy import lazy_attributes

if TYPE_CHECKING:
    from erpcnet.data.cache import ImageCache, open_cache
    from erpcnet.data.dataset import Fold, ZeroShotDataset
    from erpcnet.data.loader import Batch, ImageLoader
    from erpcnet.data.readers import read_dataset

__all__ = ["Batch", "Fold", "ImageCache", "ImageLoader", "ZeroShotDataset", "open_cache", "read_dataset"]

# On first use, so that reading and checking a dataset does not wait for torch.
__getattr__ = lazy_attributes(
    __name__,
    {
        "cache": ("ImageCache", "open_cache"),
        "dataset": ("Fold", "ZeroShotDataset"),
        "loader": ("Batch", "ImageLoader"),
        "readers": ("read_dataset",),
    },
)
