"""Pages of the remedies for checkpoints, evaluation, start-up and host code that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "checkpoint.async": """
Copy the training state to host memory, and write the checkpoint to disk while training continues.

## When it helps

This change helps if training stops for a visible share of the time while the program saves checkpoints.

## Safety class

The safety class is exact, because the checkpoint contains the same values.

## How to do it

Call `torch.distributed.checkpoint.async_save(state, checkpoint_id=folder)`, which returns a future. Before the program
saves the next checkpoint, it must wait for the future of the previous checkpoint. The host needs enough memory for one
copy of the training state. A program with `paceline.train.Engine` calls `engine.save(folder, wait=False)` instead.
""",
    "checkpoint.less_often": """
Save checkpoints at longer intervals.

## When it helps

This change helps if the program saves a checkpoint after every few steps, and saving takes a visible share of the time.

## Safety class

The safety class is exact, because training computes the same numbers. If the program crashes, more training steps are
lost.

## How to do it

Save a checkpoint after a fixed time, for example every 15 minutes, instead of after a fixed number of steps. The best
interval between checkpoints is given by Young's formula: `sqrt(2 * save time * time between failures)`. For example, if
saving a checkpoint takes 10 s and the job fails once a day, the best interval is about 20 minutes.
""",
    "evaluation.faster": """
Run the evaluation with larger batches, without autograd, and with a loader that has workers.

## When it helps

This change helps if evaluation takes a large share of the run, and if it uses the same batch size and autograd mode as
training.

## Safety class

The safety class is numeric, because the evaluation adds numbers in another order if its batches are larger. The
training itself does not change.

## How to do it

Call `model.eval()` and run the evaluation under `torch.inference_mode()`. Evaluation needs no memory for gradients, so
use batches that are two to four times as large as in training. Give the `DataLoader` of the evaluation several workers
and `persistent_workers=True`.
""",
    "evaluation.less_often": """
Evaluate at longer intervals, or on a fixed part of the validation data.

## When it helps

This change helps if evaluation takes a large share of the run.

## Safety class

The safety class is exact, because training computes the same numbers. The validation curve has fewer points. If
training depends on the evaluation (early stopping, `ReduceLROnPlateau`), the change is not exact.

## How to do it

Evaluate every n-th epoch, or every n steps on a fixed random subset of the validation data. At the end of training,
evaluate on all validation data.
""",
    "host.gc": """
Run Python's garbage collector at chosen times between steps, not whenever Python starts it automatically.

## When it helps

This change helps if some steps are much slower than the others, and the program has so many Python objects that a full
garbage collection takes several milliseconds.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

After the setup and before the training loop, call `gc.collect()`, `gc.freeze()` and `gc.disable()`. In the training
loop, call `gc.collect()` every few hundred steps. If there are several ranks, collect garbage in the same step on all
ranks.
""",
    "host.less_often": """
Run slow Python code, such as logging, only every n-th step.

## When it helps

This change helps if logging, metrics, plots or progress bars take a visible share of step time. The finding names the
slow function and the line that calls it.

## Safety class

The safety class is exact if the code only reads, as logging does: training computes the same numbers, and the log has
fewer entries. It is semantic if training uses what the code computes, such as an average of the weights. Paceline
cannot tell the two apart from outside, so the finding says semantic.

## How to do it

    if step % 50 == 0:
        log(metrics)

If the edit is certainly safe, `paceline tune --diff` shows it for the line that runs the slow code.
""",
    "memory.detach": """
Store numbers or detached tensors instead of tensors with their autograd graph.

## When it helps

This change helps if memory use grows with each step because a list or a running sum contains losses. Each of these loss
tensors keeps all activations of its step in memory.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

Write `losses.append(loss.detach())` instead of `losses.append(loss)`, and `total += loss.detach()` instead of `total +=
loss`. `loss.item()` also frees the activations, but it waits for the GPU.
""",
    "run.bound_state": """
Limit the size of lists, caches and histories that grow during training.

## When it helps

This change helps if memory use grows, or if steps become slower, because a data structure or a file grows with each
step. Examples are a list that the program processes in every step, a cache without a size limit, a hook that stores
activations, and a log file that the program rewrites completely in each step.

## Safety class

The safety class is exact if training does not depend on the entries that are dropped.

## How to do it

Use `collections.deque(maxlen=1000)` for histories and `functools.lru_cache(maxsize=...)` for caches. Append to log
files instead of rewriting them. Remove hooks that are no longer needed.
""",
    "startup.cache": """
Store the results of startup work on disk, and load them from disk in the next run.

## When it helps

This change helps if a run spends a large part of its time before the first training step, for example on listing files,
building an index or tokenizing. Each restart of the program repeats the startup work.

## Safety class

The safety class is exact if the program rebuilds the cache when the input of the cache changes. To detect a changed
input, include a hash of the input in the file name of the cache.

## How to do it

Save the index with `numpy.save`, store the tokens in a binary file, or use `datasets.load_dataset`, which caches its
result. For `torch.compile`, set `TORCHINDUCTOR_CACHE_DIR` to a folder that is kept between runs.
""",
    "startup.lazy": """
Do startup work only when its result is needed, or move it to the loader workers.

## When it helps

This change helps if a run spends a large part of its time before the first training step on work that the first steps
do not need.

## Safety class

The safety class is exact, because the program does the same work, only later.

## How to do it

Open files and load tables during the first call of `Dataset.__getitem__`, so that the loader workers open and load them
in parallel. Load the evaluation data just before the first evaluation, not at the start of the program.
""",
}
