"""Stack sampler of one thread: it finds the user's functions in which time is spent.

Each sample is counted under a slot (the phase of the step that the thread is in) and a *side*: ``input`` if the line
makes the input of the next forward, ``loss`` if it makes the loss of the next backward, ``update`` if it updates
parameters by hand, ``optimizer`` in a method of the program's own optimizer class, ``save`` in a function that saves
checkpoints, ``host`` for other code, ``unknown`` without source.

Between two forward passes, a function that the training loop calls may compute with tensors, or may be other code of
the program, such as an environment. A function that uses NumPy or a similar library, and not torch, is ``host``. For
other functions, the sampler uses two observations:

- *Whether the thread runs.* Tensor operations release the global interpreter lock (GIL), so the thread runs while the
  sampler holds the GIL. A thread that executes Python code waits for the GIL. On a busy machine, this tells nothing,
  because a thread that waits for a CPU core counts as running.
- *The current instruction.* During a tensor operation, it is a call or an operator such as ``a * b``. A thread that
  executes Python code gives up the GIL after a call, at the end of a loop or at the start of a function.

A function is ``host`` if the thread rarely runs in it, or if the current instruction is often one at which Python code
gives up the GIL.
"""

from __future__ import annotations

import dis
import linecache
import os
import sysconfig
from collections import Counter
from types import CodeType
from typing import Any, NamedTuple

from paceline.inprocess.other_threads import StackEntry, stack_of
from paceline.inprocess.recorder.stacks.array_libraries import works_on_other_arrays
from paceline.inprocess.recorder.stacks.by_hand import parameter_free_lines, updating_lines
from paceline.inprocess.recorder.stacks.slicing import (
    MODULE,
    feeds_itself,
    has_several_statements,
    parsed,
    producing_lines,
)
from paceline.inprocess.recorder.stacks.syncs import SyncLines

Frames = list[tuple[CodeType, int]]

_STDLIB = tuple({os.path.realpath(p) + os.sep for key in ("stdlib", "platstdlib") if (p := sysconfig.get_path(key))})
_HERE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)) + os.sep  # the package
_DEEP = 64
_COMPUTING = ("loss", "input", "unknown")  # sides that may be computation between a forward and its backward
_CALLED = "called"  # the side is decided later
_PHASES = ("forward", "backward", "optimizer")
_RUNS = 0.3  # share of running samples, above which a function computes with tensors
_LEAST_BETWEEN = 0.08  # share of samples; measured: at most 0.02 for tensor code, at least 0.27 for Python code
# Instructions at which Python code gives up the GIL: ends of loops, starts of functions, and calls of C functions with
# a calling convention that torch's functions do not use.
_BETWEEN_BEGINS = ("JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME")
_BETWEEN_ENDS = ("BUILTIN_O", "BUILTIN_FAST", "BUILTIN_FAST_WITH_KEYWORDS", "DESCRIPTOR_O", "DESCRIPTOR_FAST", "STR_1")
# The names of all instructions, with the specialized forms that Python puts in place of others while a program runs.
_INSTRUCTIONS: list[str] = getattr(dis, "_all_opname", dis.opname)
_kinds: dict[str, str] = {}


class Look(NamedTuple):
    """A stack sample.

    Attributes:
        frames: The functions and their lines, innermost first, without functions of Paceline.
        place: The kind of the current instruction: ``between`` if Python code gives up the GIL there, ``call`` for
            another call, ``inside`` for other operations, such as ``a * b``.
    """

    frames: Frames
    place: str = "call"


def kind_of(filename: str) -> str:
    """Return the origin of a file: ``user``, ``library``, ``torch``, ``python`` or ``ours`` (Paceline)."""
    kind = _kinds.get(filename)
    if kind is None:
        kind = _kinds[filename] = _classify(filename)
    return kind


def _classify(filename: str) -> str:
    path = os.path.realpath(filename)
    if path.startswith(_HERE):
        return "ours"
    for packages in ("site-packages", "dist-packages"):
        _, installed, inside = path.rpartition(f"{os.sep}{packages}{os.sep}")
        if installed:
            return "torch" if inside.startswith(f"torch{os.sep}") else "library"
    if filename.startswith("<frozen") or path.startswith(_STDLIB):
        return "python"
    return "user"


def label(code: CodeType, line: int) -> str:
    """Return the name of a function for a report: ``augment (train.py:31)``."""
    name = code.co_qualname.replace(".<locals>", "")
    return f"{name} ({os.path.basename(code.co_filename)}:{line})"


def source_file(code: CodeType) -> str:
    """Return the path of a function's file: absolute, unless the name is not a path (``<string>``)."""
    name = code.co_filename
    return name if name.startswith("<") else os.path.abspath(name)


class Slices:
    """The lines that make the inputs of forwards and the losses of backwards, in functions on recorded stacks."""

    def __init__(self) -> None:
        self.updating: set[CodeType] = set()  # code that only updates parameters
        self._lines: dict[str, dict[CodeType, set[int]]] = {"input": {}, "loss": {}, "update": {}}
        self._calls: dict[CodeType, set[int]] = {}
        self._savers: set[CodeType] = set()
        self._done: dict[CodeType, set[tuple[int, str]]] = {}
        self._with_several_statements: set[tuple[CodeType, int]] = set()

    def learn(self, side: str, frames: Frames) -> None:
        """Add the lines that make the input of a forward or the loss of a backward, from the stack of this pass."""
        for code, line in frames:
            if kind_of(code.co_filename) in ("python", "ours", "torch"):
                continue
            lines = self._lines[side].setdefault(code, set())
            if (line, side) in self._done.setdefault(code, set()):
                continue
            self._done[code].add((line, side))
            source = "".join(linecache.getlines(code.co_filename))
            if not source:
                continue
            self._calls.setdefault(code, set()).add(line)
            first = MODULE if code.co_name == "<module>" else code.co_firstlineno
            made = producing_lines(source, first, line)
            if has_several_statements(source, first, line):
                self._with_several_statements.add((code, line))
            if side == "loss":
                self._lines["input"].setdefault(code, set()).update(parameter_free_lines(source, first, made))
            lines |= made
            self._lines["update"].setdefault(code, set()).update(updating_lines(source, first))
        parsed.cache_clear()

    def learn_saver(self, frames: Frames) -> None:
        """Process the stack of a save: functions between the save and the training loop count as checkpoint code."""
        for code, _ in frames:
            if code in self._calls:
                return
            if kind_of(code.co_filename) == "user":
                self._savers.add(code)

    def feeds_itself(self, frames: Frames) -> bool:
        """Return whether the program computes the next input of a forward from its output.

        This is so in reinforcement learning, where an environment turns actions into the next observations.
        """
        for code, line in frames:
            if kind_of(code.co_filename) in ("user", "library") and (lines := linecache.getlines(code.co_filename)):
                first = MODULE if code.co_name == "<module>" else code.co_firstlineno
                if feeds_itself("".join(lines), first, line):
                    return True
        return False

    def called(self, frames: Frames) -> Frames:
        """Return the frames that the innermost function leading to a forward has called; empty if one is torch code."""
        for depth, (code, _) in enumerate(frames):
            if code in self._calls:
                return frames[:depth]
            if kind_of(code.co_filename) == "torch":
                return []
        return []

    def side_of(self, frames: Frames, slot: str) -> str:
        """Return the side of a stack (innermost frame first) that was sampled in a slot.

        A sample before a forward, on the line that calls it, is ``input``: the line is evaluating the arguments. If the
        line has several statements, the sample can be in any of them, and is ``host``.
        """
        order = ("update", "loss", "input") if slot == "mid" else ("update", "input", "loss")
        for code, line in frames:
            if code in self.updating:
                return "optimizer"
            if code in self._savers and code not in self._calls:
                return "save"
            if code not in self._calls:
                continue
            for side in order:
                if line in self._lines[side].get(code, ()):
                    return side
            if line not in self._calls[code]:
                return "host"
            if slot == "gap" and (line, "input") in self._done[code]:
                return "host" if (code, line) in self._with_several_statements else "input"
        return "unknown"


class Sampler:
    """Counts samples of one thread's stack by phase of the step (slot), kind of work (side) and user function."""

    def __init__(self) -> None:
        self.slices = Slices()
        self.syncs: SyncLines | None = None  # only if there is a device to wait for
        self.totals: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[tuple[str, str, CodeType]] = Counter()
        self._lines: dict[tuple[str, str, CodeType], Counter[int]] = {}
        # For each function between forward passes: the number of samples by `Look.place` and whether the thread ran.
        self._called: dict[CodeType, Counter[tuple[str, bool]]] = {}
        self._leaves: dict[tuple[str, str, CodeType], Counter[str]] = {}

    def look(self, thread: int) -> Look:
        """Return the stack of a thread by its ident; without frames if the thread has ended."""
        calls = stack_of(thread, _DEEP)
        return Look(_users(calls), _place(calls[0].code, calls[0].moment[1]) if calls else "call")

    def sample_inside(self, thread: int, slot: str, function: str) -> None:
        """Count a sample only if the thread is inside the given Paceline function, with the frames that it called."""
        frames: Frames = []
        for code, line, *_ in stack_of(thread, _DEEP):
            if kind_of(code.co_filename) != "ours":
                frames.append((code, line or code.co_firstlineno))
            elif code.co_name == function:
                self.count(frames, slot)
                return

    def count(self, frames: Frames, slot: str, running: bool | None = None, place: str = "call") -> None:
        """Count one stack if it is not empty.

        Args:
            frames: The stack, innermost frame first.
            slot: The phase of the step.
            running: Whether the thread ran; None if unknown.
            place: The kind of the current instruction; see `Look`.
        """
        if not frames:
            return
        side = self.slices.side_of(frames, slot) if slot in ("gap", "mid", "other") else ""
        user = next(((c, n) for c, n in frames if kind_of(c.co_filename) == "user"), None)
        if user is None:
            user = next(((c, n) for c, n in frames if kind_of(c.co_filename) == "library"), None)
        undecided = slot == "mid" and side in _COMPUTING and running is not None
        if user is not None and undecided and (called := self.slices.called(frames)):
            side = self._side_in(called, user[0], (place, bool(running)))
        if side != _CALLED:
            self.totals[slot, side] += 1
        if self.syncs is not None:
            self.syncs.count(frames, slot)
        if user is None:
            return
        code, line = user
        key = (slot, side, code)
        self._counts[key] += 1
        self._lines.setdefault(key, Counter())[line] += 1
        leaf = frames[0][0]
        if leaf is not code and kind_of(leaf.co_filename) != "ours":
            self._leaves.setdefault(key, Counter())[label(leaf, frames[0][1])] += 1

    def _side_in(self, called: Frames, user: CodeType, state: tuple[str, bool]) -> str:
        """Return the side of a sample between forwards in functions that the training loop calls."""
        others = (works_on_other_arrays(code) for code, _ in called)
        if next((other for other in others if other is not None), False):
            return "host"
        self._called.setdefault(user, Counter())[state] += 1
        return _CALLED

    def as_json(self, most: int = 40) -> list[dict[str, Any]]:
        """Return the most frequent (slot, side, function) with their counts."""
        found, callers = [], self._callers_of_loops()
        for key, count in self._counts.most_common(most):
            slot, side, code = key
            side = self._side_called(code) if side == _CALLED else side
            line = self._lines[key].most_common(1)[0][0]
            leaves = self._leaves.get(key, Counter())
            leaf = leaves.most_common(1)[0][0] if leaves else None
            name, file = label(code, line), source_file(code)
            if leaf is not None and (code, line) in callers and leaves.total() > count / 2:
                name, file = leaf, ""
            found.append({"slot": slot, "side": side, "function": name, "count": count, "leaf": leaf, "file": file})
        return found

    def _callers_of_loops(self) -> set[tuple[CodeType, int]]:
        """Return the lines of functions that call a training loop of a library, such as ``trainer.train()``.

        Such a line has samples of several phases. The time of a phase is then that of the library's function.
        """
        phases: dict[tuple[CodeType, int], set[str]] = {}
        for (slot, _, code), lines in self._lines.items():
            for line in lines if slot in _PHASES else ():
                phases.setdefault((code, line), set()).add(slot)
        return {place for place, seen in phases.items() if len(seen) == len(_PHASES)}

    def totals_json(self) -> list[dict[str, Any]]:
        """Return the number of samples by slot and side."""
        totals = self.totals.copy()
        for code, counts in self._called.items():
            totals["mid", self._side_called(code)] += counts.total()
        return [{"slot": s, "side": d, "count": n} for (s, d), n in sorted(totals.items())]

    def _side_called(self, code: CodeType) -> str:
        """Return the side of a function between forwards: ``loss`` if it computes, ``host`` if it is other code."""
        counts = self._called[code]
        between, inside, running = (
            sum(count for (place, ran), count in counts.items() if one in (place, ran))
            for one in ("between", "inside", True)
        )
        if between > max(inside, _LEAST_BETWEEN * counts.total()):
            return "host"
        return "loss" if running > _RUNS * counts.total() else "host"


def _users(calls: list[StackEntry]) -> Frames:
    """Return the code and the line of each call on a stack, without calls of Paceline's functions."""
    own = [call for call in calls if kind_of(call.code.co_filename) != "ours"]
    return [(call.code, call.line or call.code.co_firstlineno) for call in own]  # an instruction may have no line


def _place(code: CodeType, offset: int) -> str:
    """Return the kind of the instruction at an offset of a function; see `Look.place`."""
    numbers: bytes = getattr(code, "_co_code_adaptive", code.co_code)
    if not 0 <= offset < len(numbers):
        return "call"
    name = _INSTRUCTIONS[numbers[offset]]
    if name.startswith(_BETWEEN_BEGINS) or name.endswith(_BETWEEN_ENDS):
        return "between"
    return "call" if "CALL" in name else "inside"
