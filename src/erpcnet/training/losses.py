"""The losses of Stage I."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.config.training import Stage1Settings
from erpcnet.model.network import ERPCNet, Stage1Output


class Stage1Loss(nn.Module):
    """The network together with its losses, so that several processes share one forward pass.

    Args:
        network: Is trained.
        settings: Weights of the losses, and whether the global subnet learns from L_g alone.
    """

    def __init__(self, network: ERPCNet, settings: Stage1Settings) -> None:
        super().__init__()
        self.network, self.weights, self.detach_global = network, settings.loss_weights, settings.detach_global

    def forward(self, images: Tensor, cells: Tensor | None, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """L_erpc = L_g + L_l + L_j + L_m, as `total` and one by one; L_l only where it counts.

        Args:
            images: [N, 3, H, W].
            cells: [N, T], or None for GlobalNet.
            labels: [N], rows of phi, or shares of all of them [N, S].
            phi: [S, A], the seen classes' attributes.
        """
        return self.losses(self.network(images, cells, self.detach_global), labels, phi)

    def losses(self, predicted: Stage1Output, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """The same of attributes that are predicted already."""
        network, weights = self.network, self.weights
        a_g, a_l, a_j = predicted
        losses = {"global": _cross_entropy(network.global_compatibility(a_g, phi), labels)}
        total = weights.global_subnet * losses["global"]
        if a_l is not None and a_j is not None:
            if weights.local_subnet:
                losses["local"] = _cross_entropy(network.local_compatibility(a_l, phi), labels)
                total = total + weights.local_subnet * losses["local"]
            # Inference may stop after any step, so every prefix has to predict.
            losses["joint"] = _cross_entropy(network.joint_compatibility(a_j, phi), labels)
            beside = a_g.detach() if self.detach_global else a_g
            highlight = torch.cat([beside[:, None], a_l], dim=1).amax(dim=1)
            losses["highlight"] = _cross_entropy(network.highlight_compatibility(highlight, phi), labels)
            total = total + weights.joint_subnet * losses["joint"] + weights.highlight * losses["highlight"]
        losses["total"] = total
        return losses


class HeadsLoss(Stage1Loss):
    """The same losses of a network whose embeddings are at hand."""

    def forward(self, e_g: Tensor, e_l: Tensor | None, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """As `Stage1Loss`, from e_g [N, D] and e_l [N, T, D]; None for GlobalNet."""
        return self.losses(self.network.predict_attributes(e_g, e_l), labels, phi)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of logits [N, S] or [N, T, S], averaged over steps and images."""
    if logits.dim() == 3:
        labels = labels.repeat_interleave(logits.shape[1], dim=0)
        logits = logits.flatten(0, 1)
    return F.cross_entropy(logits.float(), labels)
