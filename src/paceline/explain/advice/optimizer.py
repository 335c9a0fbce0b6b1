"""Pages of the remedies for convergence and batch size that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "batch.accumulate": """
Add up the gradients of several micro-steps before each optimizer update (gradient accumulation). A micro-step is one
forward pass and one backward pass.

## When it helps

Gradient accumulation helps if the optimizer, or communication between ranks, takes a visible share of step time. With
gradient accumulation, the optimizer and the communication run fewer times for the same number of samples.

## Safety class

The safety class is semantic, because the effective batch size grows. Choose the learning rate and the number of steps
again for the larger batch.

## How to do it

Call `(loss / n).backward()` for n batches, then `optimizer.step()` and `optimizer.zero_grad()`. With
DistributedDataParallel, run all backward passes except the last under `model.no_sync()`. With `paceline.train`, use the
option `--accumulate n`.
""",
    "loss.detect_anomaly": """
Turn on anomaly detection, so that torch reports the operation whose backward pass produced the first NaN.

## When it helps

Anomaly detection helps if the loss became NaN or infinite. Without anomaly detection, a NaN often becomes visible only
several operations after the operation that caused it.

## Safety class

The safety class is exact, because training computes the same numbers. Anomaly detection makes steps several times
slower, so use it only for the steps just before and after the first NaN.

## How to do it

Load the last checkpoint that was saved before the step that the finding names. Run the steps after the loaded
checkpoint under `torch.autograd.set_detect_anomaly(True)`.
""",
    "optimizer.clip": """
Scale the gradients down if their norm exceeds a limit (gradient clipping).

## When it helps

Gradient clipping helps if the loss jumps, diverges or becomes NaN because single batches have very large gradients.

## Safety class

The safety class is semantic, because clipping makes updates with large gradients smaller.

## How to do it

Call `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` between `backward()` and `optimizer.step()`. If the
program uses a `GradScaler`, call `scaler.unscale_(optimizer)` before clipping. With `paceline.train`, use the option
`--clip-norm 1.0`.
""",
    "optimizer.lower_lr": """
Lower the learning rate, or increase it slowly over the first steps of training (warm-up).

## When it helps

This change helps if the loss rises or becomes NaN, most often during the first few hundred steps.

## Safety class

The safety class is semantic, because training with another learning rate gives other parameters.

## How to do it

Divide the learning rate by a factor from 3 to 10. For a warm-up, create `torch.optim.lr_scheduler.LinearLR(optimizer,
start_factor=0.01, total_iters=500)`, and call `scheduler.step()` after each `optimizer.step()`.
""",
    "optimizer.schedule": """
Change the learning rate during training, usually by lowering it.

## When it helps

A learning-rate schedule helps if the loss has stopped falling before training has reached the expected loss. With a
lower learning rate, the loss often falls further.

## Safety class

The safety class is semantic, because training with another learning rate gives other parameters.

## How to do it

If the number of training steps is known, use `torch.optim.lr_scheduler.CosineAnnealingLR`. If the number of training
steps is not known, use `torch.optim.lr_scheduler.ReduceLROnPlateau`.
""",
    "run.early_stopping": """
End training when the loss has not improved for some time.

## When it helps

Early stopping helps if the loss did not improve during the last half of the run, so that the remaining steps cost time
without a benefit.

## Safety class

The safety class is semantic, because the parameters at an early end of training differ from the parameters after all
planned steps.

## How to do it

Evaluate the model on validation data at regular intervals, store the best result, and stop training after several
evaluations without an improvement. `EarlyStopping` of Lightning and `EarlyStoppingCallback` of the Hugging Face Trainer
stop training in this way.
""",
}
