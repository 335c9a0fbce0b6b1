"""compute.threads: as many compute threads as there are cores for them."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
On a CPU, more threads than cores take turns, and small operators lose more in sharing out work than they gain by it.
Proposed where cores are oversubscribed, and where steps consist of small operators.

Numeric: sums are split otherwise, and rounded otherwise.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    if not situation.facts.on_cpu or situation.setting("compute", "num_threads"):
        return []
    crowded, small = situation.finding("HOST001"), situation.finding("COMP002")
    now = int(situation.facts.first.record.meta.get("threads") or 0)
    wanted = situation.cores if crowded else 1
    found = crowded or small
    if found is None or wanted == now:
        return []
    return [
        Candidate(
            remedy="compute.threads",
            recipe={"compute": {"num_threads": wanted}},
            safety="numeric",
            predicted=crowded.gain if crowded else None,
            why=found.summary,
        )
    ]


REMEDY = Remedy(id="compute.threads", page=PAGE, candidates=_candidates)
