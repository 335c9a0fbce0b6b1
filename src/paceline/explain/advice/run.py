"""Pages of the remedies for checkpoints, evaluation, start-up and host code that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "checkpoint.async": """
The program copies the state to host memory and writes it to disk while training continues.

## When it helps

Saving a checkpoint stops training for a visible share of the time.

## Safety class

Exact: the checkpoint contains the same values.

## How to do it

`torch.distributed.checkpoint.async_save(state, checkpoint_id=folder)` returns a future. Wait for this future before the
next save. The host needs enough memory for one copy of the state.
""",
    "checkpoint.less_often": """
The program saves a checkpoint at longer intervals.

## When it helps

The program saves after every few steps, and saving takes a visible share of the time.

## Safety class

Exact: training computes the same numbers. After a crash, more work is lost.

## How to do it

Save by time instead of by step, for example every 15 minutes. The best interval follows from Young's rule: `sqrt(2 *
save time * time between failures)`. If a save takes 10 s and the job fails once a day, it is about 20 minutes.
""",
    "evaluation.faster": """
The evaluation uses larger batches, no autograd and a loader with workers.

## When it helps

Evaluation takes a large share of the run, and it uses the same batch size and autograd mode as training.

## Safety class

Numeric: larger batches add numbers in another order. The training itself is unchanged.

## How to do it

Call `model.eval()` and run the evaluation under `torch.inference_mode()`. No memory is needed for gradients, so use
batches two to four times as large. Give the evaluation loader workers and `persistent_workers=True`.
""",
    "evaluation.less_often": """
The program evaluates at longer intervals, or on a fixed part of the validation data.

## When it helps

Evaluation takes a large share of the run.

## Safety class

Exact: training computes the same numbers. The validation curve has fewer points. If evaluation controls training (early
stopping, `ReduceLROnPlateau`), training can change.

## How to do it

Evaluate every n-th epoch, or every n steps on a fixed random subset. At the end, evaluate on all data.
""",
    "host.gc": """
Python's garbage collector runs between steps instead of at arbitrary times.

## When it helps

Some steps are much slower than the rest, and the program has many Python objects, so that a full collection takes
several milliseconds.

## Safety class

Exact: training computes the same numbers.

## How to do it

Call `gc.collect()` and `gc.freeze()` after setting up, and `gc.disable()` before the loop. Then call `gc.collect()`
every few hundred steps. If there are several ranks, collect garbage in the same step on all ranks.
""",
    "host.less_often": """
Slow code between the phases of a step runs only every n-th step.

## When it helps

Logging, metrics, plots or progress bars take a visible share of each step. The finding names the function and its line.

## Safety class

Exact: training computes the same numbers. The log has fewer entries.

## How to do it

    if step % 50 == 0:
        log(metrics)

`paceline tune --diff` shows this edit at the line if it is plainly safe.
""",
    "memory.detach": """
The program keeps numbers or detached tensors, not tensors with their autograd graph.

## When it helps

Memory grows with each step because a list or a running sum contains losses. Each of these tensors keeps all activations
of its step alive.

## Safety class

Exact: training computes the same numbers.

## How to do it

Write `losses.append(loss.detach())` instead of `losses.append(loss)`, and `total += loss.detach()` instead of
`total += loss`. `loss.item()` also works, but waits for the GPU.
""",
    "run.bound_state": """
Lists, caches and histories have an upper limit on their size.

## When it helps

Memory grows, or steps get slower, because something grows with each step: a list that the program processes in every
step, a cache without a limit, a hook that stores activations, or a log file that is rewritten each time.

## Safety class

Exact if training does not depend on the entries that are dropped.

## How to do it

Use `collections.deque(maxlen=1000)` for histories and `functools.lru_cache(maxsize=...)` for caches. Append to log
files instead of rewriting them. Remove hooks that are no longer needed.
""",
    "startup.cache": """
The program stores the results of its startup work on disk and loads them in the next run.

## When it helps

A run spends a large part of its time before the first step, for example on listing files, building an index or
tokenizing. Each restart repeats this work.

## Safety class

Exact if the cache is rebuilt when its input changes. Put a hash of the input into the file name.

## How to do it

Save the index with `numpy.save`, tokenize once into a binary file, or use `datasets.load_dataset`, which caches its
result. For `torch.compile`, set `TORCHINDUCTOR_CACHE_DIR` to a folder that is kept between runs.
""",
    "startup.lazy": """
The program does startup work when it needs the result, or in the loader workers.

## When it helps

A run spends a large part of its time before the first step on work that the first steps do not need.

## Safety class

Exact: the program does the same work, but later.

## How to do it

Open files and load tables in `Dataset.__getitem__` on the first call, so that the workers do it in parallel. Load
evaluation data before the first evaluation, not at the start.
""",
}
