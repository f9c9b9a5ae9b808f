"""Settings of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from erpcnet.errors import InputError

TestCrops = Literal[1, 2, 4]


@dataclass
class DataSettings:
    """How images are cropped and resized."""

    image_size: int = 224
    """Side of the network's input."""
    cache_size: int | None = None
    """Side at which images are kept; unset: a seventh more than the input."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Share of an image's area that a random crop for training covers."""
    flip: float = 0.5
    """How often a random crop is mirrored."""
    crop_share: float | None = None
    """Share of the short side that the centre crop at test covers; unset: what the backbone's weights were tested
    with."""
    test_crops: TestCrops = 1
    """Test-time augmentation: crops of an image whose logits are averaged. 2 are the centre crop and an object crop of
    what the network finds in it, 4 both of these and their mirror images. Each costs as much as the first, and the
    finding a glance."""

    def __post_init__(self) -> None:
        if self.image_size < 32:
            raise InputError(f"data.image_size is {self.image_size}; it must be at least 32.")
        if self.cache_size is not None and self.cache_size < 1:
            raise InputError(f"data.cache_size is {self.cache_size}; it must be at least 1, or unset.")
        if (self.crop_share is not None and not 0 < self.crop_share <= 1) or not 0 <= self.flip <= 1:
            raise InputError("data.crop_share must be above 0 and up to 1, and data.flip from 0 to 1.")
        if self.test_crops not in get_args(TestCrops):
            raise InputError(f"data.test_crops is {self.test_crops}; it must be 1, 2 or 4.")
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise InputError(f"data.crop_scale is {self.crop_scale}; it must be two shares, 0 < LOW <= HIGH <= 1.")

    @property
    def stored_size(self) -> int:
        """Side at which images are kept."""
        return self.cache_size or round(self.image_size * 8 / 7)
