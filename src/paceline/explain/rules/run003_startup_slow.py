"""RUN003: does it take long until the first step?"""

from __future__ import annotations

from paceline import units
from paceline.explain.breakdown import hot_functions
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEAST_S = 2.0
_LEAST_SHARE = 0.25

PAGE = """
## What it means

The program does a lot before its first step: indexing a data set, building a model, compiling, downloading.
Every start and every restart pays it.

## How it is decided

From the moment torch had been imported to the first batch, forward or backward it takes at least 2 s and at
least a quarter of the time until now, without the time that importing modules took (a module counts with at most
0.1 s). A longer run dilutes it: the share is that of this run.

## What helps

`startup.cache`: keep the index or the preprocessed data on disk. `startup.lazy`: do it when it is needed, or in
the workers.
"""


def check(facts: Facts) -> Finding | None:
    """Decide RUN003."""
    rank, meta = facts.first, facts.first.record.meta
    imported, first = meta.get("imported_ns"), meta.get("first_ns")
    if imported is None or first is None or facts.wall_s is None:
        return None
    setup_s = (first - imported - meta.get("imports_ns", 0)) / 1e9
    share = setup_s / facts.wall_s
    if setup_s < _LEAST_S or share < _LEAST_SHARE:
        return None
    text = (
        f"{units.seconds(setup_s)} of work between the import of torch and the first batch, of "
        f"{units.seconds(facts.wall_s)} in all (1 run)"
    )
    gain = gain_of_removing(share, 0.3, 0.95)
    return Finding(
        code="RUN003",
        name="startup-slow",
        severity="warning",
        confidence="high",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[Evidence(text=text, value=setup_s, unit="s"), *_where(rank)],
        remedies=[
            Remedy(
                id="startup.cache",
                safety="exact",
                change="keep what is worked out at the start on disk and load it",
                gain=gain,
            ),
            Remedy(
                id="startup.lazy",
                safety="exact",
                change="work it out when it is needed, or in the loader's workers",
                gain=gain,
            ),
        ],
        summary=f"{units.percent(share)} of this run went by before the first step",
    )


def _where(rank: RankFacts) -> list[Evidence]:
    return [
        Evidence(
            text=f"{units.percent(f.share)} of stack samples before the first step are in {f.function} "
            f"({f.count} samples)",
            value=f.share,
            unit="share of samples",
        )
        for f in hot_functions(rank.record, {"startup": None})[:1]
    ]


RULE = Rule(code="RUN003", name="startup-slow", page=PAGE, check=check)
