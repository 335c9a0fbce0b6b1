"""The diagnosis of a recorded run or of profiler captures: findings and a verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from paceline.core import units
from paceline.explain.analysis.breakdown import timeline, why_host_times
from paceline.explain.analysis.captures import timed
from paceline.explain.analysis.contention import with_confidence
from paceline.explain.analysis.ending import ended, unended_ranks
from paceline.explain.analysis.gauges import gauge_series, missing_gauges
from paceline.explain.analysis.gpu import why_no_gpu
from paceline.explain.analysis.run_analysis import MIN_STEADY_S, MIN_STEPS, RunAnalysis, analyze_run
from paceline.explain.analysis.source_lines import source_lines
from paceline.explain.model import Cost, Diagnosis, Finding, HotFunction, RankBreakdown
from paceline.explain.rules import all_rules
from paceline.explain.verdict import NO_STEPS, TOO_SHORT, ordered, verdict_of
from paceline.record import layout
from paceline.record.layout import PHASES
from paceline.record.run import Rank, Run
from paceline.traces.analyze.ranks import Traces

WATCHING_STOPPED = "watching stopped"  # start of a problem that was printed to stderr during the run
# Findings that do not need steady steps.
_ANYTIME = ("CONV001", "GPU004", "RUN003")
_LEAST_ALIKE = 8  # least number of losses that identify the samples of a rank

_NEEDED = (
    "watching a process needs torch, Python 3.11 or later, and an unchanged PYTHONPATH (`env -i` and `sudo` clear it)"
)


def diagnose(run: Run) -> Diagnosis:
    """Return the diagnosis of a run, from the records on disk. The run may still be running."""
    return _with_steps(run, analyze_run(run)) if run.ranks else _without_steps(run)


def _without_steps(run: Run) -> Diagnosis:
    exit_code, first = _exit_code(run), next(iter(run.stepless), None)
    why = _why_no_steps(run)
    return Diagnosis(
        run_id=run.run_id,
        command=_command(run),
        exit_code=exit_code,
        ended=ended(run),
        device=first.device if first is not None else "",
        device_name=str(first.meta.get("device_name") or "") if first is not None else "",
        world=0,
        wall_s=_wall_s(run),
        ranks=(),
        shares={},
        seconds={},
        step_s=None,
        p95_s=None,
        samples_per_s=None,
        batch_size=None,
        mfu=None,
        loader=None,
        loss=None,
        cost=_cost(run, 1.0),
        verdict=NO_STEPS,
        verdict_text="no training step was seen: " + why,
        findings=(),
        unavailable={
            "steps": why if exit_code or _backwards(run) else _NEEDED,
            **missing_gauges(run),
        },
        memory={},
        timelines={},
        gauges=gauge_series(run),
        problems=run.problems,
    )


def _why_no_steps(run: Run) -> str:
    count = _backwards(run)
    if _exit_code(run) and count < 2:
        return "the program ended before the first step"
    if count:
        return (
            f"{count} backward pass{'es' if count > 1 else ''} ran, but no optimizer made a step. In a program "
            "that creates an optimizer, updates of weights by other code are not counted as steps"
        )
    return "no Python process that Paceline watched ran a backward pass"


def _backwards(run: Run) -> int:
    """Return how many backward passes ran in processes in which no optimizer made a step."""
    found = (rank.summary.get("training") for rank in run.stepless)
    return sum(int(each.get("backwards") or 0) for each in found if isinstance(each, dict))


def _with_steps(run: Run, analysis: RunAnalysis) -> Diagnosis:
    found = _findings(analysis)
    findings = ordered(found, analysis.shares)
    # the verdict uses gains that are not bounded by the other findings
    verdict, text = _verdict(analysis, ordered(found))
    ranks = [r.breakdown for r in analysis.ranks]
    slowest = max(ranks, key=lambda r: r.step_s.value)
    first = analysis.first
    device_wait = 1 - sum(analysis.shares[p] for p in ("forward", "backward", "optimizer"))
    return Diagnosis(
        run_id=run.run_id,
        command=_command(run),
        exit_code=_exit_code(run),
        ended=_ended(run),
        device=first.record.device,
        device_name=str(first.record.meta.get("device_name") or ""),
        world=len(ranks),
        wall_s=_wall_s(run),
        ranks=ranks,
        shares=analysis.shares,
        seconds={p: float(np.median([r.seconds[p] for r in ranks])) for p in PHASES},
        step_s=slowest.step_s,
        p95_s=slowest.p95_s,
        samples_per_s=samples_per_s([(r.record, r.breakdown) for r in analysis.ranks]),
        batch_size=ranks[0].batch_size,
        mfu=first.mfu.value,
        loader=first.loader,
        loss=analysis.loss,
        cost=_cost(run, device_wait),
        verdict=verdict,
        verdict_text=text,
        findings=findings,
        unavailable=_unavailable(run, analysis),
        memory=_memory(analysis),
        timelines={r.record.rank: timeline(r.record) for r in analysis.ranks[:16]},
        gauges=gauge_series(run),
        problems=[*run.problems, *_faults(analysis)],
        patched=list(dict.fromkeys(str(name) for rank in run.ranks for name in rank.meta.get("patched") or ())),
        top_operators=_operators(analysis),
        startup_s=ranks[0].startup_s,
        sources=source_lines(run, findings, _listed(analysis)),
    )


def _listed(analysis: RunAnalysis) -> list[str]:
    """Return the functions that the report lists: those of the loader, then those of the training process."""
    loader = analysis.first.loader
    return [one.function for one in (*(loader.hot if loader else ()), *analysis.first.breakdown.host_functions)]


def _findings(analysis: RunAnalysis) -> list[Finding]:
    """Return the findings of all rules, in the order of the rules."""
    rules = [rule for rule in all_rules() if analysis.enough or rule.code in _ANYTIME]
    found = [f for rule in rules if rule.check is not None and (f := rule.check(analysis)) is not None]
    return with_confidence(found, analysis)


def _verdict(analysis: RunAnalysis, findings: Sequence[Finding]) -> tuple[str, str]:
    if analysis.enough or findings:
        return verdict_of(findings)
    steps = min(len(r.rows) for r in analysis.ranks)
    seconds = min(r.total_s for r in analysis.ranks)
    return TOO_SHORT, (
        f"too short for a diagnosis: {steps} steady steps (after the warm-up) in {units.seconds(seconds)}, but at "
        f"least {MIN_STEPS} steps and {units.seconds(MIN_STEADY_S)} are needed"
    )


def _command(run: Run) -> str:
    """Return the first command as a user would type it; an interpreter is named without its folder."""
    import shlex

    if not run.launches:
        return ""
    program, *arguments = run.launches[0].command
    name = os.path.basename(program)
    return shlex.join([name if name.startswith("python") else program, *arguments])


def _exit_code(run: Run) -> int | None:
    codes = [x.exit_code for x in run.launches]
    known = [c for c in codes if c is not None]
    return max(known, key=abs) if known and len(known) == len(codes) else None


def _wall_s(run: Run) -> float | None:
    return max((x.wall_s for x in run.launches if x.wall_s is not None), default=None)


def _ended(run: Run) -> str:
    text, lost = ended(run), unended_ranks(run)
    if lost and len(lost) < len(run.ranks):
        text += f"; ended without a message: rank {', '.join(map(str, lost[:8]))}"
    if run.earlier:
        text += f"; {len(run.earlier)} rank processes were restarted"
    return text


def _cost(run: Run, idle_share: float) -> Cost | None:
    priced = [x for x in run.launches if x.price_per_hour is not None and x.wall_s is not None]
    if not priced:
        return None
    total = sum((x.price_per_hour or 0.0) * (x.wall_s or 0.0) / 3600 for x in priced)
    return Cost(
        price_per_hour=sum(x.price_per_hour or 0.0 for x in priced),
        price_source=priced[0].price_source,
        run=total,
        idle=total * idle_share,
        idle_share=idle_share,
    )


def _memory(analysis: RunAnalysis) -> dict[str, float | None]:
    ranks = [r.breakdown for r in analysis.ranks]
    rss = [r.peak_rss_bytes for r in ranks if r.peak_rss_bytes is not None]
    device = [r.peak_device_bytes for r in ranks if r.peak_device_bytes is not None]
    return {
        "peak_rss_bytes": max(rss, default=None),
        "peak_device_bytes": max(device, default=None),
        "device_total_bytes": analysis.first.record.meta.get("device_total_bytes"),
        "host_limit_bytes": analysis.host.memory_limit_bytes,
    }


def _unavailable(run: Run, analysis: RunAnalysis) -> dict[str, str]:
    first = analysis.first
    off = first.record.meta.get("switched_off") or {}
    found = {**missing_gauges(run), **{str(part): str(why) for part, why in off.items()}}
    if first.mfu.value is None:
        found["mfu"] = first.mfu.reason
    if first.record.device == "cpu":
        found["device_memory"] = "training runs on the CPU; see host memory"
    if analysis.loss is None:
        found["loss"] = (
            "Paceline could not read a loss without waiting for the GPU, or the program did not call backward on a "
            "scalar loss"
        )
    if first.breakdown.samples_per_s is None:
        found["samples"] = "Paceline saw no batch tensor whose first dimension is the batch size"
    if first.loader is None:
        found["loader"] = "the training data did not come from a DataLoader"
    if first.window is None:
        found["profiler_window"] = _why_no_window(first.record)
    return found | _of_gpu(run, first.record)


def _why_no_window(rank: Rank) -> str:
    failed = next((str(note["failed"]) for note in rank.noted("window") if note.get("failed")), None)
    if failed:
        return f"profiling failed ({failed})"
    return (
        "no steps were profiled (the run was too short, profiling was switched off, or the program uses a "
        "profiler itself)"
    )


def _of_gpu(run: Run, rank: Rank) -> dict[str, str]:
    """Return the unavailable measurements of a run on a GPU, with the reasons."""
    found = {} if (why := why_host_times(rank)) is None else {"device_times": why}
    if (why := why_no_gpu(run, rank)) is not None:
        found["gpu"] = why
    if unread := rank.meta.get("device_memory_unread"):
        found["device_memory"] = str(unread)
    if rank.device != "cpu" and rank.meta.get("distributed"):
        found["communication"] = "on a GPU, communication inside the backward pass is not timed separately"
    return found


def _faults(analysis: RunAnalysis) -> list[str]:
    return [
        f"{WATCHING_STOPPED} on rank {r.record.rank}: {note['reason']}"
        for r in analysis.ranks
        for note in r.record.noted("fault")
    ]


def _operators(analysis: RunAnalysis) -> list[HotFunction]:
    window = analysis.first.window
    if window is None or window.operator_s <= 0:
        return []
    return [
        HotFunction(function=o.name, share=o.time_s / window.operator_s, count=o.count) for o in window.operators[:12]
    ]


# samples per second


def samples_per_s(ranks: Sequence[tuple[Rank, RankBreakdown]]) -> float | None:
    """Return the samples per second over all ranks, each sample counted once, or None if unknown.

    Tensor-parallel ranks compute the same loss from the same samples. Of pipeline stages, only the last one has a loss.
    Ranks with bitwise identical losses in every step are assumed to train on the same samples.
    """
    known = [(rank, own.samples_per_s) for rank, own in ranks if own.samples_per_s is not None]
    with_loss = [(rank, rate) for rank, rate in known if _first_losses(rank)]
    rates: dict[bytes, float] = {}
    for number, (rank, rate) in enumerate(with_loss or known):
        identity = _first_losses(rank) or str(number).encode()
        rates[identity] = max(rate, rates.get(identity, 0.0))
    return sum(rates.values()) if rates else None


def _first_losses(rank: Rank) -> bytes:
    """Return the losses of the first steps as bytes, or empty bytes if there are too few or all are equal."""
    seen = rank.steps[(rank.steps["flags"] & layout.FLAG_LOSS) != 0][: 4 * _LEAST_ALIKE]["loss"]
    finite = seen[np.isfinite(seen)]
    return finite.tobytes() if len(finite) >= _LEAST_ALIKE and np.ptp(finite) > 0 else b""


# ---------------------------------------------------------------------------------------------------- profiler captures


def capture_verdict(traces: Traces, findings: Sequence[Finding]) -> str | None:
    """Return the verdict on captures: the name of the first finding, or ``balanced``. None without GPU events."""
    if not timed(traces) and not findings:
        return None
    return findings[0].name if findings else "balanced"


def findings_in(traces: Traces) -> list[Finding]:
    """Return the findings that profiler captures show, the most important first."""
    checks = [rule.check_traces for rule in all_rules() if rule.check_traces is not None]
    return ordered([found for check in checks if (found := check(traces)) is not None])
