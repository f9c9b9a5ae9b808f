from __future__ import annotations

import pytest
import torch

from conftest import small_network
from erpcnet.inference.recogniser import Evidence
from erpcnet.model import Classes
from erpcnet.model.walk import Walk


@torch.inference_mode()
@pytest.mark.parametrize("answer", ["union", "growing", "joint"])
def test_a_glance_that_localities_only_repeat_has_their_scores(answer: str) -> None:
    network = small_network(answer=answer)
    network.joint_fit.load_state_dict(network.global_fit.state_dict())
    said = torch.randn(4, 7)
    walk = Walk(
        cells=torch.zeros(4, 6, dtype=torch.long),
        steps=torch.full((4,), 6),
        whole=said,
        joint=said[:, None].expand(-1, 6, -1),
        beta=torch.ones(4, 6),
        localities=None,
    )
    phi = torch.nn.functional.normalize(torch.rand(5, 7), dim=1)
    evidence = Evidence.of(network, walk, Classes(phi, torch.rand(5)))
    # So one delta, which was chosen at the end of walks, is right for both.
    torch.testing.assert_close(evidence.scores[:, 0], evidence.scores[:, -1])
    torch.testing.assert_close(evidence.chances[:, 0], evidence.chances[:, -1])
