"""batch.size: more samples in each step."""

from __future__ import annotations

from paceline.improve.remedies import Remedy

PAGE = """
`tune --allow semantic` measures larger batches when no other remedy is left to try. It doubles the batch size and runs
each size for two seconds. It stops when memory is full (on a CPU: when half of the free memory is used) or when two
doublings in a row do not increase the samples per second.

For each size, the result shows the seconds per step, the samples per second, the memory, and how much a step reduces
the loss. The last value is computed from the gradient noise scale, a batch size that `tune` measures in this program.
For batches far below this scale, doubling the batch halves the number of steps to the same loss. Far above it, doubling
the batch does not reduce the number of steps.

`tune` then makes a trial with the size that should reach the same loss first. The report names this size, the largest
size that ran, and the size with the most samples per second.

## Safety class

Semantic: a larger batch is another training algorithm. `--verify-quality` trains to the same loss with three random
seeds. In addition, check the quality on validation data yourself.

## What it sets

`loader.batch_size` and `optimizer.lr_factor`. For SGD, the learning rate grows in proportion to the batch size. For
Adam and similar optimizers, it grows with the square root of the batch size.

## How it is confirmed

Confirmed when a loader that shuffles is created with this batch size, and the learning rate of an optimizer is
multiplied by the factor.

## In the source

Write `DataLoader(..., batch_size=...)`, and multiply `lr` by the factor.
"""

# The module `batch_study` measures batch sizes and proposes one.
REMEDY = Remedy(id="batch.size", page=PAGE, candidates=lambda _: [])
