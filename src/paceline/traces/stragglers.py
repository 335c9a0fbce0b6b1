"""Which ranks make the others wait? Those that come last to collectives, by the time that is waited for them.

A rank that is never last is no straggler, however late its kernels start. Of w_c, the time for which all others wait
together in collective c, each rank is answerable for those in which it is last. It is named where that is at least a
tenth of all waiting, and more than one rank in n would have by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.traces.collectives import Collective

_WORTH = 0.1  # of all waiting


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that others wait for."""

    rank: int
    last_in: int  # collectives
    of: int
    caused_ns: int  # waiting of all others together
    share: float  # of all waiting


def stragglers(collectives: Sequence[Collective], ranks: int) -> list[Straggler]:
    """Return who is waited for, the worst first.

    Args:
        collectives: As matched.
        ranks: That were compared.
    """
    waited = sum(one.waited_ns for one in collectives)
    if not waited or ranks < 2:
        return []
    found = []
    for rank in sorted({one.last for one in collectives}):
        own = [one for one in collectives if one.last == rank]
        caused = sum(one.waited_ns for one in own)
        if caused >= max(_WORTH, 1 / ranks) * waited:
            found.append(
                Straggler(rank=rank, last_in=len(own), of=len(collectives), caused_ns=caused, share=caused / waited)
            )
    return sorted(found, key=lambda one: -one.caused_ns)
