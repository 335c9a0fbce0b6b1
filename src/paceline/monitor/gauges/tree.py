"""The CPU time and memory of the run's process tree, including the time of processes that have ended.

    cpu_s(tree) = sum over living members of (own time + time of children they have waited for) + retired

When a member ends, its time moves into its parent's waited-for time, so the sum does not change. The parent of a root
is the keeper, which is the sampling process; time that moves to the keeper is added to `retired`. If the time moves
nowhere (the parent has ended, or ignores SIGCHLD), the last reading of the ended process is kept, so the sum never
falls. CPU time after the last reading is then lost: at most one interval of one process.

A process belongs to the tree if its parent does, or if it is in a process group or session that a member leads (for
example a daemon whose parent ended before it was read). A member stays a member when its parent ends. A process that
was read and is not a member cannot become one later. Therefore only new processes and members are read: a walk costs a
listing of /proc and one small file per member. (Some kernels have no /proc/PID/task/TID/children.)
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.hardware.operating_system import HostFiles

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_RELEARN_EVERY = 30  # walks after which non-members are read again, because process numbers are reused


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process as in /proc/PID/stat. Times are in clock ticks, memory in pages."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    own_ticks: int
    children_ticks: int  # of children that the process has waited for
    threads: int
    started_ticks: int  # since boot; together with the pid, this identifies a process
    rss_pages: int

    @property
    def total_ticks(self) -> int:
        """CPU time of the process and of the children it has waited for, in ticks."""
        return self.own_ticks + self.children_ticks


@dataclass(frozen=True, kw_only=True)
class TreeReading:
    """The CPU time, memory, processes and threads of a process tree at one time."""

    cpu_s: float  # since an arbitrary time: only differences have a meaning
    rss_bytes: int  # sum over processes; a page shared by several processes counts in each
    pids: frozenset[int]
    threads: int


def parse_stat(pid: int, text: str | None) -> Process | None:
    """Parse the text of /proc/PID/stat; None if it is incomplete. Process names can contain spaces and brackets."""
    fields = (text or "").rpartition(")")[2].split()
    if len(fields) < 22:
        return None
    return Process(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        own_ticks=int(fields[11]) + int(fields[12]),
        children_ticks=int(fields[13]) + int(fields[14]),
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def read_process(files: HostFiles, pid: int) -> Process | None:
    """Return a process that exists now (also a zombie), or None."""
    return parse_stat(pid, files.read(f"/proc/{pid}/stat"))


class ProcessTree:
    """The processes that descend from the given roots, followed over time."""

    def __init__(self, files: HostFiles, roots: Iterable[int], keeper: int = 0) -> None:
        """Follow the roots. ``keeper`` is the process that waits for the roots, if it is not a root itself."""
        self._files = files
        self._roots = set(roots)
        self._keeper = keeper
        self._kept_ticks = self._ticks_of_the_dead()
        self._members: dict[int, Process] = {}
        self._strangers: set[int] = set()
        self._retired_ticks = 0
        self._walks = 0

    def add_roots(self, pids: Iterable[int]) -> None:
        """Add root processes. The CPU time that these processes have used so far does not count."""
        new = set(pids) - self._roots
        if new:
            self._roots |= new
            self._walks = 0  # read all processes again: a non-member may be a descendant of a new root

    def walk(self) -> TreeReading:
        """Read the current processes and return the CPU time and memory of the tree."""
        numbers = {int(name) for name in self._files.names("/proc") if name.isdigit()}
        relearn = self._walks % _RELEARN_EVERY == 0
        self._walks += 1
        known, before = self._strangers & numbers, self._members
        after = self._survivors(numbers)
        self._adopt(after, numbers - after.keys() - (set() if relearn else known), known)
        self._retire(before, after)
        self._members = after
        self._strangers = numbers - after.keys()
        return self._reading()

    def _survivors(self, numbers: set[int]) -> dict[int, Process]:
        alive = {}
        for pid in self._members.keys() & numbers:
            now = read_process(self._files, pid)
            if now is not None and now.started_ticks == self._members[pid].started_ticks:
                alive[pid] = now
        return alive

    def _adopt(self, members: dict[int, Process], numbers: set[int], known: set[int]) -> None:
        """Add the processes that belong to the tree. Of previously ``known`` processes, only later CPU time counts."""
        found = (read_process(self._files, pid) for pid in numbers)
        waiting = {each.pid: each for each in found if each is not None}
        ours = {pid for pid, each in waiting.items() if self._belongs(each, members)}
        while ours:
            for pid in ours:
                members[pid] = waiting.pop(pid)
                if pid in known:
                    self._retired_ticks -= members[pid].total_ticks
            ours = {pid for pid, each in waiting.items() if self._belongs(each, members)}

    def _belongs(self, process: Process, members: dict[int, Process]) -> bool:
        return process.pid in self._roots or any(
            leader in members for leader in (process.parent, process.group, process.session)
        )

    def _retire(self, before: dict[int, Process], after: dict[int, Process]) -> None:
        """Retain the CPU time of ended members, unless a living member's waited-for time includes it."""
        owed: defaultdict[int, int] = defaultdict(int)
        for pid in before.keys() - after.keys():
            owed[_heir(before[pid], before, after)] += before[pid].total_ticks
        kept, self._kept_ticks = self._kept_ticks, self._ticks_of_the_dead()
        for heir, ticks in owed.items():
            if heir == self._keeper:
                self._retired_ticks += max(ticks, self._kept_ticks - kept)
            else:
                self._retired_ticks += max(0, ticks - _inherited(heir, before, after))

    def _ticks_of_the_dead(self) -> int:
        keeper = read_process(self._files, self._keeper) if self._keeper else None
        return keeper.children_ticks if keeper else 0

    def _reading(self) -> TreeReading:
        members = self._members.values()
        ticks = sum(each.total_ticks for each in members) + self._retired_ticks
        return TreeReading(
            cpu_s=ticks / TICKS_PER_S,
            rss_bytes=sum(each.rss_pages for each in members) * PAGE_BYTES,
            pids=frozenset(self._members),
            threads=sum(each.threads for each in members),
        )


def _heir(dead: Process, before: dict[int, Process], after: dict[int, Process]) -> int:
    """Return the pid of the closest living ancestor; this is a process outside the tree if no ancestor in it lives."""
    parent = dead.parent
    while parent in before and parent not in after:
        parent = before[parent].parent
    return parent


def _inherited(heir: int, before: dict[int, Process], after: dict[int, Process]) -> int:
    if heir not in after or heir not in before:
        return 0
    return after[heir].children_ticks - before[heir].children_ticks
