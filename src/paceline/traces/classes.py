"""What kind of work is a GPU event? By its category, what the profiler says of a collective, and its name.

Communication has many names: NCCL and RCCL, the multimem and one-shot kernels of symmetric memory, custom all-reduces
of inference servers, expert-parallel libraries (DeepEP), NVSHMEM, MSCCL, gloo.
"""

from __future__ import annotations

import re
from functools import lru_cache

from paceline.traces.model import COMMUNICATION, COMPUTE, COPY

_COPIES = re.compile(r"(hip)?mem(cpy|set)|dma|copy(buffer|image)|fillbuffer|\[cuda mem(cpy|set)", re.IGNORECASE)
_COMMUNICATION = re.compile(
    r"""^(void\ )?(
        nccl|rccl|msccl|mscclpp::|oneccl
      | nvshmem|deep_ep::|(\(anonymous\ namespace\)::)?internode|(\(anonymous\ namespace\)::)?intranode
    )
    | multimem_(all_reduce|all_gather|reduce_scatter|one_shot)
    | (one|two)_shot_all_reduce
    | cross_device_reduce
    | ncclKernel_|ncclDevKernel
    | quickreduce|quick_all_?reduce|allreduce_fusion_kernel|userbuffers_
    | (all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)_?kernel
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PARTS = ("ccl", "shmem", "deep_ep", "node", "multimem", "reduce", "gather", "all_to", "alltoall", "userbuf")
_KEPT = 1 << 14
_HTA_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_HTA_COPIES = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")


_SYNCHRONISING = re.compile(
    r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|(cuda|hip)Memcpy(_v\d+)?$|hipMemcpyWithStream$"
)
_LOADER = "enumerate(DataLoader)"


def is_synchronising(name: str) -> bool:
    """Say whether a call of a GPU's runtime waits for the GPU."""
    return _SYNCHRONISING.match(name) is not None


def is_loader(name: str) -> bool:
    """Say whether a range on the host is a batch being fetched."""
    return name.startswith(_LOADER)


def is_serial_loader(name: str) -> bool:
    """Say whether it is fetched by a loader without workers."""
    return is_loader(name) and "_SingleProcess" in name


def is_gloo(name: str) -> bool:
    """Say whether a range on the host is a collective of gloo."""
    return name.startswith("gloo:")


@lru_cache(_KEPT)  # ranks run the same kernels
def class_of(name: str, *, is_copy: bool = False, is_collective: bool = False) -> int:
    """Return the class of an event.

    Args:
        name: Of the kernel, the copy or the set.
        is_copy: Whether its category says that it is a copy or a set of memory.
        is_collective: Whether the profiler gives the name of a collective with it.
    """
    if is_copy or _COPIES.match(name):
        return COPY
    if is_collective:
        return COMMUNICATION
    lower = name.lower()
    likely = any(part in lower for part in _PARTS)  # most names have none of them, and the pattern is slow
    return COMMUNICATION if likely and _COMMUNICATION.search(name) else COMPUTE


def hta_class_of(name: str) -> int:
    """Return the class that HolisticTraceAnalysis 0.5 gives an event, which goes by the name alone."""
    if _HTA_COMMUNICATION.match(name):
        return COMMUNICATION
    return COPY if _HTA_COPIES.match(name) else COMPUTE
