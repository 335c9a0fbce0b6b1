"""DATA005: is handing batches over the limit, not making samples?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH, Supply, is_jitter, is_transport, receiving_s, waiting_rank

PAGE = """
## What it means

Samples are made quickly, but turning them into batches and moving those to the training process is slow: the
collate function, pickling, shared memory, or the thread that pins memory.

## How it is decided

Training waits for data for at least 5 % of step time, the loader has workers, and collating, the workers'
sending threads and the training thread's receiving together take more time than making the samples (by a fifth
or more).

## What helps

`loader.collate`: a collate function that writes into one preallocated tensor, without Python per sample.
`loader.smaller_batches_in_flight`: send smaller types (uint8 instead of float32, converted on the device).
`loader.threads`: threads instead of processes need no hand-over at all where making samples frees the
interpreter lock.
"""


def check(facts: Facts) -> Finding | None:
    """Decide DATA005."""
    waiting = waiting_rank(facts)
    if waiting is None:
        return None
    rank, supply = waiting
    if supply.steady_share < WORTH or is_jitter(rank) or not is_transport(rank, supply):
        return None
    share = supply.steady_share
    return Finding(
        code="DATA005",
        name="loader-transport-bound",
        severity="critical" if share >= 0.2 else "warning",
        confidence="medium",
        time_share=share,
        gain=gain_of_removing(share, 0.3, 0.85),
        ranks=[rank.record.rank],
        evidence=_evidence(rank, supply),
        remedies=_remedies(rank, share),
        summary=f"collating and handing batches over is slower than making samples; training waits "
        f"{units.percent(share)} of its time",
    )


def _remedies(rank: RankFacts, share: float) -> list[Remedy]:
    collate = Remedy(
        id="loader.collate",
        safety="exact",
        change=f"rewrite the collate function {rank.loader.settings.get('collate_fn') if rank.loader else ''} "
        f"without Python per sample",
        gain=gain_of_removing(share, 0.3, 0.85),
    )
    types = Remedy(
        id="loader.types",
        safety="exact",
        change="hand over small types (uint8) and convert on the device",
        gain=gain_of_removing(share, 0.2, 0.7),
    )
    threads = Remedy(
        id="loader.threads",
        safety="exact",
        change="make batches in threads, which need no hand-over",
        gain=gain_of_removing(share, 0.2, 0.85),
    )
    slow_collate = rank.loader is not None and rank.loader.collate >= 0.5
    return [collate, types, threads] if slow_collate else [types, threads, collate]


def _evidence(rank: RankFacts, supply: Supply) -> list[Evidence]:
    found = [words.share_of_step(supply.steady_share, "waiting for data")]
    if rank.loader is not None:
        found += [*words.collating(rank.loader), *words.hot(rank.loader)]
    text = f"handing over costs the workers {units.seconds(supply.hand_over_s)} of CPU time a step"
    found.append(Evidence(text=text, value=supply.hand_over_s, unit="s"))
    receive = receiving_s(rank)
    text = f"receiving costs the training thread {units.seconds(receive)} of CPU time a step"
    return [*found, Evidence(text=text, value=receive, unit="s")]


RULE = Rule(code="DATA005", name="loader-transport-bound", page=PAGE, check=check)
