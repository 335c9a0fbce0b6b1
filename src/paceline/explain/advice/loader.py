"""Pages of the remedies for data loading that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "loader.background": """
A thread or a process makes the next batch while the model trains on the current one.

## When it helps

The program reads its data without a `DataLoader`, and the training thread waits for this code. A background thread is
enough if the code spends its time in file reads, NumPy or an image decoder, because these release Python's global
interpreter lock (GIL). Code that runs mostly in Python needs a background process.

## Safety class

Exact if the reading code draws no random numbers. Otherwise, give this code its own random generator, so that the model
still draws the same random numbers.

## How to do it

Move the reading code into a `torch.utils.data.IterableDataset` and read it with `DataLoader(dataset, batch_size=None,
num_workers=1)`. Without a `DataLoader`, start a thread that puts batches into a `queue.Queue(maxsize=2)`, and call
`queue.get()` in the training loop.
""",
    "loader.batch_transform": """
The transforms run on a whole batch instead of on each sample, on the CPU or on the GPU.

## When it helps

The workers use all cores and spend a large part of their time on transforms such as normalizing, flipping or cropping
tensors. One operation on a batch of 64 samples costs far less than 64 operations on one sample each.

## Safety class

Numeric: the same operations round differently on another device. Random transforms also use different random numbers.

## How to do it

Return plain `uint8` samples from the dataset. Apply `torchvision.transforms.v2` to the batch in the training loop,
after `batch.to(device, non_blocking=True)`.
""",
    "loader.collate": """
The collate function builds a batch with few Python operations per sample.

## When it helps

Collating takes longer than making the samples. The usual causes are loops over the elements of a sample, conversions
from NumPy to tensors for each sample, and padding in Python.

## Safety class

Exact if the new function returns the same batch.

## How to do it

Convert samples to tensors in the dataset, so that the collate function only has to call `torch.stack`. For samples of
different lengths, allocate one tensor for the batch and copy each sample into its row.
`torch.nn.utils.rnn.pad_sequence` does this for sequences.
""",
    "loader.decode": """
The program does less work to make each sample.

## When it helps

Training waits for data, and one function takes most of the time in which batches are made. The finding names this
function.

## Safety class

Numeric: another decoder or another way to resize gives slightly different values.

## How to do it

- Decode images with a faster library, such as `torchvision.io` or `simplejpeg`.
- Decode JPEG images directly at a reduced size if the program resizes them anyway.
- Store the data in the size and format that training needs, so that a step does not repeat the conversion.
- Replace Python loops in the transform by NumPy or torch operations.
""",
    "loader.in_order": """
The loader returns the batch that is ready first, even if an earlier batch is still being made.

## When it helps

A few batches take far longer than the rest, and a longer prefetch queue does not hide them.

## Safety class

Semantic: the order of the samples changes from run to run.

## How to do it

Use `DataLoader(..., in_order=False)` with at least two workers (torch 2.6 or later).
""",
    "loader.local_copy": """
The data is copied to a disk of the training machine before training starts.

## When it helps

The workers wait for a network file system or an object store, and the data fits on a local disk. The time for the copy
is recovered after a few epochs, or earlier if several runs use the copy.

## Safety class

Exact: the program reads the same bytes.

## How to do it

Copy the folder at the start of the job (`rsync -a SOURCE /local/scratch/`) and pass the new path to the program.
`paceline data convert SRC DEST` copies the data and packs it into shards at the same time.
""",
    "loader.max_sample_size": """
Samples that take far longer than the others are shortened, split or left out.

## When it helps

A few batches take far longer than the rest because they contain a very long text, a very large image or a corrupt file.

## Safety class

Semantic: the model is trained on different samples.

## How to do it

Measure the time or the size of each sample once. Truncate or split the largest ones, or store large images in a smaller
size. If the samples must not change, distribute the large ones evenly over the batches with a `batch_sampler`.
""",
    "loader.shards": """
The samples are packed into a few large files, which the loader reads from start to end.

## When it helps

Each sample is a small file, or a small part of a large file. Opening files, seeking and network round trips take most
of the time.

## Safety class

Exact: the shards contain the same bytes. A shuffled order can differ, because `paceline.data.Loader` uses another
shuffling algorithm.

## How to do it

    paceline data convert SRC DEST

Read the result with `paceline.data.Loader` ([how](../how-to/data.md)). WebDataset, MosaicML Streaming and LitData have
similar formats.
""",
    "loader.small_dtype": """
The loader sends small data types, such as `uint8` images, and the program converts them on the device.

## When it helps

Passing batches from the workers to the training process is slow, or copies to the GPU take a visible share of a step.
An image in `uint8` needs a quarter of the bytes of the same image in `float32`.

## Safety class

Numeric: the device may round the conversion and the normalization differently.

## How to do it

Leave out `ToTensor()` and `Normalize()` in the dataset and return `uint8` tensors. In the training loop:

    batch = batch.to(device, non_blocking=True).float().div_(255)
""",
}
