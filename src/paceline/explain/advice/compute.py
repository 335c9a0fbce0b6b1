"""Pages of the remedies for the forward and backward pass that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "compute.batch_ops": """
One operation on a large tensor replaces a loop of operations on small tensors.

## When it helps

A step issues hundreds of small operations, and issuing them takes longer than computing them. The usual causes are
loops over time steps, attention heads, samples or experts.

## Safety class

Numeric: a batched operation adds numbers in another order.

## How to do it

Stack the inputs and use `torch.bmm`, `torch.einsum`, `torch.nn.functional.scaled_dot_product_attention` or
`torch.vmap`. Use `torch.nn.LSTM` on a whole sequence instead of `LSTMCell` in a loop.
""",
    "host.vectorize": """
Tensor operations replace Python loops over the elements of a tensor.

## When it helps

The program runs Python code between the phases of a step (such as the forward and the backward pass), for example
metrics in a loop over samples. The finding names the function.

## Safety class

Numeric: tensor operations add numbers in another order.

## How to do it

Write the loop as one expression over the tensor: `(predictions == labels).sum()` instead of a loop that compares each
pair. Keep the result on the device and read it once per epoch.
""",
    "layout.shard": """
Each rank stores a part of the parameters, gradients and optimizer state (FSDP). The ranks gather a layer's parameters
just before they use it.

## When it helps

The model and its optimizer state do not fit on one GPU together, or `paceline plan` predicts a faster step with
sharding. Sharding sends more bytes than plain data parallelism, so it needs fast links between the GPUs.

## Safety class

Numeric: the algorithm is the same, but sums over ranks are made in another order.

## How to do it

- `paceline run --layout shard=4 train.py` runs a program for one process on four ranks
  ([how](../how-to/several-gpus.md)).
- `paceline.train` accepts `layout = "shard=4"` in its recipe ([how](../how-to/train.md)).
- In your own code, call `torch.distributed.fsdp.fully_shard` on each block and on the model.

`paceline plan` compares layouts by predicted time, memory and cost ([how](../how-to/plan.md)).
""",
    "precision.fp8": """
Linear layers multiply 8-bit floating-point values; all other operations compute in bf16.

## When it helps

Large matrix products take most of the step time, on a GPU with compute capability 8.9 or later. Small layers lose more
time to the conversion than they gain.

## Safety class

Numeric: values are rounded to 8 bits with one scale per tensor. Compare the loss curve with the loss curve of bf16.

## How to do it

`paceline.train` accepts `--precision fp8`, or `autocast = "bf16"` and `fp8 = true` in the table `[precision]` of its
recipe ([reference](../reference/train.md)). In your own code, call `torchao.float8.convert_to_float8_training(model)`.
""",
    "shapes.bucket": """
Inputs are padded or grouped so that the program sees only a few different shapes.

## When it helps

Each new shape costs time: `torch.compile` compiles again, cuDNN searches for an algorithm again, and the memory
allocator cannot reuse its blocks. Step times vary, or much more GPU memory is reserved than used.

## Safety class

Semantic: padding changes what the model computes unless it is masked, and grouping by length changes which samples
share a batch.

## How to do it

Round the length of each batch up to the next of a few sizes (128, 256, 512) and mask the padding. Group samples of
similar length with a `batch_sampler`.
""",
    "shapes.pad": """
The dimensions of matrices are padded to a multiple of 8 (bf16, fp16) or 4 (TF32).

## When it helps

Large matrix products have a dimension such as 50,257, so that rows are not aligned to 16 bytes. The GPU then uses a
slower kernel.

## Safety class

Numeric: another kernel adds numbers in another order. The padded rows do not contribute to the result.

## How to do it

Round the size up where the program creates the layer: for a vocabulary of 50,257 tokens, write `nn.Embedding(50304,
dim)`. For the output layer, ignore the added classes in the loss.
""",
    "sync.less_often": """
The program reads values from the GPU only every n-th step.

## When it helps

The training thread waits for the GPU in a call such as `.item()`, `.cpu()`, `print(loss)` or `float(loss)`. The GPU
then has no queued work until the host continues.

## Safety class

Exact: training computes the same numbers. Values are only printed or logged later.

## How to do it

    total += loss.detach()          # stays on the GPU
    if step % 50 == 0:
        print(total.item() / 50)
        total.zero_()

`paceline tune --diff` shows this edit at the line if it is plainly safe.
""",
    "sync.non_blocking": """
The program copies a value to the host without waiting, and reads it one step later.

## When it helps

The program needs a value of every step, for example to log it, but does not need it at once.

## Safety class

Exact: training computes the same numbers.

## How to do it

    pinned.copy_(loss.detach(), non_blocking=True)   # pinned = torch.empty((), pin_memory=True)
    copied.record()                                  # copied = torch.cuda.Event()
    ...                                              # the next step
    copied.synchronize()
    value = float(pinned)
""",
}
