"""Tuning of the numbers of threads, readers and ready batches: one is raised at a time, and kept if training is faster.

The choice follows from measurements while the training waited (operational analysis: Denning and Buzen, "The
operational analysis of queueing network models", 1978). If threads wait for blocks, readers are raised. If threads are
idle because enough batches are ready, the limit of ready batches is raised. If threads are busy, their number is raised
up to

    seconds of a thread for a batch / seconds of the training for a batch

The change is then measured in alternating windows with and without it, and kept if the mean rate is higher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Knob = Literal["threads", "readers", "ready"]
_SHOWS = 0.02  # the training's share of waiting, below which nothing is tried
_READS = 0.2  # the threads' share of waiting for blocks, above which readers are raised
_IDLE = 0.8  # the threads' share of work, below which ready batches are raised
_CLEAR = 1.25  # a speed-up that needs no second measurement
_WORSE = 0.9  # a slow-down that needs no second measurement
_PAYS = 1.03  # the least speed-up of a change that is kept
_REST = 8  # windows before a rejected change is tried again; doubles each time
_LONGEST_REST = 512
_SHOWN = 32  # changes that are kept for the report


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The numbers of threads, readers and ready batches."""

    threads: int  # that make batches
    readers: int  # that read blocks
    ready: int  # batches that may wait for the training, besides those being made

    @property
    def ahead(self) -> int:
        """The most batches that are being made or waiting."""
        return max(1, self.threads) + self.ready


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of a pace. If the user sets a number, its lower and upper limits are equal."""

    least: Pace
    most: Pace


@dataclass(frozen=True, kw_only=True)
class Window:
    """Measurements of a period in which the numbers of threads, readers and ready batches were constant."""

    batches: int  # taken by the training
    wall_s: float
    waited_s: float  # the part of `wall_s` in which the training waited for batches
    made: int  # batches made by threads
    making_s: float  # summed over the threads that made batches
    reading_s: float  # the part of `making_s` in which threads waited for blocks
    crowded: float = 0.0  # cores of this rank's share that other processes use

    @property
    def rate(self) -> float:
        """The rate of the training, in batches per second."""
        return self.batches / self.wall_s

    @property
    def wait_share(self) -> float:
        """The share of the time in which the training waits for batches."""
        return self.waited_s / self.wall_s


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one of the numbers in `Pace` that was tried, or that other processes forced."""

    knob: Knob
    before: int
    after: int
    times: float | None  # the speed-up; None if it was not measured
    kept: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class PaceTrial:
    """A change of the pace that is being measured."""

    knob: Knob
    before: Pace
    after: Pace
    why: str
    rates: tuple[float, ...]  # of the windows without and with the change, alternating


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The state of the tuning: the pace, the change that is being measured, and earlier changes."""

    pace: Pace
    trial: PaceTrial | None = None
    rests: Mapping[Knob, tuple[int, int]] = field(default_factory=dict)  # windows without tries: left, all
    crowded_before: bool = False  # whether the previous window was crowded
    changes: Sequence[Change] = ()


def slowed(pace: Pace, most: Pace) -> Pace:
    """Return a pace whose numbers are limited to those of `most`."""
    return Pace(
        threads=min(pace.threads, most.threads),
        readers=min(pace.readers, most.readers),
        ready=min(pace.ready, most.ready),
    )


def tuned(now: Tuning, seen: Window, bounds: Bounds) -> Tuning:
    """Return the state of the tuning after one more window of measurements."""
    rested = replace(now, rests={knob: (max(0, left - 1), length) for knob, (left, length) in now.rests.items()})
    # the most threads, given the cores that other processes use
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
    """Return the state in which the most promising change is tried, or the same state if there is no such change."""
    for knob, value, why in _wanted(now.pace, seen, bounds, allowed):
        if value > getattr(now.pace, knob) and not now.rests.get(knob, (0, 0))[0]:
            after = replace(now.pace, **{knob: value})
            trial = PaceTrial(knob=knob, before=now.pace, after=after, why=why, rates=(seen.rate,))
            return replace(now, pace=after, trial=trial)
    return now


def _wanted(pace: Pace, seen: Window, bounds: Bounds, allowed: int) -> list[tuple[Knob, int, str]]:
    """Return the possible changes, the most promising first: what to raise, its new value, and the reason."""
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
    """Return the number of threads that keep up with the training, at most four times the current number."""
    training_s = max(seen.wall_s - seen.waited_s, 1e-9) / seen.batches
    needed = math.ceil(seen.making_s / max(1, seen.made) / training_s)
    return max(pace.threads + 1, min(needed, 4 * pace.threads))


def _judged(now: Tuning, trial: PaceTrial, rate: float) -> Tuning:
    rates = (*trial.rates, rate)
    if len(rates) == 3:  # a second window with the change
        return replace(now, pace=trial.after, trial=replace(trial, rates=rates))
    times = sum(rates[1::2]) / sum(rates[::2])
    if len(rates) == 2 and _WORSE <= times < _CLEAR:  # a second window without the change
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
