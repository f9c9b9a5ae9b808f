"""The losses of Stage I."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erpcnet.model.network import ERPCNet
from erpcnet.training.settings import LossWeights


class Stage1Loss(nn.Module):
    """The network together with its losses, so that several processes share one forward pass."""

    def __init__(
        self, network: ERPCNet, weights: LossWeights, label_smoothing: float = 0.0, separate: bool = False
    ) -> None:
        super().__init__()
        self.network, self.weights, self.label_smoothing, self.separate = network, weights, label_smoothing, separate

    def forward(self, images: Tensor, cells: Tensor | None, labels: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """L_erpc = L_g + L_l + L_j + L_m, as `total` and one by one; L_l only where it counts.

        labels [N] are rows of phi [S, A], the seen classes' attributes, or shares of all of them [N, S].
        """
        network, weights = self.network, self.weights
        whole, local, joint = network(images, cells, self.separate)
        losses = {"global": self._cross_entropy(network.global_fit(whole, phi), labels)}
        total = weights.whole * losses["global"]
        if local is not None and joint is not None:
            if weights.local:
                losses["local"] = self._cross_entropy(network.local_fit(local, phi), labels)
                total = total + weights.local * losses["local"]
            # Inference may stop after any step, so every prefix has to predict.
            losses["joint"] = self._cross_entropy(network.joint_fit(joint, phi), labels)
            beside = whole.detach() if self.separate else whole
            highlight = torch.cat([beside[:, None], local], dim=1).amax(dim=1)
            losses["highlight"] = self._cross_entropy(network.highlight_fit(highlight, phi), labels)
            total = total + weights.joint * losses["joint"] + weights.highlight * losses["highlight"]
        losses["total"] = total
        return losses

    def _cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Scores [N, S] or [N, T, S], averaged over steps and images."""
        if scores.dim() == 3:
            labels = labels.repeat_interleave(scores.shape[1], dim=0)
            scores = scores.flatten(0, 1)
        return F.cross_entropy(scores.float(), labels, label_smoothing=self.label_smoothing)
