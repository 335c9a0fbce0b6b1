"""Tunes the number of threads, readers and ready batches. One is raised at a time, and kept if training gets faster.

What is raised follows from what was seen while the training waited (operational analysis: Denning and Buzen, "The
operational analysis of queueing network models", 1978): threads that wait for blocks want readers; threads that do
nothing, because as much is ready as may be, want more room; threads that work all the time want more threads, as many
as

    seconds of a thread for a batch / seconds of the training for a batch

Whether it was right is measured: windows with and without it in turns, and it stays if the rate of all of them rose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Knob = Literal["threads", "readers", "ready"]
_SHOWS = 0.02  # share of time that the training waits, below which nothing is to be had
_READS = 0.2  # share of the time of threads in which they wait for blocks, from which on readers are too few
_IDLE = 0.8  # share of their time in which threads work, below which they lack room
_CLEAR = 1.25  # a gain that needs no second look
_WORSE = 0.9  # a loss that needs none
_PAYS = 1.03  # what both looks together have to gain
_REST = 8  # windows in which what did not pay is not tried again; twice as many each time
_LONGEST_REST = 512
_SHOWN = 32  # changes that are remembered


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How much is done at a time."""

    threads: int  # that make batches
    readers: int  # that read blocks
    ready: int  # batches that may wait for the training, beside those in the making

    @property
    def ahead(self) -> int:
        """Batches that are made or wait at a time, at most."""
        return max(1, self.threads) + self.ready


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Between what each may be; what the user has set has both ends alike."""

    least: Pace
    most: Pace


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was seen for a while at one pace."""

    batches: int  # that the training took
    wall_s: float
    waited_s: float  # of it, by the training for batches
    made: int  # batches
    making_s: float  # of all threads, in which they made them
    reading_s: float  # of that, waiting for blocks
    crowded: float = 0.0  # cores of our share that others are busy on

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.batches / self.wall_s

    @property
    def wait_share(self) -> float:
        """Share of the time in which the training waits."""
        return self.waited_s / self.wall_s


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that was tried, or had to be."""

    knob: Knob
    before: int
    after: int
    times: float | None  # the rate with it, as a multiple of that without; None: it was not asked
    kept: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class PaceTrial:
    """Something that is being tried: rates without it and with it, in turns."""

    knob: Knob
    before: Pace
    after: Pace
    why: str
    rates: tuple[float, ...]  # the first without


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Where it has got to."""

    pace: Pace
    trial: PaceTrial | None = None
    rests: Mapping[Knob, tuple[int, int]] = field(default_factory=dict)  # windows left of each rest, and its length
    crowded_before: bool = False  # in the window before this one
    changes: Sequence[Change] = ()


def slowed(pace: Pace, most: Pace) -> Pace:
    """Return a pace that is nowhere beyond another."""
    return Pace(
        threads=min(pace.threads, most.threads),
        readers=min(pace.readers, most.readers),
        ready=min(pace.ready, most.ready),
    )


def tuned(now: Tuning, seen: Window, bounds: Bounds) -> Tuning:
    """Return what follows from one more window."""
    rested = replace(now, rests={knob: (max(0, left - 1), length) for knob, (left, length) in now.rests.items()})
    # how many threads there may be beside what others do on our cores
    allowed = max(bounds.least.threads, math.floor(bounds.most.threads - seen.crowded + 0.25))
    too_many = now.pace.threads > allowed
    if too_many and now.crowded_before:
        return _backed_off(rested, allowed, seen.crowded)
    rested = replace(rested, crowded_before=too_many)
    if rested.trial is not None:
        return _judged(rested, rested.trial, seen.rate)
    if seen.wait_share < _SHOWS:
        return rested
    return _begun(rested, seen, bounds, allowed)


def _backed_off(now: Tuning, allowed: int, crowded: float) -> Tuning:
    change = Change(
        knob="threads",
        before=now.pace.threads,
        after=allowed,
        times=None,
        kept=True,
        why=f"other processes use {crowded:.1f} of the cores",
    )
    pace = replace(now.pace, threads=allowed)
    return replace(now, pace=pace, trial=None, crowded_before=False, changes=_with(now, change))


def _begun(now: Tuning, seen: Window, bounds: Bounds, allowed: int) -> Tuning:
    """Begin to try what most likely helps, if there is such a thing."""
    for knob, value, why in _wanted(now.pace, seen, bounds, allowed):
        if value > getattr(now.pace, knob) and not now.rests.get(knob, (0, 0))[0]:
            after = replace(now.pace, **{knob: value})
            trial = PaceTrial(knob=knob, before=now.pace, after=after, why=why, rates=(seen.rate,))
            return replace(now, pace=after, trial=trial)
    return now


def _wanted(pace: Pace, seen: Window, bounds: Bounds, allowed: int) -> list[tuple[Knob, int, str]]:
    """Return what could be raised, to what and why, the likeliest first."""
    found: list[tuple[Knob, int, str]] = []
    busy = seen.making_s / max(pace.threads * seen.wall_s, 1e-9)
    reading = seen.reading_s / max(seen.making_s, 1e-9)
    if reading > _READS:
        why = f"threads wait {reading:.0%} of their time for blocks"
        found.append(("readers", min(bounds.most.readers, 2 * max(1, pace.readers)), why))
    if busy < _IDLE:
        why = f"threads work {busy:.0%} of the time, and training waits for data"
        found.append(("ready", min(bounds.most.ready, 2 * max(1, pace.ready)), why))
    if reading <= _READS or pace.readers >= bounds.most.readers:
        why = f"training waits {seen.wait_share:.0%} of the time for data"
        found.append(("threads", min(allowed, _enough(pace, seen)), why))
    return found


def _enough(pace: Pace, seen: Window) -> int:
    """Return as many threads as keep up with the training, but no more than four times those there are."""
    training_s = max(seen.wall_s - seen.waited_s, 1e-9) / seen.batches
    needed = math.ceil(seen.making_s / max(1, seen.made) / training_s)
    return max(pace.threads + 1, min(needed, 4 * pace.threads))


def _judged(now: Tuning, trial: PaceTrial, rate: float) -> Tuning:
    rates = (*trial.rates, rate)
    if len(rates) == 3:  # once more with it
        return replace(now, pace=trial.after, trial=replace(trial, rates=rates))
    times = sum(rates[1::2]) / sum(rates[::2])
    if len(rates) == 2 and _WORSE <= times < _CLEAR:  # once more without it
        return replace(now, pace=trial.before, trial=replace(trial, rates=rates))
    return _ended(now, trial, times)


def _ended(now: Tuning, trial: PaceTrial, times: float) -> Tuning:
    knob, kept = trial.knob, times >= _PAYS
    before, after = getattr(trial.before, knob), getattr(trial.after, knob)
    change = Change(knob=knob, before=before, after=after, times=times, kept=kept, why=trial.why)
    rest = 0 if kept else min(_LONGEST_REST, max(_REST, 2 * now.rests.get(knob, (0, 0))[1]))
    return replace(
        now,
        pace=trial.after if kept else trial.before,
        trial=None,
        rests={**now.rests, knob: (rest, rest)},
        changes=_with(now, change),
    )


def _with(now: Tuning, change: Change) -> Sequence[Change]:
    return (*now.changes, change)[-_SHOWN:]
