"""MosaicML Streaming (its fork that is kept up, streaming-community): MDS shards, torch's DataLoader around it."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
from _peer import BATCH, crop, main, pictures


def unneeded(name, *parts):
    """Stand in for a package that is imported for classes nobody here asks for, where it does not import itself."""
    module = sys.modules[name] = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    for part in parts:
        setattr(module, part, type(part, (), {}))


try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):  # with a torch for CPUs alone
    unneeded("torchvision")
    unneeded("torchvision.datasets", "VisionDataset")
    unneeded("torchvision.transforms")
    unneeded("torchvision.transforms.functional", "to_tensor")
from streaming import MDSWriter, StreamingDataset  # noqa: E402  (after what stands in)


class Pictures(StreamingDataset):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        return torch.from_numpy(crop(item["image"])), item["label"]


def prepare(source, dest):
    with MDSWriter(out=str(dest), columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in pictures(source):
            writer.write({"image": path.read_bytes(), "label": label})


def batches(dest, workers):
    torch.set_num_threads(1)
    dataset = Pictures(local=str(dest), shuffle=True, batch_size=BATCH)
    return torch.utils.data.DataLoader(dataset, BATCH, num_workers=workers, drop_last=True)


if __name__ == "__main__":
    main(prepare, batches)
