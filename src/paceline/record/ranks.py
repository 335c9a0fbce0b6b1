"""Select the training processes that are the ranks of a run.

The processes of a distributed job are its ranks. After a restart a rank has several attempts; the attempt that trained
longest is analysed. Processes without a process group are ranks of one run only if they train at the same time; of
processes that ran one after the other, the one that trained longest is analysed. Wall-clock times are used to compare
processes on different hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.record.run import Launch, Rank

_TOGETHER = 0.5  # least share of the longest process's training time in which a process must train too, to be a rank
_MOST_NAMED = 4
_MOST_SWITCHES = 8  # from one training thread to another, such as a new thread for each epoch
_SWITCHES_PER_STEP = 0.01
_CLOCK_S = 1.0  # seconds by which the clocks of hosts may differ


@dataclass(frozen=True, kw_only=True)
class RankSelection:
    """The training processes of a run, divided into ranks and others. Each process made at least one step."""

    ranks: Sequence[Rank]  # rank numbers from 0, or from the process group
    other_attempts: Sequence[Rank] = ()  # earlier or later attempts of the same ranks
    beside: Sequence[Rank] = ()  # processes that are not ranks of this job
    problems: Sequence[str] = ()  # sentences about the processes that were left out


def select_ranks(trained: Sequence[Rank]) -> RankSelection:
    """Select the ranks among the processes that made at least one step."""
    ordered = sorted(trained, key=_started_unix_s)
    joined = [r for r in ordered if _is_joined(r)]
    if joined:
        return _of_job(joined, [r for r in ordered if not _is_joined(r)])
    return _of_processes(ordered) if ordered else RankSelection(ranks=())


def of_last_command(
    launches: Sequence[Launch], trained: Sequence[Rank]
) -> tuple[Sequence[Launch], Sequence[Rank], Sequence[Rank]]:
    """Divide the commands and processes of a run folder into the last use of the run id and earlier uses.

    A command that starts after all earlier commands have ended is a new use. The commands of several hosts overlap in
    time, so they are one use.

    Args:
        launches: All commands of a run.
        trained: All processes that made a step.

    Returns:
        The commands of the last use, its processes, and the processes of earlier uses. If no process of the last use
        has trained, all commands and processes count as one use.
    """
    begun, ended = 0.0, 0.0
    for launch in sorted(launches, key=lambda one: one.started_unix_s):
        if launch.started_unix_s >= ended:
            begun = launch.started_unix_s
        ended = max(ended, math.inf if launch.wall_s is None else launch.started_unix_s + launch.wall_s)
    last = [rank for rank in trained if _started_unix_s(rank) >= begun - _CLOCK_S]
    if not last or len(last) == len(trained):
        return launches, trained, ()
    earlier = [rank for rank in trained if _started_unix_s(rank) < begun - _CLOCK_S]
    return [one for one in launches if one.started_unix_s >= begun], last, earlier


def in_several_threads(ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence about each process in which several threads train in turn; only one of them is recorded."""
    return [
        f"several threads of process {rank.pid} train at the same time; steps are recorded in one of them at a time, "
        "so the numbers of steps and samples are too small, and the verdict can be wrong"
        for rank in ranks
        if isinstance(found := rank.summary.get("thread_switches"), int)
        and found >= max(_MOST_SWITCHES, rank.count * _SWITCHES_PER_STEP)
    ]


def _is_joined(rank: Rank) -> bool:
    return bool(rank.meta.get("distributed")) or rank.world > 1


def trained_s(rank: Rank) -> float:
    """Return the total duration of a process's steps, in seconds."""
    walls = rank.steps["wall_s"].astype(np.float64)
    return float(walls.mean()) * rank.count if len(walls) else 0.0


def _of_job(joined: Sequence[Rank], alone: Sequence[Rank]) -> RankSelection:
    jobs = _jobs(joined)
    chosen = max(enumerate(jobs), key=lambda pair: (min(trained_s(r) for r in pair[1].values()), pair[0]))[1]
    ranks = tuple(chosen[number] for number in sorted(chosen))
    others = tuple(r for r in joined if chosen.get(r.rank) is not r)
    left_out = [
        f"process {r.pid} trained alone beside the {len(ranks)} ranks; it was left out" for r in alone[:_MOST_NAMED]
    ]
    return RankSelection(
        ranks=ranks, other_attempts=others, beside=tuple(alone), problems=left_out + _restarts(ranks, others)
    )


def _restarts(ranks: Sequence[Rank], others: Sequence[Rank]) -> list[str]:
    if not others:
        return []
    first = ranks[0]
    attempts = [first, *(r for r in others if r.rank == first.rank)]
    total = sum(r.count for r in attempts)
    return [
        f"rank {first.rank} made {total} steps in {len(attempts)} lives (restarts, or jobs one after the other); this "
        f"report is of the longest, with {first.count} steps"
    ]


def _jobs(joined: Sequence[Rank]) -> list[dict[int, Rank]]:
    """Group processes, in the order of their start, into jobs whose ranks trained together.

    A process with a rank number that the group already has starts a new group, unless another rank of the group still
    trains. In that case only this rank was restarted: its longer attempt counts.
    """
    jobs: list[dict[int, Rank]] = []
    for rank in joined:
        now = jobs[-1] if jobs else None
        if now is None or (rank.rank in now and not _still_trains(now, rank)):
            jobs.append({rank.rank: rank})
        elif rank.rank not in now or trained_s(rank) >= trained_s(now[rank.rank]):
            now[rank.rank] = rank
    return jobs


def _still_trains(job: dict[int, Rank], beside: Rank) -> bool:
    begun = _span_unix_s(beside)[0]
    return any(_span_unix_s(r)[1] > begun for number, r in job.items() if number != beside.rank)


def _of_processes(ordered: Sequence[Rank]) -> RankSelection:
    longest = max(ordered, key=trained_s)
    together = [r for r in ordered if r is longest or _shared(longest, r) >= _TOGETHER]
    beside = tuple(r for r in ordered if all(r is not one for one in together))
    ranks = tuple(replace(r, rank=number) for number, r in enumerate(together))
    return RankSelection(ranks=ranks, beside=beside, problems=_left_out(longest, beside))


def _shared(longest: Rank, other: Rank) -> float:
    """Return the share of the longest process's training time in which the other process trained too."""
    begin, end = _span_unix_s(longest)
    from_s, until_s = _span_unix_s(other)
    shared = min(end, until_s) - max(begin, from_s)
    return max(0.0, min(shared, trained_s(other))) / (end - begin) if end > begin else 1.0


def _left_out(longest: Rank, beside: Sequence[Rank]) -> list[str]:
    if not beside:
        return []
    named = ", ".join(f"process {r.pid} ({r.count} steps)" for r in beside[:_MOST_NAMED])
    more = f" and {len(beside) - _MOST_NAMED} more" if len(beside) > _MOST_NAMED else ""
    return [
        f"{1 + len(beside)} processes trained, each on its own and not at the same time; this report is of process "
        f"{longest.pid} ({longest.count} steps), and leaves out {named}{more}"
    ]


def _span_unix_s(rank: Rank) -> tuple[float, float]:
    """Return the start and end of a process's steps, in seconds since 1970."""
    offset = int(rank.meta.get("epoch_offset_ns") or 0)
    end_ns = int(rank.steps["end_ns"][-1])
    first_ns = rank.meta.get("first_ns") or end_ns - round(1e9 * trained_s(rank))
    return (int(first_ns) + offset) / 1e9, (end_ns + offset) / 1e9


def _started_unix_s(rank: Rank) -> float:
    started = rank.meta.get("started_unix_s")
    return float(started) if isinstance(started, (int, float)) else 0.0
