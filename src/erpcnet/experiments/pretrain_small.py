"""How the weights that come with the backbone `small` were made: by naming creatures that no dataset of ours holds.

What ImageNet is to the paper's ResNet, this is to the small backbone: plain classification of whole pictures, drawn
with a seed of their own. Its classes are coarse, as ImageNet's are for birds: the families, whose siblings differ in
small parts, so that nothing is told about what distinguishes siblings.

    python -m erpcnet.experiments.pretrain_small OUT

Those in the package are of format 2 of the drawing, in which siblings' contrasts were drawn at random.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from erpcnet.config import DataSettings
from erpcnet.data import ImageLoader, open_cache, read_dataset
from erpcnet.data.creatures import CreatureSettings, draw_classes, make_creatures
from erpcnet.model.preprocessing import Preprocessing
from erpcnet.model.small_backbones import SmallResNet
from erpcnet.utils.progress import bar

SEED = 20_000
DRAWING = CreatureSettings(
    families=130,
    siblings=3,
    unseen_families=1,
    train_images=40,
    test_images=1,
    unseen_images=1,
    decoys=(0, 1),  # none
    seed=SEED,
)


def pretrain(root: Path, epochs: int = 30, batch_size: int = 128, lr: float = 6e-3) -> tuple[SmallResNet, float]:
    """Classify the pictures in `root`; returns the backbone and its accuracy on images it was not trained on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    dataset = read_dataset(root)
    settings = DataSettings(image_size=112, cache_size=128, crop_scale=(0.5, 1.0))
    loader = ImageLoader(open_cache(dataset, 128), settings, Preprocessing(crop_share=1.0), device)
    backbone = SmallResNet().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    # A class is named by the number of its family and a letter.
    families = torch.tensor([int(name[:-1]) for name in dataset.classes])
    labels = families[torch.from_numpy(dataset.labels)].to(device)
    head = nn.Linear(backbone.channels, int(families.max()) + 1).to(device)
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.02)
    total = epochs * loader.batches_per_epoch(len(dataset.train), batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=total)
    generator = torch.Generator().manual_seed(SEED)
    with bar("Pretraining", total) as advance:
        for _ in range(epochs):
            for batch in loader.epoch(dataset.train, batch_size, generator):
                logits = head(backbone(batch.images).mean(dim=(2, 3)))
                loss = F.cross_entropy(logits, labels[batch.rows.to(device)], label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                advance()
    backbone.eval()
    right = 0
    with torch.inference_mode():
        for batch in loader.centre_crops(dataset.test_seen, 256):
            answer = head(backbone(batch.images).mean(dim=(2, 3))).argmax(dim=1)
            right += int((answer == labels[batch.rows.to(device)]).sum())
    return backbone, right / len(dataset.test_seen)


def shared_classes() -> int:
    """How many classes of the embedded dataset have the same usual looks as one that was pretrained on."""
    learned = {tuple(cls.usual.items()) for cls in draw_classes(DRAWING)}
    return sum(tuple(cls.usual.items()) in learned for cls in draw_classes(CreatureSettings()))


def main(out: str) -> None:
    """Draw, train, save in half precision."""
    with TemporaryDirectory() as folder:
        root = make_creatures(Path(folder) / "creatures", DRAWING)
        backbone, accuracy = pretrain(root)
    state = {key: value.half().cpu().contiguous() for key, value in backbone.state_dict().items()}
    save_file(state, out)
    print(f"{accuracy:.1%} of held-out pictures right; {shared_classes()} classes shared with the embedded dataset")


if __name__ == "__main__":
    main(sys.argv[1])
