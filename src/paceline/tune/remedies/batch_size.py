"""batch.size: more samples in each step."""

from __future__ import annotations

from paceline.tune.remedies import TunableRemedy

PAGE = """
`tune --allow semantic` measures larger batch sizes after it has tried all other remedies. `tune` doubles the batch size
repeatedly and runs each size for two seconds. The measurement ends when memory is full (on a CPU: when half of the free
memory is used), or when two doublings in a row do not increase the samples per second.

For each batch size, the result shows the seconds per step, the samples per second, the memory, and how much one step
reduces the loss. `tune` computes the loss reduction from the gradient noise scale, which it measures in this program.
The gradient noise scale is a batch size. For batches far below the gradient noise scale, doubling the batch size halves
the number of steps to the same loss. For batches far above the gradient noise scale, doubling the batch size does not
reduce the number of steps.

`tune` then makes a trial with the batch size that is expected to reach the same loss in the least time. The report
names the batch size of the trial, the largest batch size that ran, and the batch size with the most samples per second.

## Safety class

The safety class is semantic, because training with a larger batch is another training algorithm. With
`--verify-quality`, `tune` trains to the same loss with three random seeds, with and without the change. Also check the
quality of the trained model on validation data yourself.

## What it sets

This remedy sets `loader.batch_size` and `optimizer.lr_factor`. For SGD, `tune` multiplies the learning rate by the same
factor as the batch size. For Adam and similar optimizers, `tune` multiplies the learning rate by the square root of the
factor by which the batch size grows.

## How it is confirmed

Paceline records these settings as applied when the program creates a loader that shuffles with this batch size, and
when the learning rate of an optimizer is multiplied by the factor.

## In the source

Write `DataLoader(..., batch_size=...)`, and multiply `lr` by the factor `optimizer.lr_factor` of the recipe.
"""

# `tune.search.batch_size` measures batch sizes and proposes one, after all other candidates.
REMEDY = TunableRemedy(id="batch.size", page=PAGE, candidates=lambda _: [])
