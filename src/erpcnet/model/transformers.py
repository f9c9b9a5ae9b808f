"""Vision transformers in two: their tokens as a map, and their last block on it or on a window of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.model.chain import Chain


def transformer_parts(network: Any) -> tuple[TransformerTrunk, TransformerLast, int, int, int]:
    """Trunk, last, channels, the side of a patch, and of the images that the positions are for."""
    if hasattr(network, "conv_proj"):  # torchvision's
        blocks, channels, stride = list(network.encoder.layers), network.hidden_dim, network.patch_size
        positions, patches, norm = network.encoder.pos_embedding, network.conv_proj, network.encoder.ln
        return (
            TransformerTrunk(patches, [network.class_token], positions, blocks[:-1]),
            TransformerLast(blocks[-1], norm),
            channels,
            stride,
            network.image_size,
        )
    blocks, channels = list(network.blocks), network.embed_dim  # timm's
    patches, stride = network.patch_embed.proj, network.patch_embed.proj.kernel_size[0]
    tokens = [token for token in (network.cls_token, network.reg_token) if token is not None]
    trunk = TransformerTrunk(
        patches, tokens, network.pos_embed, blocks[:-1], network.norm_pre, placed=not network.no_embed_class
    )
    return trunk, TransformerLast(blocks[-1], network.norm), channels, stride, network.patch_embed.img_size[0]


class TransformerTrunk(nn.Module):
    """Patches, their positions and all blocks but the last: images [N, 3, H, W] to a map [N, C, H', W'].

    Class token and registers, if there are any, take part, and are left out of the map. Positions are interpolated
    where the image has another size than the pretrained one.

    Args:
        patches: Images to a map of patches.
        tokens: What goes before the patches: the class token [1, 1, C], registers [1, R, C].
        positions: [1, tokens and places, C], or of the places alone.
        blocks: All but the last.
        before: What comes before the blocks.
        placed: Whether tokens have positions too.
    """

    def __init__(
        self,
        patches: nn.Module,
        tokens: list[nn.Parameter],
        positions: nn.Parameter,
        blocks: list[nn.Module],
        before: nn.Module | None = None,
        placed: bool = True,
    ) -> None:
        super().__init__()
        self.patches, self.positions = patches, positions
        self.token = tokens[0] if tokens else None
        self.registers = tokens[1] if len(tokens) > 1 else None
        self.before = before if before is not None else nn.Identity()
        self.blocks = Chain(*blocks)
        self.count = sum(token.shape[1] for token in tokens)
        self.placed = self.count if placed else 0

    def forward(self, images: Tensor) -> Tensor:
        feature_map = self.patches(images)
        side = feature_map.shape[-2:]
        return self._through(feature_map)[:, self.count :].transpose(1, 2).unflatten(2, side).contiguous()

    def tokens(self, images: Tensor) -> Tensor:
        """Those of the map, behind all that it leaves out: [N, tokens and places, C]."""
        return self._through(self.patches(images))

    def _through(self, feature_map: Tensor) -> Tensor:
        places = (feature_map + self._positions(feature_map.shape[-2:])).flatten(2).transpose(1, 2)
        before: list[Tensor] = [token for token in (self.token, self.registers) if token is not None]
        if before:
            first = torch.cat(before, dim=1)
            if self.placed:
                first = first + self.positions[:, : self.placed]
            places = torch.cat([first.expand(feature_map.shape[0], -1, -1), places], dim=1)
        return self.blocks(self.before(places))

    def _positions(self, side: torch.Size) -> Tensor:
        """[1, C, H', W']."""
        known = self.positions[:, self.placed :].transpose(1, 2)
        length = round(known.shape[2] ** 0.5)
        square = known.unflatten(2, (length, length))
        return square if square.shape[-2:] == side else F.interpolate(square, tuple(side), mode="bicubic")


class TransformerLast(nn.Module):
    """The last block and the norm behind it, on the places of a map or of a window of it, without the class token."""

    def __init__(self, block: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.block, self.norm = block, norm

    def forward(self, feature_map: Tensor) -> Tensor:
        tokens = feature_map.flatten(2).transpose(1, 2)
        return self.norm(self.block(tokens)).transpose(1, 2).unflatten(2, feature_map.shape[-2:]).contiguous()
