"""Zero-shot datasets: one description, one reader per source, one way of feeding images."""

from erpcnet.data.cache import ImageCache, open_cache
from erpcnet.data.dataset import Fold, ZeroShotDataset
from erpcnet.data.feed import Batch, ImageFeed
from erpcnet.data.readers import read_dataset

__all__ = ["Batch", "Fold", "ImageCache", "ImageFeed", "ZeroShotDataset", "open_cache", "read_dataset"]
