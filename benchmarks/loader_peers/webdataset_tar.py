"""WebDataset: tars of 1,000 samples, its shuffle buffer, torch's DataLoader around it."""

import torch
import webdataset
from _peer import BATCH, crop, main, pictures


def prepare(source, dest):
    dest.mkdir()
    with webdataset.ShardWriter(str(dest / "shard-%06d.tar"), maxcount=1000) as writer:
        for number, (path, label) in enumerate(pictures(source)):
            writer.write({"__key__": f"{number:09d}", "jpg": path.read_bytes(), "cls": str(label)})


def sample(parts):
    data, label = parts
    return torch.from_numpy(crop(data)), int(label)


def batches(dest, workers):
    torch.set_num_threads(1)
    files = sorted(str(path) for path in dest.glob("*.tar"))
    made = (
        webdataset.WebDataset(files, shardshuffle=True, empty_check=False)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map(sample)
        .batched(BATCH, partial=False)
    )
    return forever(lambda: webdataset.WebLoader(made, batch_size=None, num_workers=workers))


def forever(make):
    """Its epochs end unevenly where workers have shards of their own; go on until enough is read."""
    while True:
        yield from make()


if __name__ == "__main__":
    main(prepare, batches)
