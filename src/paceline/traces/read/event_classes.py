"""Derives the class of a GPU event (compute, communication, copy) from its category, collective and name.

Communication kernels have many names: NCCL and RCCL, the multimem and one-shot kernels of symmetric memory,
custom all-reduces of inference servers, expert-parallel libraries (DeepEP), NVSHMEM, MSCCL, gloo.
"""

from __future__ import annotations

import re
from functools import lru_cache

from paceline.traces.capture import COMMUNICATION, COMPUTE, COPY

_COPIES = re.compile(r"(hip)?mem(cpy|set)|dma|copy(buffer|image)|fillbuffer|\[cuda mem(cpy|set)", re.IGNORECASE)
_COMMUNICATION = re.compile(
    r"""^(void\ )?(nccl|rccl|msccl|oneccl|ccl_|nvshmem)
    | ::(deep_?ep|ep::(inter|intra)node|(inter|intra)node|nvshmem\w*|mscclpp|nccl|symm_mem|symmetric_memory)::
    | ^(void\ )?(deep_?ep|mscclpp|internode|intranode|symm_mem)::
    | (inter|intra)node(_ll)?::(dispatch|combine|notify_dispatch|cached_notify|low_latency)
    | multimem_(all_reduce|all_gather|reduce_scatter|one_shot)
    | (one|two|multi)_?shot_?(all_?reduce|all_?gather|reduce_?scatter)
    | cross_device_reduce|lamport\w*(reduce|gather)
    | ncclKernel_|ncclDevKernel|nvshmemi?_\w*(barrier|put|get|reduce|broadcast|alltoall|signal)
    | quickreduce|quick_all_?reduce|userbuffers_
    | all_?reduce_?fusion|moe_?finalize_?all_?reduce|moe_?(alltoall|all2all)|all2all
    | (all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)\w*_?kernel
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PARTS = (
    "ccl", "shmem", "ep::", "deep_ep", "deepep", "node", "multimem", "reduce", "gather", "all_to", "alltoall",
    "all2all", "userbuf", "symm",
)  # fmt: skip
_TRANSFERS = re.compile(
    r"HtoD|DtoH|PtoP|Host[ -]?to[ -]?Device|Device[ -]?to[ -]?Host|Peer[ -]?to[ -]?Peer|-> Host|Pageable|Pinned",
    re.IGNORECASE,
)
_KEPT = 1 << 14
_HTA_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_HTA_COPIES = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")

_SYNCHRONISING = re.compile(
    r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|(cuda|hip)Memcpy(_v\d+)?$|hipMemcpyWithStream$"
)
_LOADER = "enumerate(DataLoader)"


def is_synchronising(name: str) -> bool:
    """Return whether a runtime call waits for the GPU."""
    return _SYNCHRONISING.match(name) is not None


def is_transfer(name: str) -> bool:
    """Return whether a copy with this name is from or to the host or another GPU."""
    return _TRANSFERS.search(name) is not None


def is_loader(name: str) -> bool:
    """Return whether a host range with this name fetches a batch."""
    return name.startswith(_LOADER)


def is_serial_loader(name: str) -> bool:
    """Return whether a host range with this name fetches a batch from a loader without workers."""
    return is_loader(name) and "_SingleProcess" in name


def is_gloo(name: str) -> bool:
    """Return whether a host range with this name is a collective of gloo."""
    return name.startswith("gloo:")


@lru_cache(_KEPT)  # ranks run the same kernels, so names repeat
def class_of(name: str, *, is_copy: bool = False, is_collective: bool = False) -> int:
    """Return the class of an event.

    Args:
        name: Name of the kernel, the copy or the memory set.
        is_copy: Whether the category of the event is a copy or a memory set.
        is_collective: Whether the profiler recorded the name of a collective for the event.
    """
    if is_copy or _COPIES.match(name):
        return COPY
    if is_collective:
        return COMMUNICATION
    lower = name.lower()
    likely = any(part in lower for part in _PARTS)  # most names have none of them, and the pattern is slow
    return COMMUNICATION if likely and _COMMUNICATION.search(name) else COMPUTE


def hta_class_of(name: str) -> int:
    """Return the class that HolisticTraceAnalysis 0.5 derives from the name of an event."""
    if _HTA_COMMUNICATION.match(name):
        return COMMUNICATION
    return COPY if _HTA_COPIES.match(name) else COMPUTE
