"""The rules, one module per finding: the condition, the evidence, the expected gain, the remedies and the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from paceline.core.remedies import REMEDIES
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Finding
from paceline.traces.analyze.ranks import Traces

_MODULES = (
    "conv001_loss_not_finite",
    "conv002_loss_diverging",
    "data001_loader_serial",
    "data002_loader_cpu_bound",
    "data003_loader_io_bound",
    "data004_loader_underprovisioned",
    "data005_loader_transport_bound",
    "data006_loader_restart",
    "data007_small_reads",
    "data008_loader_jitter",
    "xfer001_transfer_blocking",
    "comp001_compute_bound",
    "comp002_launch_bound",
    "comp003_sync_stall",
    "comp004_precision_unused",
    "comp005_shapes_misaligned",
    "comp006_bandwidth_bound",
    "comp007_device_underfilled",
    "comp008_optimizer_unfused",
    "comp009_device_idle",
    "mem001_memory_near_limit",
    "mem002_memory_growing",
    "mem003_memory_fragmented",
    "comm001_communication_exposed",
    "comm002_rank_straggling",
    "comm004_sync_each_microstep",
    "run001_checkpoint_stall",
    "run002_evaluation_heavy",
    "run003_startup_slow",
    "run004_step_jitter",
    "run005_throughput_drift",
    "run006_host_code_heavy",
    "run007_debug_mode_on",
    "host001_cpu_oversubscribed",
    "host002_memory_swapping",
    "host003_cpu_contended",
    "host004_thread_blocked",
    "host005_page_faults",
    "gpu001_thermal_throttling",
    "gpu002_power_capped",
    "gpu003_pcie_degraded",
    "gpu004_gpu_errors",
    "gpu005_gpu_shared",
    "conv003_loss_plateau",
)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One finding: the functions that decide whether it applies, and its page in Markdown."""

    code: str
    name: str
    page: str
    check: Callable[[RunAnalysis], Finding | None] | None  # None: only profiler captures can show the finding
    check_traces: Callable[[Traces], Finding | None] | None = None  # None: profiler captures cannot show the finding

    @property
    def remedies(self) -> tuple[str, ...]:
        """The ids of the remedies in the section "What helps" of the page, in the order of the page."""
        helps = self.page.partition("## What helps")[2].partition("\n## ")[0]
        return tuple(dict.fromkeys(name for name in re.findall(r"`([^`]+)`", helps) if name in REMEDIES))


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return all rules."""
    return tuple(import_module(f"{__name__}.{module}").RULE for module in _MODULES)
