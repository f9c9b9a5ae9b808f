"""`python -m trust.measure RUN DATA OUT`: the evaluation that ends a training, of stored weights.

Every process that shares the work writes OUT-RANK: the figures, a digest of the rollouts that they were read from, and
how many crops its own network looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from erpcnet.data import read_dataset
from erpcnet.data.loader import open_loader
from erpcnet.evaluation.protocol import measure
from erpcnet.evaluation.rollouts import rollout_test_images
from erpcnet.inference.model_file import read_model
from erpcnet.model.rollout import Rollout
from erpcnet.utils.processes import Share


def main() -> int:
    """Evaluate."""
    run, data, out = sys.argv[1:]
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    share, model, dataset = Share.of_process(), read_model(run), read_dataset(data)
    settings, looked = model.config, list[int]()
    loader = open_loader(dataset, settings.input_data, model.preprocessing, torch.device("cpu"), share)
    model.network.backbone.trunk.register_forward_hook(lambda _, given, __: looked.append(len(given[0])))
    rollouts = rollout_test_images(model.network, dataset, loader, settings.evaluation.batch_size, settings.seed)
    told = {
        "figures": measure(rollouts, model.point, settings.seed).to_json(),
        "rollouts": [digest(one) for one in (rollouts.seen, rollouts.unseen)],
        "looked": sum(looked),
    }
    Path(f"{out}-{share.rank}").write_text(json.dumps(told))
    if not share.alone:
        dist.barrier()  # nobody goes while another still talks to it
        dist.destroy_process_group()
    return 0


def digest(rollout: Rollout | None) -> str:
    """Of every bit of them."""
    assert rollout is not None
    total = hashlib.sha256()
    for tensor in (rollout.cells, rollout.steps, rollout.a_g, rollout.a_j, rollout.beta):
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
