"""The safety classes and the table of remedies. This table is the only list of remedy ids.

Findings, ``tune``, patches, ``plan`` and the documentation take the ids, titles and safety classes of remedies from
this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.core.errors import nearest

Safety = Literal["exact", "resampled", "numeric", "semantic"]

SAFETY_CLASSES: tuple[Safety, ...] = get_args(Safety)
"""All safety classes, the safest first."""

SAFETY_MEANING: Mapping[Safety, str] = {
    "exact": "Training computes the same numbers.",
    "resampled": "Training sees the same samples in the same order, but other random numbers are drawn for them.",
    "numeric": "Training runs the same algorithm with other rounding.",
    "semantic": "Training runs another algorithm, such as a larger batch or a lower learning rate.",
}


def least_safe(classes: Iterable[Safety]) -> Safety:
    """Return the least safe of the given classes; ``exact`` if there are none."""
    return max(classes, key=SAFETY_CLASSES.index, default="exact")


@dataclass(frozen=True, kw_only=True)
class RemedyInfo:
    """One remedy in the table of remedies.

    Attributes:
        id: Name of the remedy, such as ``loader.workers``.
        title: What the remedy does, as an imperative of a few words.
        classes: The safety classes that the remedy can have. The usual class is first.
        settings: The recipe settings that the remedy changes. Empty if a recipe cannot apply the remedy.
        tunable: Whether ``paceline tune`` can try the remedy.
    """

    id: str
    title: str
    classes: tuple[Safety, ...]
    settings: tuple[str, ...] = ()
    tunable: bool = False

    @property
    def safety(self) -> Safety:
        """The usual safety class."""
        return self.classes[0]

    @property
    def file_name(self) -> str:
        """File name of the remedy's page in ``docs/remedies``, such as ``loader.workers.md``."""
        return f"{self.id}.md"

    @property
    def family(self) -> str:
        """The part of the id before the dot, such as ``loader``."""
        return self.id.partition(".")[0]


def _advice(remedy: str, title: str, *classes: Safety) -> RemedyInfo:
    """Return the table row of a remedy that only the user can apply, in the source or on the machine."""
    return RemedyInfo(id=remedy, title=title, classes=classes)


def _tunable(remedy: str, title: str, *classes: Safety, sets: tuple[str, ...]) -> RemedyInfo:
    """Return the table row of a remedy that ``paceline tune`` can try."""
    return RemedyInfo(id=remedy, title=title, classes=classes, settings=sets, tunable=True)


_ROWS = (
    _advice("batch.accumulate", "Accumulate gradients over more micro-steps", "semantic"),
    _tunable("batch.size", "Change the batch size", "semantic", sets=("loader.batch_size", "optimizer.lr_factor")),
    _advice("checkpoint.async", "Write checkpoints in the background", "exact"),
    _advice("checkpoint.less_often", "Save checkpoints less often", "exact"),
    _advice("compute.batch_ops", "Replace loops of small operations with batched operations", "numeric"),
    _tunable(
        "compute.channels_last",
        "Store images and convolution weights in channels-last format",
        "numeric",
        sets=("compute.channels_last",),
    ),
    _tunable("compute.compile", "Compile the model with torch.compile", "numeric", sets=("compute.compile",)),
    _tunable(
        "compute.cudnn_benchmark",
        "Let cuDNN measure which convolution algorithm is fastest",
        "numeric",
        sets=("compute.cudnn_benchmark",),
    ),
    _tunable("compute.sdpa_backend", "Choose the attention kernel", "numeric", sets=("compute.sdpa_backend",)),
    _tunable("compute.threads", "Change the number of CPU threads", "numeric", sets=("compute.num_threads",)),
    _tunable("ddp.bucket_cap_mb", "Change the gradient bucket size of DDP", "numeric", sets=("ddp.bucket_cap_mb",)),
    _tunable(
        "ddp.comm_hook",
        "Compress gradients with a DDP communication hook",
        "numeric",
        "semantic",
        sets=("ddp.comm_hook",),
    ),
    _tunable(
        "ddp.find_unused_parameters",
        "Do not search for unused parameters in each step",
        "numeric",
        sets=("ddp.find_unused_parameters",),
    ),
    _tunable(
        "ddp.gradient_as_bucket_view",
        "Store gradients as views of DDP's communication buckets",
        "exact",
        sets=("ddp.gradient_as_bucket_view",),
    ),
    _tunable(
        "ddp.no_sync", "Exchange gradients between ranks only once per optimizer step", "numeric", sets=("ddp.no_sync",)
    ),
    _tunable(
        "ddp.static_graph", "Tell DDP that the autograd graph never changes", "numeric", sets=("ddp.static_graph",)
    ),
    _tunable(
        "debug.anomaly_detection",
        "Turn the anomaly detection of autograd off",
        "exact",
        sets=("debug.anomaly_detection",),
    ),
    _tunable(
        "debug.deterministic_algorithms",
        "Allow algorithms that are not deterministic",
        "numeric",
        sets=("debug.deterministic_algorithms",),
    ),
    _tunable(
        "debug.distributed_debug",
        "Turn the debug checks of collectives off",
        "exact",
        sets=("debug.distributed_debug",),
    ),
    _tunable(
        "debug.launch_blocking",
        "Do not wait for each GPU kernel",
        "exact",
        sets=("debug.launch_blocking",),
    ),
    _advice("evaluation.faster", "Make evaluation faster", "numeric"),
    _advice("evaluation.less_often", "Evaluate less often or on fewer samples", "exact"),
    _tunable(
        "evaluation.workers",
        "Load the batches of evaluation with workers",
        "exact",
        sets=("loader.evaluation_workers",),
    ),
    _advice("fsdp.keep_gathered", "Keep the parameters gathered after the forward pass (FSDP)", "exact"),
    _advice("gpu.cooling", "Improve the cooling of the GPU", "exact"),
    _advice("gpu.debug", "Find the kernel that causes the GPU error", "exact"),
    _advice("gpu.exclusive", "Use a GPU that no other process uses", "exact"),
    _advice("gpu.pcie_slot", "Restore the full PCIe link speed of the GPU", "exact"),
    _advice("gpu.power_limit", "Change the power limit of the GPU", "exact"),
    _advice("gpu.power_supply", "Check the power supply of the machine", "exact"),
    _advice("gpu.replace", "Take the faulty GPU out of service", "exact"),
    _advice("host.cores", "Give the program free CPU cores", "exact"),
    _advice("host.gc", "Run Python's garbage collector only at chosen times", "exact"),
    _advice("host.less_often", "Run slow Python code less often", "exact", "semantic"),
    _advice("host.memory", "Use less host memory", "exact"),
    _advice("host.vectorize", "Replace Python loops with tensor operations", "numeric"),
    _advice("layout.shard", "Shard parameters, gradients and optimizer state over ranks", "numeric"),
    _advice("loader.background", "Load the next batch in the background", "exact"),
    _advice("loader.batch_transform", "Apply transforms to whole batches instead of single samples", "numeric"),
    _tunable(
        "loader.cache",
        "Keep samples in memory after the first epoch",
        "exact",
        sets=("loader.cache", "loader.num_workers"),
    ),
    _advice("loader.collate", "Rewrite the collate function", "exact"),
    _advice("loader.decode", "Make the code that loads a sample faster", "numeric"),
    _tunable(
        "loader.device_prefetch",
        "Copy the next batch to the GPU ahead of time",
        "exact",
        "resampled",
        sets=("loader.device_prefetch", "loader.pin_memory"),
    ),
    _advice("loader.in_order", "Return batches in the order in which they are ready", "semantic"),
    _advice("loader.local_copy", "Copy the data to a local disk", "exact"),
    _advice("loader.max_sample_size", "Limit the size of the largest samples", "semantic"),
    _tunable(
        "loader.persistent",
        "Keep loader workers between epochs",
        "exact",
        "resampled",
        "semantic",
        sets=("loader.persistent_workers",),
    ),
    _tunable("loader.pin_memory", "Load batches into pinned memory", "exact", sets=("loader.pin_memory",)),
    _tunable(
        "loader.prefetch",
        "Prefetch more batches per worker",
        "exact",
        "resampled",
        "semantic",
        sets=("loader.prefetch_factor", "loader.num_workers", "loader.persistent_workers"),
    ),
    _advice("loader.shards", "Convert the data to shards", "exact"),
    _advice("loader.small_dtype", "Load small data types (uint8) and convert them on the GPU", "numeric"),
    _tunable(
        "loader.threads",
        "Load batches in threads instead of worker processes",
        "exact",
        "semantic",
        sets=("loader.threads", "loader.num_workers"),
    ),
    _advice("loader.whole_batches", "Index tensors once per batch instead of once per sample", "exact"),
    _tunable(
        "loader.workers",
        "Change the number of loader workers",
        "exact",
        "resampled",
        "semantic",
        sets=("loader.num_workers", "loader.persistent_workers"),
    ),
    _advice("loss.detect_anomaly", "Find the operation that produces NaN", "exact"),
    _tunable(
        "memory.checkpoint",
        "Recompute activations in the backward pass",
        "exact",
        sets=("memory.checkpoint_every", "memory.activation_budget"),
    ),
    _advice("memory.detach", "Store numbers instead of tensors with autograd graphs", "exact"),
    _tunable(
        "memory.expandable_segments",
        "Let the GPU memory allocator use expandable segments",
        "exact",
        sets=("allocator.expandable_segments",),
    ),
    _tunable("memory.micro_batches", "Split each batch into micro-batches", "numeric", sets=("memory.micro_batches",)),
    _tunable(
        "memory.retain_host_memory",
        "Keep freed host memory for the next step",
        "exact",
        sets=("allocator.retain_host_memory",),
    ),
    _advice("optimizer.clip", "Clip gradients", "semantic"),
    _tunable(
        "optimizer.foreach",
        "Update many parameters at a time (foreach optimizer)",
        "numeric",
        sets=("optimizer.foreach",),
    ),
    _tunable(
        "optimizer.fused", "Update all parameters in one kernel (fused optimizer)", "numeric", sets=("optimizer.fused",)
    ),
    _advice("optimizer.lower_lr", "Lower the learning rate or use a warm-up", "semantic"),
    _advice("optimizer.schedule", "Change the learning-rate schedule", "semantic"),
    _tunable("optimizer.state_8bit", "Store Adam's state in 8 bits", "semantic", sets=("optimizer.state_8bit",)),
    _advice("pipeline.micro_batches", "Use more micro-batches in a pipeline", "numeric"),
    _tunable("precision.autocast", "Compute in bf16 with autocast", "numeric", sets=("precision.autocast",)),
    _tunable(
        "precision.fp16", "Compute in fp16 with autocast and loss scaling", "numeric", sets=("precision.autocast",)
    ),
    _advice("precision.fp8", "Compute linear layers in fp8", "numeric"),
    _tunable("precision.tf32", "Multiply fp32 matrices in TF32", "numeric", sets=("precision.tf32",)),
    _advice("ranks.balance", "Give every rank the same amount of work", "exact", "semantic"),
    _advice("run.bound_state", "Limit the size of lists and caches that grow with each step", "exact"),
    _advice("run.early_stopping", "Stop when the loss no longer improves", "semantic"),
    _advice("shapes.bucket", "Pad or group inputs into a few tensor shapes", "semantic"),
    _advice("shapes.pad", "Pad matrix dimensions to a multiple of 8", "numeric"),
    _advice("startup.cache", "Cache the results of startup work on disk", "exact"),
    _advice("startup.lazy", "Defer startup work until it is needed", "exact"),
    _advice("sync.less_often", "Read values from the GPU less often", "exact"),
    _advice("sync.non_blocking", "Read values from the GPU without blocking", "exact"),
)

REMEDIES: Mapping[str, RemedyInfo] = {row.id: row for row in _ROWS}
"""Every remedy by its id, in alphabetical order."""

PRECISION_REMEDIES: Mapping[str, str] = {
    "tf32": "precision.tf32",
    "bf16": "precision.autocast",
    "fp16": "precision.fp16",
    "fp8": "precision.fp8",
}
"""The remedy for each number format: it makes training compute in this format."""


def remedy_info(remedy: str) -> RemedyInfo:
    """Return the table row of a remedy.

    Args:
        remedy: The id of the remedy.

    Raises:
        ValueError: The table has no such id.
    """
    if remedy in REMEDIES:
        return REMEDIES[remedy]
    near = nearest(remedy, REMEDIES)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{remedy!r} is not in the table of remedies (paceline/core/remedies.py){hint}")
