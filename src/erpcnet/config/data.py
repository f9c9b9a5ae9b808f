"""Settings of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from erpcnet.config.ranges import Settings, ranged
from erpcnet.errors import InputError

TestCrops = Literal[1, 2, 4]


@dataclass
class DataSettings(Settings):
    """How images are cropped and resized."""

    image_size: int = ranged(224, 32, 4096)
    """Side of the network's input; 224 in the paper."""
    cache_size: int | None = ranged(None, 1, 8192)
    """Side at which images are kept; unset: a seventh more than the input."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Share of an image's area that a random crop for training covers; from 0.08 to 1 as is usual on ImageNet, and
    from 0.25 no better on CUB's validation classes."""
    flip: float = ranged(0.5, 0, 1)
    """How often a random crop is mirrored: half of the time, as is usual on ImageNet."""
    crop_share: float | None = ranged(None, 0, 1, above_low=True)
    """Share of the short side that the centre crop at test covers; unset: what the backbone's weights were tested
    with."""
    test_crops: TestCrops = 1
    """Test-time augmentation: crops of an image whose logits are averaged. 2 are the centre crop and an object crop of
    what the network finds in it, 4 both of these and their mirror images. Each costs as much as the first, and the
    finding a glance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.test_crops) is not int or self.test_crops not in get_args(TestCrops):
            raise InputError(f"data.test_crops is {self.test_crops}; it must be 1, 2 or 4.")
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise InputError(f"data.crop_scale is {self.crop_scale}; it must be two shares, 0 < LOW <= HIGH <= 1.")

    @classmethod
    def _prefix(cls) -> str:
        return "data."

    @property
    def stored_size(self) -> int:
        """Side at which images are kept."""
        return self.cache_size or round(self.image_size * 8 / 7)
