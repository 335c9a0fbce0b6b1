"""batch.size: more samples a step."""

from __future__ import annotations

from paceline.improve.remedies import Remedy

PAGE = """
Looked at with `--allow semantic`, when nothing else is left to try, and never in place of a proof: twice as many
samples again and again, for two seconds each, until memory ends (on a CPU half of what is free), or two doublings in
a row bring no more samples a second. Shown for each size are seconds a step, samples a second, memory, and the
progress of a step towards the same loss, from the gradient noise scale measured in this program: far below that
scale, twice the samples need half the steps; far above it they need as many as before. Tried as a trial is the size
that is expected at the same loss first. The page says which is the largest that ran, which is the fastest a sample,
and which is soonest.

## Safety class

Semantic: other mathematics. `--verify-quality` runs it to a loss over three seeds; generalisation is for you to
judge.

## What it sets

`loader.batch_size`, and `optimizer.lr_factor` by the rule that is shown: in proportion for SGD, with the square root
for Adam and its kin.

## How it is confirmed

A loader that shuffles was made with that size, and an optimizer had its learning rate multiplied.

## In the source

`DataLoader(..., batch_size=...)` and `lr=...` times the factor.
"""

# Nothing in a situation proposes a size: sizes are measured first (`batch_study`).
REMEDY = Remedy(id="batch.size", page=PAGE, candidates=lambda _: [])
