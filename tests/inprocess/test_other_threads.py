"""Reading the stack of another thread tells where it is, and never harms the program."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from paceline.inprocess.other_threads import objects_of, stack_of

COLLECTS = """
import gc, sys, threading, time
from paceline.inprocess.other_threads import stack_of

class Node:
    def __del__(self):
        time.sleep(0.0002)  # lets the other thread end its calls
        left_to_the_collector()

def left_to_the_collector():
    node = Node()
    node.itself = node

def deep(number):
    return wide(number - 1, number, number) + 1

def wide(number, *others):
    first = second = third = number  # calls of different sizes, so that memory is used again for something else
    return narrow(number - 1) + 1

def narrow(number):
    return deep(number - 1) if number > 0 else 0

def read():
    try:
        for turn in range(2000):
            objects = [[] for _ in range(turn % 40)]  # each turn, the collector comes at another moment
            stack_of(main, 64)
        read_all.append(True)
    finally:
        done.set()

left_to_the_collector()
gc.set_threshold(20)
sys.setswitchinterval(1e-5)
main, done, read_all = threading.get_ident(), threading.Event(), []
threading.Thread(target=read).start()
while not done.is_set():
    deep(20)
    wide(15)
    narrow(18)
print(read_all, gc.isenabled())
"""


def test_a_collection_while_a_stack_is_read_does_not_end_the_program():
    """In Python 3.11, the collector could run a finalizer in between; the thread went on, and its frame was freed."""
    done = subprocess.run([sys.executable, "-c", COLLECTS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "[True] True\n"), done.stderr


@pytest.mark.parametrize("collects", [True, False])
def test_the_setting_of_the_collector_is_that_of_the_program(collects):
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        stack_of(threading.get_ident(), 8)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()


def test_calls_have_their_line_and_module_and_change_when_the_thread_goes_on():
    def wait():
        begun.set()
        first.wait()
        again.set()
        second.wait()

    begun, again, first, second = (threading.Event() for _ in range(4))
    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    calls = [stack_of(thread.ident, 64) for _ in range(2)]
    first.set()
    again.wait()
    calls.append(stack_of(thread.ident, 64))
    second.set()
    thread.join()
    one, same, other = (next(call for call in each if call.code is wait.__code__) for each in calls)
    assert one == same
    assert (one.module, other.line) == (__name__, one.line + 2)
    assert one.moment != other.moment
    assert stack_of(thread.ident, 64) == []
    assert len(stack_of(threading.get_ident(), 2)) == 2


class Listed:
    pass


class ListedToo(Listed):
    pass


def test_objects_are_listed_while_another_thread_builds_tuples():
    """A thread that is building a tuple gets a SystemError if another thread refers to the tuple."""
    kept, junk, failed, stop = [Listed(), ListedToo()], [[n] for n in range(50_000)], [], threading.Event()

    def build():
        try:
            while not stop.is_set():
                tuple(n for n in range(300))
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = [objects_of(Listed) for _ in range(100)]
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == [] and junk
    assert all({id(each) for each in one} == {id(each) for each in kept} for one in found)
