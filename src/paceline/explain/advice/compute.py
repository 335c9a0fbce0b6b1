"""Pages of the remedies for the forward and backward pass that are applied by hand."""

from __future__ import annotations

from collections.abc import Mapping

PAGES: Mapping[str, str] = {
    "compute.batch_ops": """
Replace a loop of operations on small tensors with one operation on a large tensor.

## When it helps

This change helps if a step launches hundreds of small operations, and launching the operations takes longer than
computing them. The usual causes are Python loops over time steps, attention heads, samples or experts.

## Safety class

The safety class is numeric, because a batched operation adds numbers in another order.

## How to do it

Stack the inputs and use `torch.bmm`, `torch.einsum`, `torch.nn.functional.scaled_dot_product_attention` or
`torch.vmap`. Use `torch.nn.LSTM` on a whole sequence instead of `LSTMCell` in a loop.
""",
    "host.vectorize": """
Replace Python loops over the elements of a tensor with tensor operations.

## When it helps

This change helps if the program runs slow Python code between the phases of a step, for example metrics in a loop over
samples. The phases of a step are loading the batch, the forward pass, the backward pass and the optimizer update. The
finding names the slow function.

## Safety class

The safety class is numeric, because tensor operations add numbers in another order than a Python loop.

## How to do it

Write the loop as one expression over the tensor. For example, write `(predictions == labels).sum()` instead of a loop
that compares each pair of values. Keep the result on the GPU and read its value once per epoch.
""",
    "fsdp.keep_gathered": """
FSDP gathers the parameters of a layer before its forward pass, and frees them afterwards. The backward pass gathers the
parameters a second time. Without freeing, the second gathering is saved.

## When it helps

This change helps if communication that no computation hides takes a large part of a step, and if each rank has memory
for the parameters of the whole model.

## Safety class

The safety class is exact: the same numbers are computed from the same parameters.

## How to do it

Call `torch.distributed.fsdp.fully_shard(module, reshard_after_forward=False)` for each block. In FSDP1, use
`ShardingStrategy.SHARD_GRAD_OP`.
""",
    "layout.shard": """
Each rank stores a part of the parameters, of the gradients and of the optimizer state (fully sharded data parallelism,
FSDP). The ranks gather the parameters of a layer just before the layer is computed.

## When it helps

Sharding helps if the model and its optimizer state do not fit on one GPU, or if `paceline plan` predicts a shorter step
time with sharding. Sharding sends more bytes than data parallelism without sharding, so it needs fast links between the
GPUs.

## Safety class

The safety class is numeric, because sums over ranks are added in another order. The training algorithm stays the same.

## How to do it

- `paceline run --layout shard=4 train.py` runs a program that was written for one process on four ranks
  ([how](../how-to/several-gpus.md)).
- `paceline.train` accepts `layout = "shard=4"` in its recipe ([how](../how-to/train.md)).
- In your own code, call `torch.distributed.fsdp.fully_shard` on each block and on the model.

`paceline plan` compares parallel layouts by predicted step time, memory and cost ([how](../how-to/plan.md)).
""",
    "pipeline.micro_batches": """
Divide each batch into more micro-batches, so that the stages of a pipeline compute at the same time for longer.

## When it helps

A stage has nothing to do while the first micro-batches reach it and the last ones leave. With p stages and m
micro-batches, GPipe and 1F1B leave each stage idle during (p - 1) / (m + p - 1) of a step. More micro-batches help as
long as each of them is large enough to use the device.

## Safety class

The safety class is numeric, because gradients are summed in another order. Layers that compute statistics of a batch,
such as BatchNorm, see smaller batches.

## How to do it

Pass a larger `n_microbatches` to the schedule, or use an interleaved schedule, such as `ScheduleInterleaved1F1B`, in
which each rank has several stages. If one stage takes longer than the others, move layers to other stages first.
""",
    "precision.fp8": """
Linear layers multiply matrices in an 8-bit floating-point type (fp8), and all other operations compute in bf16.

## When it helps

FP8 helps if large matrix products take most of the step time on a GPU with compute capability 8.9 or later. For small
layers, converting the inputs to fp8 takes more time than the faster matrix product saves.

## Safety class

The safety class is numeric, because values are rounded to 8 bits with one scale per tensor. Compare the loss curve of
training in fp8 with the loss curve of training in bf16.

## How to do it

`paceline.train` accepts the option `--precision fp8`, or `autocast = "bf16"` and `fp8 = true` in the section
`[precision]` of its recipe ([reference](../reference/train.md)). In your own code, call
`torchao.float8.convert_to_float8_training(model)`.
""",
    "shapes.bucket": """
Pad the inputs, or group inputs of similar length, so that the program uses only a few different tensor shapes.

## When it helps

This change helps if each new input shape costs time: `torch.compile` compiles again, cuDNN searches for an algorithm
again, and the memory allocator cannot reuse its blocks. Typical symptoms are step times that vary, or much more GPU
memory reserved than used.

## Safety class

The safety class is semantic. Padding changes what the model computes unless the padding is masked, and grouping by
length changes which samples are in the same batch.

## How to do it

Pad each batch to the next of a few lengths, such as 128, 256 and 512, and mask the padding. Group samples of similar
length with a `batch_sampler`.
""",
    "shapes.pad": """
Pad matrix dimensions to a multiple of 8 (for bf16 and fp16) or of 4 (for TF32).

## When it helps

Padding helps if a large matrix product has a dimension such as 50,257, because the rows of the matrix are then not
aligned to 16 bytes. With rows that are not aligned, the GPU uses a slower kernel.

## Safety class

The safety class is numeric, because another kernel adds numbers in another order. The padded rows do not contribute to
the result.

## How to do it

Round the size up where the program creates the layer. For example, write `nn.Embedding(50304, dim)` for a vocabulary
of 50,257 tokens. If you pad the output layer, exclude the added classes from the loss.
""",
    "sync.less_often": """
Read values such as the loss from the GPU only every n-th step.

## When it helps

This change helps if the training thread waits for the GPU in a call such as `.item()`, `.cpu()`, `print(loss)` or
`float(loss)`. When a call that waits for the GPU returns, the GPU has finished all queued work and is idle until the
host launches new work.

## Safety class

The safety class is exact: training computes the same numbers. The values are only printed or logged later.

## How to do it

    total += loss.detach()          # stays on the GPU
    if step % 50 == 0:
        print(total.item() / 50)
        total.zero_()

If the edit is certainly safe, `paceline tune --diff` shows it for the line that reads the value.
""",
    "sync.non_blocking": """
Copy a value from the GPU to the host without waiting for the copy, and read the value one step later.

## When it helps

This change helps if the program needs a value from the GPU in every step, for example to log the loss, but can use the
value one step later.

## Safety class

The safety class is exact, because training computes the same numbers.

## How to do it

    pinned.copy_(loss.detach(), non_blocking=True)   # pinned = torch.empty((), pin_memory=True)
    copied.record()                                  # copied = torch.cuda.Event()
    ...                                              # the next step
    copied.synchronize()
    value = float(pinned)
""",
}
