"""The result of ``paceline trace`` as JSON: schema ``paceline.trace/1``, times in microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.explain.analysis.captures import roof_of
from paceline.explain.diagnose import capture_verdict
from paceline.explain.model import Finding
from paceline.hardware.catalogue import Gpu, match_gpu
from paceline.report.findings_json import finding_json
from paceline.traces.analyze.collectives import Collective, CollectiveStraggler
from paceline.traces.analyze.comparison import CaptureComparison, KernelChange, compare_captures
from paceline.traces.analyze.gpu_time import Kernel
from paceline.traces.analyze.launch_queue import LaunchQueue
from paceline.traces.analyze.launchers import Launcher, Launchers
from paceline.traces.analyze.matrix_products import MatrixProduct, MatrixTime, matrix_time
from paceline.traces.analyze.path_summary import PathSummary
from paceline.traces.analyze.ranks import RankTrace, Traces
from paceline.traces.capture import CLASSES

SCHEMA = "paceline.trace/1"
Json = dict[str, Any]


def traces_json(traces: Traces, findings: Sequence[Finding], against: Traces | None = None) -> Json:
    """Return the result of `paceline trace` as JSON values.

    Args:
        traces: The captures.
        findings: The findings, the verdict first.
        against: Earlier captures; if given, the result also contains the changes since then.
    """
    return {
        "schema": SCHEMA,
        "files": list(traces.files),
        "ranks": [_rank(rank, traces.matched.waited_ns) for rank in traces.ranks],
        "collectives": [_collective(one) for one in traces.matched.collectives],
        "clock_offsets_us": {str(rank): ns / 1e3 for rank, ns in traces.matched.offsets_ns.items()},
        "stragglers": [_straggler(one) for one in traces.stragglers],
        "against": _contrast(against, compare_captures(against.ranks, traces.ranks)) if against is not None else None,
        "verdict": capture_verdict(traces, findings),
        "findings": [finding_json(finding) for finding in findings],
        "problems": [*traces.problems, *(against.problems if against is not None else ())],
    }


def _contrast(before: Traces, found: CaptureComparison) -> Json:
    return {
        "files": list(before.files),
        "per_step": found.per_step,
        "parts": [
            {"name": name, "before_us": before_ns / 1e3, "after_us": after_ns / 1e3}
            for name, before_ns, after_ns in found.parts
        ],
        "kernels": [_change(change) for change in found.kernels],
    }


def _change(change: KernelChange) -> Json:
    return {
        "name": change.name,
        "class": CLASSES[change.class_],
        "before": {"count": change.before.count, "total_us": change.before.total_ns / 1e3},
        "after": {"count": change.after.count, "total_us": change.after.total_ns / 1e3},
        "change_us": change.change_ns / 1e3,
    }


def _rank(rank: RankTrace, waited_ns: Mapping[int, int]) -> Json:
    parts = rank.breakdown
    waited = waited_ns.get(rank.rank) if rank.rank is not None else None
    return {
        "rank": rank.rank,
        "source": rank.source,
        "window": rank.window,
        "gpu": rank.gpu,
        "device": rank.device,
        "steps": rank.steps,
        "events": parts.events,
        **_times(rank, waited),
        "queue": _queue(rank.queue),
        "matrix_us": _matrix(matrix_time(rank.kernels)) if parts.events else None,
        "kernels": [_kernel(kernel) for kernel in rank.kernels],
        "critical_path": _path(rank.path) if rank.path is not None else None,
        **_launchers(rank.launchers, rank.gpu),
    }


def _times(rank: RankTrace, waited_ns: int | None) -> Json:
    """Return the parts of a rank's time in microseconds; they are null without GPU events."""
    parts, idle = rank.breakdown, rank.idle
    found: Json = {
        "span_us": parts.span_ns / 1e3,
        "busy_us": parts.busy_ns / 1e3,
        "idle_us": parts.idle_ns / 1e3,
        "compute_us": parts.compute_ns / 1e3,
        "communication_us": parts.communication_ns / 1e3,
        "exposed_communication_us": parts.exposed_communication_ns / 1e3,
        "overlap_us": parts.overlap_ns / 1e3,
        "copy_us": parts.copy_ns / 1e3,
        "exposed_copy_us": parts.exposed_copy_ns / 1e3,
        "exposed_transfer_us": parts.exposed_transfer_ns / 1e3,
        "outside_us": rank.outside_ns / 1e3,
        "speedup_without": {part: faster if math.isfinite(faster) else None for part, faster in rank.without.items()},
        "idle_causes_us": {name: ns / 1e3 for name, ns in idle.causes_ns.items()},
        "idle_gaps": idle.gaps,
        "micro_idle_us": idle.micro_ns / 1e3,
        "macro_idle_us": idle.macro_ns / 1e3,
    }
    if not parts.events:
        found = dict.fromkeys(found)
    return {**found, "waiting_for_peers_us": _us(waited_ns)}


def _queue(found: LaunchQueue) -> Json:
    """Return the statistics of the launch queue; null if the capture has no launches."""
    return {
        "launched": found.launched,
        "delay_median_us": _us(found.delay_median_ns),
        "delay_p95_us": _us(found.delay_high_ns),
        "waiting_median": found.waiting_median,
        "waiting_max": found.waiting_most,
        "late": found.late,
        "launch_bound_stretches": found.stretches,
        "launch_bound_us": found.bound_ns / 1e3,
    }


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e3


def _matrix(found: MatrixTime) -> Json:
    """Return the microseconds of matrix kernels, by whether they use tensor cores."""
    return {
        "tensor_cores": found.tensor_ns / 1e3,
        "no_tensor_cores": found.plain_ns / 1e3,
        "unknown": found.unknown_ns / 1e3,
    }


def _path(found: PathSummary) -> Json:
    return {
        "span_us": found.length_ns / 1e3,
        "parts_us": {kind: ns / 1e3 for kind, ns in found.kinds_ns.items()},
        "kernels": [{"name": name, "total_us": ns / 1e3} for name, ns in found.kernels_ns.items()],
        "steps": [
            {
                "name": step.name,
                "span_us": step.length_ns / 1e3,
                "parts_us": {kind: ns / 1e3 for kind, ns in step.kinds_ns.items()},
            }
            for step in found.steps
        ],
        "what_if": [
            {
                "what": one.what,
                "span_us": one.before_ns / 1e3,
                "then_us": one.after_ns / 1e3,
                "times_faster": one.faster,
            }
            for one in found.what_if
        ],
    }


def _launchers(found: Launchers | None, gpu: str | None) -> Json:
    """Return the time by operator, module and source line; null if it was not requested or not captured."""
    if found is None:
        return {"operators_on": None, "operators": None, "modules": None, "lines": None, "products": None}
    known = match_gpu(gpu) if gpu is not None else None
    return {
        "operators_on": "cpu" if found.on_cpu else "gpu",
        "operators": [_launcher(one) for one in found.operators],
        "modules": [_launcher(one) for one in found.modules],
        "lines": [_launcher(one) for one in found.lines],
        "products": [_product(one, known) for one in found.products],
    }


def _product(one: MatrixProduct, gpu: Gpu | None) -> Json:
    roof = roof_of(one, gpu) if gpu is not None else None
    return {
        "operator": one.name,
        "shapes": [list(shape) for shape in one.shapes],
        "format": one.format,
        "calls": one.calls,
        "total_us": one.total_ns / 1e3,
        "flops": one.flops,
        "bytes": one.bytes,
        "flops_per_s": one.flops_per_s,
        "bound": roof.bound if roof is not None else None,
        "roof_flops_per_s": roof.flops_per_s if roof is not None else None,
        "share_of_roof": roof.share if roof is not None else None,
    }


def _launcher(one: Launcher) -> Json:
    return {"name": one.name, "launches": one.launches, "total_us": one.total_ns / 1e3}


def _kernel(kernel: Kernel) -> Json:
    return {
        "name": kernel.name,
        "class": CLASSES[kernel.class_],
        "count": kernel.count,
        "total_us": kernel.total_ns / 1e3,
        "mean_us": kernel.mean_ns / 1e3,
        "max_us": kernel.max_ns / 1e3,
    }


def _collective(one: Collective) -> Json:
    return {
        "kind": one.kind,
        "group": one.group,
        "number": one.number,
        "ranks": one.ranks,
        "start_us": one.start_ns / 1e3,
        "skew_us": one.skew_ns / 1e3,
        "transfer_us": one.transfer_ns / 1e3,
        "last_rank": one.last,
        "waited_us": one.waited_ns / 1e3,
        "bus_bytes_per_s": one.bus_bytes_per_s,
    }


def _straggler(one: CollectiveStraggler) -> Json:
    return {
        "rank": one.rank,
        "last_in": one.last_in,
        "collectives": one.of,
        "caused_wait_us": one.caused_ns / 1e3,
        "share_of_waiting": one.share,
    }
