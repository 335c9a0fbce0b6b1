from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from paceline.hardware.operating_system import LocalFiles
from paceline.monitor.gauges.tree import PAGE_BYTES, TICKS_PER_S, ProcessTree, parse_stat, read_process


class Processes:
    """A /proc that the test writes: pid -> (parent, own ticks, ticks of children waited for)."""

    def __init__(self):
        self.table: dict[int, dict[str, int]] = {}

    def put(self, pid, **facts):
        default = {"parent": 1, "own": 0, "children": 0, "group": pid, "session": 0, "started": 0, "rss": 10}
        self.table[pid] = default | facts

    def gone(self, *pids):
        for pid in pids:
            del self.table[pid]

    def names(self, folder):
        assert folder == "/proc"
        return [*map(str, self.table), "self", "meminfo"]

    def read(self, path):
        pid = int(path.split("/")[2])
        if pid not in self.table:
            return None
        p = self.table[pid]
        head = f"{pid} (python (x) y) S {p['parent']} {p['group']} {p['session']} 0 -1 0 0 0 0 0 "
        return head + f"{p['own']} 0 {p['children']} 0 20 0 2 0 {p['started']} 4096 {p['rss']} 0 0\n"

    def affinity(self):
        return frozenset({0})


@pytest.fixture
def processes():
    table = Processes()
    table.put(1, parent=0, own=1000)
    table.put(50, parent=1, own=500)  # a neighbour
    table.put(100, parent=1, own=10)  # our root
    return table


def spent(tree, before):
    return round((tree.walk().cpu_s - before.cpu_s) * TICKS_PER_S)


def test_a_name_with_spaces_and_brackets():
    process = parse_stat(7, "7 (a) b (c)) R 3 4 5 0 -1 0 0 0 0 0 11 12 13 14 20 0 6 0 99 4096 42 0\n")
    assert (process.state, process.parent, process.group, process.session) == ("R", 3, 4, 5)
    assert (process.own_ticks, process.children_ticks, process.threads) == (23, 27, 6)
    assert (process.started_ticks, process.rss_pages) == (99, 42)


@pytest.mark.parametrize("text", [None, "", "7 (x) S 1 2"])
def test_a_process_that_ended_while_it_was_read(text):
    assert parse_stat(7, text) is None


def test_descendants_are_ours_and_neighbours_are_not(processes):
    processes.put(101, parent=100)
    processes.put(102, parent=101)
    reading = ProcessTree(processes, [100]).walk()
    assert reading.pids == {100, 101, 102}
    assert reading.rss_bytes == 30 * PAGE_BYTES
    assert reading.threads == 6


def test_time_of_the_tree_and_not_of_neighbours(processes):
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.put(100, own=30)
    processes.put(50, own=900)
    assert spent(tree, before) == 20


def test_a_child_that_was_born_and_died_between_two_looks(processes):
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.put(100, own=10, children=70)
    assert spent(tree, before) == 70


def test_a_child_that_died_is_counted_once(processes):
    processes.put(101, parent=100, own=40)
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.gone(101)
    processes.put(100, own=10, children=55)  # 40 that we saw, 15 that it used since
    assert spent(tree, before) == 15


def test_a_child_whose_parent_ignores_its_death_is_not_forgotten(processes):
    processes.put(101, parent=100, own=40)
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.gone(101)
    processes.put(100, own=15)  # SIGCHLD ignored: nothing is added up
    assert spent(tree, before) == 5
    assert spent(tree, before) == 5


def test_a_branch_that_died_at_once(processes):
    processes.put(101, parent=100, own=40)
    processes.put(102, parent=101, own=7)
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.gone(101, 102)
    processes.put(100, own=10, children=50)
    assert spent(tree, before) == 3


def test_the_sum_does_not_fall_when_all_have_died(processes):
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.put(100, own=60)
    assert spent(tree, before) == 50
    processes.gone(100)
    assert spent(tree, before) == 50
    assert tree.walk().pids == frozenset()


def test_what_a_root_used_at_the_last_is_known_from_who_waited_for_it(processes):
    processes.put(90, children=7)
    processes.put(100, parent=90, own=10)
    tree = ProcessTree(processes, [100], keeper=90)
    before = tree.walk()
    processes.gone(100)
    processes.put(90, own=500, children=7 + 85)
    assert spent(tree, before) == 75
    processes.put(90, own=900, children=7 + 85 + 30)  # some other child of the keeper
    assert spent(tree, before) == 75


def test_an_orphan_stays_ours(processes):
    processes.put(101, parent=100, own=40)
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.gone(100)
    processes.put(101, parent=1, own=90)
    reading = tree.walk()
    assert reading.pids == {101}
    assert round((reading.cpu_s - before.cpu_s) * TICKS_PER_S) == 50


@pytest.mark.parametrize("kind", ["group", "session"])
def test_a_daemon_is_known_by_its_group_or_session(processes, kind):
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.put(103, parent=1, own=5, **{kind: 100})
    reading = tree.walk()
    assert reading.pids == {100, 103}
    assert round((reading.cpu_s - before.cpu_s) * TICKS_PER_S) == 5


def test_a_number_that_was_used_again(processes):
    processes.put(101, parent=100, own=40, started=5)
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.put(101, parent=1, own=900, started=77)  # a stranger
    assert tree.walk().pids == {100}
    assert spent(tree, before) == 0


def test_a_root_added_later_counts_from_then_on(processes):
    tree = ProcessTree(processes, [100])
    before = tree.walk()
    processes.put(51, parent=50, own=33)
    tree.walk()
    tree.add_roots([50])
    assert tree.walk().pids == {100, 50, 51}
    assert spent(tree, before) == 0
    processes.put(50, parent=1, own=520)
    assert spent(tree, before) == 20


def test_strangers_are_read_once():
    class Counting(Processes):
        reads = 0

        def read(self, path):
            self.reads += 1
            return super().read(path)

    processes = Counting()
    for pid in range(2, 200):
        processes.put(pid)
    processes.put(500)
    tree = ProcessTree(processes, [500])
    tree.walk()
    processes.reads = 0
    tree.walk()
    assert processes.reads == 1


BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def test_real_processes_dead_and_alive():
    files = LocalFiles()
    script = (
        "import os, subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {BURN.format(0.3)!r}])\n"  # dies, is waited for
        f"{BURN.format(0.3)}"
        "print('done', flush=True)\ntime.sleep(60)\n"
    )
    tree = ProcessTree(files, [os.getpid()])
    before = tree.walk()
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "done\n"
        reading = tree.walk()
        assert child.pid in reading.pids
        assert 0.55 <= reading.cpu_s - before.cpu_s < 10
    finally:
        child.kill()
        child.wait()
    after = tree.walk()
    assert child.pid not in after.pids
    assert after.cpu_s >= reading.cpu_s


def test_a_zombie_is_seen_as_one():
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    while read_process(LocalFiles(), child.pid).state != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_process(LocalFiles(), child.pid).state == "Z"
    child.wait()
    assert read_process(LocalFiles(), child.pid) is None
