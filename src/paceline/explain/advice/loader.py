"""Pages of the remedies for data loading that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "loader.background": """
Load the next batch in a background thread or process while the model trains on the current batch.

## When it helps

This change helps if the program reads its data without a `DataLoader`, and the training thread waits for the code that
reads the data. A background thread is enough if the code that reads the data spends most of its time in file reads,
NumPy or an image decoder, because these operations release Python's global interpreter lock (GIL). Code that runs
mostly in Python needs a background process.

## Safety class

The safety class is exact if the code that reads the data draws no random numbers. If the code that reads the data draws
random numbers, give it its own random number generator, so that the model draws the same random numbers as before.

## How to do it

Move the code that reads the data into a `torch.utils.data.IterableDataset`, and load it with `DataLoader(dataset,
batch_size=None, num_workers=1)`. If you do not want a `DataLoader`, start a thread that puts batches into a
`queue.Queue(maxsize=2)`, and call `queue.get()` in the training loop.
""",
    "loader.batch_transform": """
Apply the transforms to a whole batch, on the CPU or on the GPU, instead of to each sample.

## When it helps

This change helps if the loader workers use all CPU cores and spend a large part of their time on transforms such as
normalizing, flipping or cropping tensors. One operation on a batch of 64 samples takes far less time than 64 operations
on one sample each.

## Safety class

The safety class is numeric, because the same operation can round differently on another device. Random transforms also
use different random numbers.

## How to do it

Return `uint8` samples from the dataset without transforming them. In the training loop, call `batch.to(device,
non_blocking=True)`, and then apply `torchvision.transforms.v2` to the batch.
""",
    "loader.collate": """
Write a collate function that runs only a few Python operations per sample.

## When it helps

This change helps if collating a batch takes longer than loading its samples. The usual causes are Python loops over the
elements of a sample, conversions from NumPy to tensors for each sample, and padding in Python.

## Safety class

The safety class is exact if the new collate function returns the same batch as the old one.

## How to do it

Convert samples to tensors in the dataset, so that the collate function only has to call `torch.stack`. If samples have
different lengths, allocate one tensor for the batch and copy each sample into its row. For sequences,
`torch.nn.utils.rnn.pad_sequence` pads and copies the samples.
""",
    "loader.decode": """
Make the code that loads one sample faster.

## When it helps

This change helps if training waits for data, and one function takes most of the time that the loader needs for a batch.
The finding names the slow function.

## Safety class

The safety class is numeric, because another image decoder or another resize method gives slightly different pixel
values.

## How to do it

- Decode images with a faster library, such as `torchvision.io` or `simplejpeg`.
- If the program resizes JPEG images after decoding, decode them directly at a reduced size.
- Store the data in the size and format that training needs, so that no step has to convert the data again.
- Replace Python loops in the transform with torch or NumPy operations.
""",
    "loader.in_order": """
The loader returns whichever batch is ready first, even if an earlier batch is still loading.

## When it helps

This change helps if a few batches take far longer to load than the others, and if a longer prefetch queue does not
prevent training from waiting for them.

## Safety class

The safety class is semantic, because the order of the samples changes from run to run.

## How to do it

Use `DataLoader(..., in_order=False)` with at least two workers (torch 2.6 or later).
""",
    "loader.local_copy": """
Copy the data to a local disk of the training machine before training starts.

## When it helps

A local copy helps if the loader workers wait for a network file system or an object store, and the data fits on a local
disk. The time that the copy takes is usually saved again after a few epochs, or earlier if several runs use the same
copy.

## Safety class

The safety class is exact, because the program reads the same bytes.

## How to do it

Copy the folder at the start of the job (`rsync -a SOURCE /local/scratch/`), and pass the new path to the program.
Instead of copying the files one by one, `paceline data convert SRC DEST` can write them into shards on the local disk.
""",
    "loader.max_sample_size": """
Shorten, split or leave out samples that take far longer to load than the others.

## When it helps

This change helps if a few batches take far longer than the others because they contain a very long text, a very large
image or a corrupt file.

## Safety class

The safety class is semantic, because the model is trained on different samples.

## How to do it

Measure the loading time or the size of each sample once. Truncate or split the largest samples, or store large images
in a smaller size. If the samples must not change, distribute the large samples evenly over the batches with a
`batch_sampler`.
""",
    "loader.shards": """
Pack the samples into a few large files (shards), which the loader reads from start to end.

## When it helps

Shards help if each sample is a small file or a small part of a large file, so that opening files, seeking and network
round trips take most of the loading time.

## Safety class

The safety class is exact, because the shards contain the same bytes as the original files. The shuffled order of the
samples can differ, because `paceline.data.Loader` uses another shuffling algorithm than `DataLoader`.

## How to do it

    paceline data convert SRC DEST

Read the shards with `paceline.data.Loader` ([how](../how-to/data.md)). WebDataset, MosaicML Streaming and LitData have
similar formats.
""",
    "loader.small_dtype": """
The loader returns tensors of a small data type, such as `uint8` images, and the program converts them to floating point
on the GPU.

## When it helps

This change helps if passing batches from the workers to the training process is slow, or if copies to the GPU take a
visible share of step time. An image in `uint8` needs a quarter of the bytes of the same image in `float32`.

## Safety class

The safety class is numeric, because the GPU may round the conversion and the normalization differently than the CPU.

## How to do it

Leave out `ToTensor()` and `Normalize()` in the dataset, and return `uint8` tensors. Convert the images in the training
loop:

    batch = batch.to(device, non_blocking=True).float().div_(255)
""",
    "loader.whole_batches": """
Index the tensors of a `TensorDataset` once per batch. By default, the loader indexes them once per sample, and stacks
the samples.

## When it helps

This change helps if all samples are in memory as tensors, and a step takes only a few milliseconds. Worker processes
would take longer to hand a batch over than to index it.

## Safety class

The safety class is exact: the batches are the same, in the same order.

## How to do it

Replace `DataLoader(dataset, batch_size=32, shuffle=True)` with `DataLoader(dataset,
sampler=BatchSampler(RandomSampler(dataset), 32, drop_last=False), batch_size=None)`. Without a loader, index the
tensors with `torch.randperm(len(x)).split(32)`.
""",
}
