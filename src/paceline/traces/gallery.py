"""Which ranks are worth a picture, and what ran on them? They are read once more: summaries hold no events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.traces.many import Traces
from paceline.traces.picture import Packed, packed, picture_of
from paceline.traces.summary import RankTrace, captures_of
from paceline.traces.window import events_in

MOST_RANKS, MOST_EVENTS = 8, 1_500_000  # of several ranks; of a single one all events are shown


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pictures, and how many ranks have none."""

    packed: Packed
    left_out: int


def gallery_of(traces: Traces) -> Gallery | None:
    """Return pictures of the ranks that stand out; None where nothing ran on a GPU."""
    chosen = chosen_of(traces)
    pictures = []
    for rank in chosen:
        for capture in captures_of(Path(rank.source)):
            if capture.device == rank.device:
                moved = traces.matched.offsets_ns.get(rank.rank, 0) if rank.rank is not None else 0
                pictures.append(picture_of(capture, events_in(capture, rank.window), rank.title, moved))
    made = packed(pictures)
    return Gallery(packed=made, left_out=len(traces.ranks) - len(chosen)) if made is not None else None


def chosen_of(traces: Traces) -> list[RankTrace]:
    """Return who is waited for, then those that are idle most, as many as a page can hold, in order."""
    waited_for = {one.rank: place for place, one in enumerate(traces.stragglers)}

    def standing_out(rank: RankTrace) -> tuple[float, float]:
        place = waited_for.get(rank.rank, len(waited_for)) if rank.rank is not None else len(waited_for)
        return place, -(rank.breakdown.idle_ns / rank.breakdown.span_ns if rank.breakdown.span_ns else 0.0)

    chosen: list[RankTrace] = []
    events = 0
    for rank in sorted(traces.ranks, key=standing_out)[:MOST_RANKS]:
        events += rank.breakdown.events
        if not chosen or events <= MOST_EVENTS:
            chosen.append(rank)
    places = {id(rank) for rank in chosen}
    return [rank for rank in traces.ranks if id(rank) in places]
