"""HOST003: other processes or a CPU quota take the cores."""

from __future__ import annotations

from paceline.core import units
from paceline.core.statistics import Interval
from paceline.explain.analysis.breakdown import cpu_wait_interval, cpu_wait_share
from paceline.explain.analysis.gains import saving
from paceline.explain.analysis.host import HostUse
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The program gets too little CPU time, because other processes on the host use the CPU cores, or because of the CPU quota
of its container. The program itself is not the cause.

## How it is detected

Paceline reports `cpu-contended` if the training thread was ready to run and waited for a CPU core during at least a
tenth of step time. The finding also requires that processes outside the watched run use at least a fifth of the cores
of the program's affinity, or that a cgroup quota stops the program during at least 5% of the time. In a container with
a CPU quota, other processes count only if at least 85% of the cores are in use.

The upper end of the expected gain is the speed-up without this waiting (95% confidence interval of its share). The
lower end leaves the part that the
program's own threads and workers take, by their share of the CPU time.

## What helps

- `host.cores`: move the other programs to another machine, raise the CPU quota, or pin the program to free cores.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding HOST003, or None if it does not apply."""
    host, share = analysis.host, analysis.cpu_wait_share
    if host.allowed_cores is None or share < 0.1:
        return None
    others = host.others_share
    throttled = host.throttled or 0.0
    if others < 0.2 and throttled < 0.05:
        return None
    gain = _gain(host, _kept(analysis), throttled)
    evidence = [
        Evidence(
            text=f"the training thread waited for a CPU core during {units.percent(share)} of step time",
            value=share,
            unit="share of step time",
        ),
        Evidence(
            text=f"processes outside this run used {units.percent(others)} of the {host.cores or 0:g} CPU cores "
            f"({units.count(host.samples, 'reading')})",
            value=others,
            unit="share of cores",
        ),
    ]
    if throttled >= 0.05:
        evidence.append(
            Evidence(
                text=f"a CPU quota stopped the program during {units.percent(throttled)} of the time",
                value=throttled,
                unit="share of time",
            )
        )
    return Finding(
        code="HOST003",
        name="cpu-contended",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=evidence,
        remedies=[
            Remedy(
                id="host.cores",
                safety="exact",
                change="move the other programs to another machine, raise the CPU quota, or pin the program to free "
                "cores",
                gain=gain,
            )
        ],
        summary=f"the program waits for a CPU core during {units.percent(share)} of step time",
    )


def _kept(analysis: RunAnalysis) -> Interval:
    """Return the share of time in which the training thread waited for a core, with its interval (median rank)."""
    ranks = sorted(analysis.ranks, key=lambda rank: cpu_wait_share(rank.record))
    return cpu_wait_interval(ranks[len(ranks) // 2].record)


def _gain(host: HostUse, share: Interval, throttled: float) -> Gain:
    """Return the gain if no other program used the CPU.

    At the lower end, other programs cause their share of the CPU time outside the training thread. At the upper end,
    they cause all waiting for a core. Few measurements give a wide interval, so the time that is not waited for is
    assumed to be at least half of what was measured.
    """
    others, own = host.other_cores or 0.0, max(0.0, (host.own_cores or 0.0) - 1.0)
    part = 1.0 if throttled >= 0.05 or others + own <= 0 else others / (others + own)
    high = min(share.high, (1 + share.value) / 2)
    return saving(Interval(value=share.value, low=share.low * part, high=high, count=share.count))


RULE = Rule(code="HOST003", name="cpu-contended", page=PAGE, check=check)
