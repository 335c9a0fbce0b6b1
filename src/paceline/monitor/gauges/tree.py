"""How much CPU time and memory does our own process tree use, and what do its dead leave behind?

    cpu_s(tree) = sum over living members of (own time + time of children they have waited for) + retired

When a member dies, its time moves into its parent's waited-for time; the sum does not change. A root's parent is the
keeper, the process that we run in: what moves to it is kept as `retired`. Where nothing moves (the parent is gone, or
ignores SIGCHLD so that nothing is added up), what the dead last showed is kept, so the sum never falls. What it used
after we last looked is then lost: at most one interval of one process.

A process belongs to the tree when its parent does, or when it is in a process group or session that a member leads
(a daemon whose parent was gone before we looked). Once in, it stays in when its parent dies. A process that was seen
and is no member cannot become one later, so only new numbers and members are read again: the walk costs a listing of
/proc and one small file a member. (Not every kernel has /proc/PID/task/TID/children.)
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.hardware.operating_system import HostFiles

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_RELEARN_EVERY = 30  # walks, after which strangers are looked at anew: process numbers get reused


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process, as /proc/PID/stat shows it. Times in clock ticks, memory in pages."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    own_ticks: int
    children_ticks: int  # of children that were waited for
    threads: int
    started_ticks: int  # since boot: with the number, this names a process for good
    rss_pages: int

    @property
    def total_ticks(self) -> int:
        """CPU time of the process and of the children it has waited for."""
        return self.own_ticks + self.children_ticks


@dataclass(frozen=True, kw_only=True)
class TreeReading:
    """The tree at one moment."""

    cpu_s: float  # since some moment in the past: only differences mean something
    rss_bytes: int  # sum over processes; a page that several share counts in each
    pids: frozenset[int]
    threads: int


def parse_stat(pid: int, text: str | None) -> Process | None:
    """Read the text of /proc/PID/stat; None where it is missing or cut short. The name may hold spaces and brackets."""
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
    """Return a process that is there now, zombies included."""
    return parse_stat(pid, files.read(f"/proc/{pid}/stat"))


class ProcessTree:
    """The processes that descend from some roots, followed over time."""

    def __init__(self, files: HostFiles, roots: Iterable[int], keeper: int = 0) -> None:
        """Follow the roots; `keeper` is the process that waits for their end, where that is not one of them."""
        self._files = files
        self._roots = set(roots)
        self._keeper = keeper
        self._kept_ticks = self._ticks_of_the_dead()
        self._members: dict[int, Process] = {}
        self._strangers: set[int] = set()
        self._retired_ticks = 0
        self._walks = 0

    def add_roots(self, pids: Iterable[int]) -> None:
        """Let more processes be roots; what they have used until now does not count."""
        new = set(pids) - self._roots
        if new:
            self._roots |= new
            self._walks = 0  # a stranger may turn out to be theirs

    def walk(self) -> TreeReading:
        """Look at the processes that there are now."""
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
        """Add those of the numbers that belong to the tree; of those known before, only what they use from now on."""
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
        """Keep the time of members that died and that no living member has taken over."""
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
    """Return the closest ancestor that still lives; one outside the tree when no member does."""
    parent = dead.parent
    while parent in before and parent not in after:
        parent = before[parent].parent
    return parent


def _inherited(heir: int, before: dict[int, Process], after: dict[int, Process]) -> int:
    if heir not in after or heir not in before:
        return 0
    return after[heir].children_ticks - before[heir].children_ticks
