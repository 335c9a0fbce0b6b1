"""Pages of the remedies for convergence and batch size that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "batch.accumulate": """
The program adds up the gradients of several micro-steps (forward and backward passes) before the optimizer makes one
update.

## When it helps

Communication between ranks or the optimizer takes a visible share of each step. With fewer updates, both run fewer
times for the same number of samples.

## Safety class

Semantic: the effective batch is larger, so the learning rate and the number of steps have to be chosen again.

## How to do it

Call `(loss / n).backward()` for n batches, then `optimizer.step()` and `optimizer.zero_grad()`. With
DistributedDataParallel, run all but the last backward pass under `model.no_sync()`. `paceline.train` accepts
`--accumulate n`.
""",
    "loss.detect_anomaly": """
Torch reports the operation whose backward pass produced the first NaN.

## When it helps

The loss became NaN or infinite. Without this check, NaN often appears several operations after its cause.

## Safety class

Exact: training computes the same numbers. Steps become several times slower, so use the check only for the steps around
the NaN.

## How to do it

Load the last checkpoint before the step that the finding names, and run the steps from there under
`torch.autograd.set_detect_anomaly(True)`.
""",
    "optimizer.clip": """
Gradients are scaled down if their norm is larger than a limit.

## When it helps

The loss jumps, diverges or becomes NaN because single batches have very large gradients.

## Safety class

Semantic: updates with large gradients become smaller.

## How to do it

Call `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` between `backward()` and `optimizer.step()`. With a
`GradScaler`, call `scaler.unscale_(optimizer)` first. `paceline.train` accepts `--clip-norm 1.0`.
""",
    "optimizer.lower_lr": """
The learning rate is lower, or it rises slowly over the first steps (warm-up).

## When it helps

The loss rises or becomes NaN, most often in the first few hundred steps.

## Safety class

Semantic: training computes other parameters.

## How to do it

Divide the learning rate by 3 to 10. For a warm-up, use `torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01,
total_iters=500)` and call `scheduler.step()` after each `optimizer.step()`.
""",
    "optimizer.schedule": """
The learning rate changes during training, usually downwards.

## When it helps

The loss has stopped improving although it should still improve. With a lower learning rate, the loss often falls
further.

## Safety class

Semantic: training computes other parameters.

## How to do it

Use `torch.optim.lr_scheduler.CosineAnnealingLR` if the number of steps is known, or `ReduceLROnPlateau` if it is not.
""",
    "run.early_stopping": """
Training ends when the loss has not improved for some time.

## When it helps

The loss is flat over the last half of the run, so the remaining steps cost time without a benefit.

## Safety class

Semantic: training ends with other parameters than it would after all steps.

## How to do it

Evaluate on validation data at fixed intervals, remember the best value, and stop after several evaluations without an
improvement. Lightning's `EarlyStopping` and the Trainer's `EarlyStoppingCallback` do this.
""",
}
