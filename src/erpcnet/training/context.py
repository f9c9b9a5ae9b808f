"""What every step of a training needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from erpcnet.config import Config
from erpcnet.data import ImageLoader, ZeroShotDataset
from erpcnet.data.loader import open_loader
from erpcnet.errors import InputError
from erpcnet.model import ERPCNet
from erpcnet.model.preprocessing import preprocessing_for
from erpcnet.training.embeddings import Embeddings
from erpcnet.utils.processes import Share
from erpcnet.utils.runtime import Runtime, default_device


@dataclass(frozen=True)
class Context:
    """The configuration, the images, and the machine.

    Attributes:
        config: Every setting.
        dataset: What is trained and tested on.
        loader: Its images.
        accelerator: Devices and processes.
        runtime: Precision, and whether CUDA graphs are used.
    """

    config: Config
    dataset: ZeroShotDataset
    loader: ImageLoader
    accelerator: Accelerator
    runtime: Runtime

    @cached_property
    def embeddings(self) -> Embeddings:
        """Those of a frozen network, computed when they are first asked for."""
        return Embeddings(self.config, self.dataset, self.loader, self.runtime)

    @property
    def device(self) -> torch.device:
        """Where training takes place."""
        return self.accelerator.device

    @property
    def share(self) -> Share:
        """Of several processes, which one this is."""
        return self.loader.share

    @property
    def cuda_graphs(self) -> bool:
        """Whether steps become CUDA graphs; several processes exchange gradients on the way, which is not captured."""
        return self.runtime.cuda_graphs and self.device.type == "cuda" and self.share.alone


def open_context(config: Config, dataset: ZeroShotDataset) -> Context:
    """Find the device (see `on_device`), and decode the images, if that was not done before."""
    device = default_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Only if it is told to use CPUs does accelerate let several processes on them know of each other.
    try:
        accelerator: Accelerator | None = Accelerator(cpu=device.type == "cpu")
    except ValueError:  # it keeps one state for a process
        accelerator = None
    if accelerator is None or accelerator.device.type != device.type:
        raise InputError(f"this process has trained on another device; start another process to train on {device}.")
    preprocessing = preprocessing_for(config.model.backbone, config.data.crop_share)
    loader = open_loader(dataset, config.input_data, preprocessing, accelerator.device, Share.of_process())
    return Context(config, dataset, loader, accelerator, Runtime.of(config.precision, config.cuda_graphs))


def create_network(config: Config, attributes: int) -> ERPCNet:
    """A new network, its weights drawn from the seed."""
    set_seed(config.seed)
    return prepare(ERPCNet(config.model, attributes, config.data.image_size, config.variant), config)


def prepare(network: ERPCNet, config: Config) -> ERPCNet:
    """As training wants it: compiled, if that is asked for, and channels last in memory."""
    if config.compile:
        network.compile_convolutions()
    return network.to(memory_format=torch.channels_last)
