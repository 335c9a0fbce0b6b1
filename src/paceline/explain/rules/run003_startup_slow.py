"""RUN003: the first step starts late."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.breakdown import hot_functions
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_S = 2.0
_LEAST_SHARE = 0.25

PAGE = """
## What it means

The program spends a long time before its first training step, for example on indexing a dataset, building a model,
compiling, or downloading. Each start and each restart of the program repeats the work that precedes the first training
step.

## How it is detected

Startup time is the time from the import of torch to the first batch or forward pass. Paceline reports `startup-slow` if
the startup time is at least 2 s and at least a quarter of the run so far. Importing a module counts as at most 0.1 s of
startup time. In a longer run, startup is a smaller share of the time.

## What helps

- `startup.cache`: store the index or the preprocessed data on disk.
- `startup.lazy`: do startup work only when its result is needed, or in the loader workers.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN003, or None if it does not apply."""
    rank, meta = analysis.first, analysis.first.record.meta
    imported, first = meta.get("imported_ns"), meta.get("first_ns")
    if imported is None or first is None or analysis.wall_s is None:
        return None
    setup_s = (first - imported - meta.get("imports_ns", 0)) / 1e9
    share = setup_s / analysis.wall_s
    if setup_s < _LEAST_S or share < _LEAST_SHARE:
        return None
    text = (
        f"the work between the import of torch and the first batch took {units.seconds(setup_s)} of "
        f"{units.seconds(analysis.wall_s)} of this run"
    )
    gain = at_most(share)
    return Finding(
        code="RUN003",
        name="startup-slow",
        severity="warning",
        confidence="high",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[Evidence(text=text, value=setup_s, unit="s"), *_where(rank)],
        remedies=[
            Remedy(
                id="startup.cache",
                safety="exact",
                change="store the results of the startup work on disk, and load them from disk in the next run",
                gain=gain,
            ),
            Remedy(
                id="startup.lazy",
                safety="exact",
                change="do startup work only when its result is needed, or in the loader workers",
                gain=gain,
            ),
        ],
        summary=f"{units.percent(share)} of this run passed before the first step",
    )


def _where(rank: RankAnalysis) -> list[Evidence]:
    return [
        Evidence(
            text=f"{f.function} takes {units.percent(f.share)} of the time before the first step "
            f"({f.count} stack samples)",
            value=f.share,
            unit=words.SHARE_OF_SAMPLES,
        )
        for f in hot_functions(rank.record, {"startup": None})[:1]
    ]


RULE = Rule(code="RUN003", name="startup-slow", page=PAGE, check=check)
