"""The recorder: one background thread per training process that converts the program's events into record files.

The thread takes a stack sample every 20 ms and passes new events to the step state machine every 100 ms. It appends
finished rows twice a second and a tick about once a second, and replaces the summary at growing intervals. The thread
is started with ``_thread``, so it does not appear in ``threading.enumerate()``. The thread is stopped around every
fork.
"""

from __future__ import annotations

import _thread
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder import process, timed_functions
from paceline.inprocess.recorder.bounded import PATIENCE_S, acquire_from_thread, run_bounded
from paceline.inprocess.recorder.files import Appender, another, make_json, replace_json
from paceline.inprocess.recorder.footprint import Footprint
from paceline.inprocess.recorder.loaders import fetch, iteration
from paceline.inprocess.recorder.loaders.summary import bounded
from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.profiler.capture import CaptureWindow
from paceline.inprocess.recorder.profiler.window import OperatorWindow
from paceline.inprocess.recorder.stacks.sampler import Look, Sampler, kind_of, label
from paceline.inprocess.recorder.stacks.switch_interval import Prompt
from paceline.inprocess.recorder.stacks.syncs import SyncLines
from paceline.inprocess.recorder.steps import forward, gradient_exchange, optimizers
from paceline.inprocess.recorder.steps.objectives import Objectives
from paceline.inprocess.recorder.steps.row_buffer import Written
from paceline.inprocess.recorder.steps.rows import pack_step
from paceline.inprocess.recorder.steps.state_machine import Automaton, StepRow
from paceline.inprocess.recorder.steps.trained_models import TrainedModels
from paceline.record import layout

_PERIOD_S = 0.02
_LOOKS = 5  # stack samples per round of work: many events at once cost less than few
_MOMENTS = 20_000  # number of events that triggers work in any case
_YIELD_EVERY = 64  # events: about 200 µs of work
_FLUSH_S = 0.4
_WINDOW_AFTER = 10  # steps before the profiler window is offered
_ROWS_TOLD = 3  # steps on a device after which the number of optimizer steps per step is known
_USED_BY = 50  # if a device is not used within this number of steps, it is assumed to stay unused
_WITH_STACK = frozenset((g.FORWARD, g.BACKWARD, g.SAVE))
_NAN = float("nan")
_TICKS_S = ((8.0, 0.25), (120.0, 1.0), (float("inf"), 5.0))  # (seconds since the start, tick interval up to that time)

ProfilerWindow = OperatorWindow | CaptureWindow


def tick_interval_s(elapsed_s: float) -> float:
    """Return the interval between two ticks: short at first for short programs, longer later to limit the file size."""
    return next(interval for until, interval in _TICKS_S if elapsed_s < until)


class Scribe:
    """The recorder of this process."""

    def __init__(
        self, folder: str, describe: Callable[[], dict[str, Any]], device: Any, window: ProfilerWindow | None
    ) -> None:
        self._window = window
        self._folder = folder
        self._describe = describe
        self._device = device
        self.sampler = Sampler()
        self.sampler.slices.updating = optimizers.own_code
        self.automaton = Automaton(self._on_row)
        self._objectives = Objectives(forward.class_name, lambda file: kind_of(file) in ("user", "library"))
        self._models = TrainedModels(self.note, optimizers.described)
        self._open_files()
        self._packed: list[bytes] = []
        self._looks: list[tuple[int, Look, bool | None]] = []  # time, stack of the training thread, whether it ran
        self._pending_notes: list[dict[str, Any]] = []
        self.step = 0
        self._described: dict[str, Any] = {}
        self._next_flush = self._next_tick = self._next_summary = 0.0
        self._tick_s, self._summary_s = tick_interval_s(0.0), 1.0
        self._begun = time.monotonic()
        self._wake, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._running = False
        self.footprint = Footprint()
        self.ended = False  # everything is written
        self.abandoned = False  # the folder hangs: writing has stopped
        self._thread = self.native_id = 0  # the recorder's thread: Python's id and the kernel's id (kept after its end)
        self._state = process.ThreadState()
        self._thread_id = 0  # kernel id of the training thread
        self._walls: deque[int] = deque(maxlen=_WINDOW_AFTER)  # duration of the last steps in ns
        self._profile_file = os.path.join(os.path.dirname(os.path.dirname(folder)), layout.PROFILE_FILE)
        self._asked_ns = 0  # time of the last processed profile request (mtime of the file)
        self._timing = device.timing(self._write, window.end if window else _nothing)  # None on a CPU
        if self._timing is not None:
            self.sampler.syncs = SyncLines(kind_of, label)
            if window is not None:
                window.events = device.events

    # -- the thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the recorder's thread."""
        if self._running or self.abandoned:
            return
        self._running = True
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(self._loop, (self._wake, self._ended))

    def stop(self, timeout_s: float = PATIENCE_S) -> None:
        """Ask the thread to end, and wait for it. If the thread hangs, recording is abandoned."""
        if not self._running:
            return
        self._running = False
        self._wake.release()
        if not acquire_from_thread(self._ended, lambda: self.native_id, timeout_s):
            self._abandon(timeout_s)

    def _abandon(self, waited_s: float) -> None:
        self.abandoned = True
        hooks.fault(TimeoutError(f"a write to the record took longer than {waited_s:g} s"), "recorder", in_folder=False)

    def write_bounded(self, action: Callable[[], None], timeout_s: float = PATIENCE_S) -> None:
        """Run an action that writes, outside the recorder's thread, with a timeout; abandon recording if it hangs."""
        if not self.abandoned and not run_bounded(action, timeout_s):
            self._abandon(timeout_s)

    def tell_fault(self, reason: str) -> None:
        """Write the reason why recording stopped to the record."""
        self.note("fault", reason=reason)
        if _thread.get_ident() == self._thread:
            self.flush()
        else:
            self.write_bounded(self.flush)

    def _loop(self, wake: Any, ended: Any) -> None:
        prompt = Prompt()
        self._thread, self.native_id = _thread.get_ident(), _thread.get_native_id()
        try:
            while not prompt.wait(lambda: wake.acquire(timeout=_PERIOD_S)):
                self.turn()
        except Exception as error:
            hooks.fault(error, "recorder")
        finally:
            ended.release()

    def turn(self) -> None:
        """Take a stack sample. After some samples, do the other work that is due."""
        if self._window is not None:
            self._window.check()
        if self._thread_id:
            self._state.open(self._thread_id)
        look = self.sampler.look(gate.owner)
        runs, looked_ns = self._state.runs(), time.perf_counter_ns()
        self._looks.append((looked_ns, look, runs))
        if len(self._looks) >= _LOOKS or len(gate.moments) > _MOMENTS:
            self.work()

    def work(self) -> None:
        """Process the new events and samples, and write the files that are due."""
        looks, self._looks = self._looks, []
        for looked_ns, look, runs in looks:
            self.drain(looked_ns)
            if self.step or self.automaton.slot == "startup":  # startup code of the first step is not representative
                self.sampler.count(look.frames, self.automaton.slot, runs, look.place)
        self.drain(time.perf_counter_ns())
        now = time.monotonic()
        if self._timing is not None:
            self._timing.turn()
        waiting = 0 if self._timing is None else self._timing.waiting
        self.footprint.holds(len(gate.moments), waiting, sum(map(len, self._packed)))
        self._consider_window()
        if now >= self._next_flush:
            self._note_window()
            self._heed()
            self.flush()
            self._next_flush = now + _FLUSH_S
        if now >= self._next_tick:
            self._tick()
            self._next_tick = now + self._tick_s
            self._tick_s = tick_interval_s(now - self._begun)
        if now >= self._next_summary:
            self.write_summary()
            self._next_summary = now + self._summary_s
            self._summary_s = min(10.0, self._summary_s * 1.3)

    # -- events -------------------------------------------------------------------------------------

    def drain(self, until_ns: float = float("inf")) -> None:
        """Pass the events up to a time to the state machine. Release the GIL regularly meanwhile."""
        moments, fed = gate.moments, 0
        if len(moments) == moments.maxlen:
            raise MemoryError("the record could not be written for too long")
        feed = self.automaton.feed
        follow = self._timing.take if self._timing is not None else None
        count = None if self._objectives.done else self._objectives.feed
        while moments and moments[0][0] <= until_ns:
            moment = moments.popleft()
            fed += 1
            if fed % _YIELD_EVERY == 0:
                time.sleep(0)
            feed(moment)
            if count is not None:
                count(moment)
            if follow is not None:
                follow(moment)
            if moment[1] in _WITH_STACK:
                _learn(self.sampler, self.automaton, moment)

    def _on_row(self, row: StepRow) -> None:
        slowed = self._window is not None and self._window.overlaps(row.end_ns - row.wall_ns, row.end_ns)
        flags = row.flags | (layout.FLAG_PROFILED if slowed else 0)
        loss = _NAN if row.loss is None else row.loss
        written = Written(self.step, row, flags, loss, self._device.allocated_bytes())
        if self._timing is None:
            self._write(written)
        else:
            self._timing.hold(written)
        if not row.flags & layout.FLAG_TAIL:
            self._models.stepped(self.automaton.last_optimizer, self.step)
            self.step += 1
            self._walls.append(row.wall_ns)

    def _write(self, written: Written) -> None:
        self._packed.append(pack_step(*written))

    def _consider_window(self) -> None:
        """Offer the profiler window once step times are stable. Called only after all events are processed."""
        if self._window is None or self._window.taken or self.step < _WINDOW_AFTER or not self._walls:
            return
        timing = self._timing
        if timing is not None and timing.rows < _ROWS_TOLD and self.step < _USED_BY:
            return  # it is not yet known whether the device is used, and how many optimizer steps a step has
        parts = 1 if timing is None else timing.ends_per_row
        self._window.offer(sorted(self._walls)[len(self._walls) // 2] / 1e9, parts)

    def _heed(self) -> None:
        """Start another profiler window if one was requested with ``paceline profile``."""
        if self._window is None:
            return
        try:
            asked_ns = os.stat(self._profile_file).st_mtime_ns
        except OSError:
            return
        if asked_ns != self._asked_ns and self._window.again():
            self._asked_ns = asked_ns

    def _note_window(self) -> None:
        """Write the result of the profiler window, once it has ended."""
        found = self._window.take() if self._window is not None else None
        if found is not None and self._window is not None:
            self.note(self._window.kind, **found)

    # -- writing ------------------------------------------------------------------------------------

    def note(self, kind: str, **details: Any) -> None:
        """Write a note about a rare event at the next flush."""
        self._pending_notes.append({"kind": kind, "time_ns": time.monotonic_ns(), **details})

    def flush(self) -> None:
        """Append all finished rows and notes to the files."""
        for meter in list(fetch.meters.values()):
            meter.settle()
        if self.automaton.first_ns is None and not self._pending_notes:
            return
        self._refresh_meta()
        if self._packed:
            packed, self._packed = self._packed, []
            self._steps.write(b"".join(packed))
        while iteration.epochs:
            begun, loader, seed = iteration.epochs.pop(0)
            self._notes.write_json({"kind": "epoch", "time_ns": begun, "loader": loader, "base_seed": seed})
        notes, self._pending_notes = self._pending_notes, []
        for record in notes:
            self._notes.write_json(record)

    def _refresh_meta(self) -> None:
        described = {**self._describe(), "first_ns": self.automaton.first_ns, "tick_bytes": layout.TICK.size}
        if described == self._described:
            return
        if self._described:
            replace_json(os.path.join(self._folder, layout.META_FILE), described)
        else:
            self._make_folder(described)
        self._described = described
        self._thread_id = described["thread_id"]

    def _make_folder(self, described: dict[str, Any]) -> None:
        """Create the folder of this process's record, with a name that no other process uses, and its meta file."""
        os.makedirs(self._folder, exist_ok=True)
        while not make_json(os.path.join(self._folder, layout.META_FILE), described):
            self._folder = another(self._folder)
            os.makedirs(self._folder, exist_ok=True)
            self._open_files()

    def _open_files(self) -> None:
        self._steps = Appender(os.path.join(self._folder, layout.STEPS_FILE))
        self._ticks = Appender(os.path.join(self._folder, layout.TICKS_FILE))
        self._notes = Appender(os.path.join(self._folder, layout.NOTES_FILE))

    def _tick(self) -> None:
        if not self._described:
            return
        thread = process.thread_times_s(self._describe()["thread_id"]) or (_NAN, _NAN)
        times = os.times()
        row = (
            time.monotonic_ns(),
            self.step & 0xFFFFFFFF,
            len(process.thread_ids()),
            process.resident_bytes() or _NAN,
            times.user + times.system,
            *thread,
            _or_nan(process.input_counters()["read_bytes"]),
            _NAN,
            *self._device.memory(),
            *map(_or_nan, (process.unshared_bytes(), times.system, process.minor_faults())),
        )
        self._ticks.write(layout.TICK.pack(*row))

    def write_summary(self) -> None:
        """Replace the summary file with the current summary."""
        if not self._described:
            return
        automaton = self.automaton
        summary = {
            "steps": self.step,
            "ungraded_forwards": automaton.ungraded_forwards,
            "rollouts": bool(automaton.rollouts),
            "hot": self.sampler.as_json(),
            "syncs": self.sampler.syncs.as_json() if self.sampler.syncs is not None else None,
            "device": self._timing.as_json() if self._timing is not None else None,
            "samples": self.sampler.totals_json(),
            "loaders": bounded(dict(d, **_use(automaton, i)) for i, d in enumerate(iteration.told())),
            **_thread_and_rank_counts(),
            "optimizers": list(optimizers.described.values())[-8:],
            "sample_period_s": _PERIOD_S,
            "training": self._objectives.as_json(),
            "footprint": self.footprint.as_json(),
        }
        replace_json(os.path.join(self._folder, layout.SUMMARY_FILE), summary)

    def end(self, **details: Any) -> None:
        """Write all remaining data. Called once, at the program's end, after the thread has stopped."""
        self.ended = True
        self.work()
        self.drain()
        self._note_window()
        self.automaton.finish(time.perf_counter_ns())
        if self._timing is not None:
            self._timing.finish()
        self.note("end", **details)
        if self.automaton.first_ns is not None:
            self.flush()
            self._tick()
            self.write_summary()


def _learn(sampler: Sampler, automaton: Automaton, moment: g.Moment) -> None:
    """Pass the stack of an event to the sampler, if the event has a stack."""
    if moment[1] == g.FORWARD and moment[2][-1]:
        sampler.slices.learn("input", moment[2][-1])
        if sampler.slices.feeds_itself(moment[2][-1]):
            automaton.rollouts.add(moment[2][2])
    elif moment[1] == g.BACKWARD and moment[3]:
        sampler.slices.learn("loss", moment[3])
    elif moment[1] == g.SAVE and moment[2]:
        sampler.slices.learn_saver(moment[2])


def _thread_and_rank_counts() -> dict[str, Any]:
    """Return how often another thread took over the training, and the exchanges of ranks with the times of DDP."""
    calls = {"calls": dict(timed_functions.calls), "sharded": forward.any_sharded()}
    return {"thread_switches": gate.thread_switches, "exchange_times": gradient_exchange.as_json(), "exchanges": calls}


def _nothing() -> None:
    """Do nothing."""


def _or_nan(value: float | None) -> float:
    return _NAN if value is None else value


def _use(automaton: Automaton, number: int) -> dict[str, Any]:
    """Return the number of fetches from a loader, their wait times, and the counters of its in-process meter."""
    use = automaton.loaders.get(number)
    meter = fetch.meters.get(number)
    found: dict[str, Any] = {"meter": meter.as_json() if meter else None}
    if use is not None:
        found |= {
            "train_fetches": use.train_fetches,
            "train_wait_s": use.train_wait_ns / 1e9,
            "eval_fetches": use.eval_fetches,
            "eval_wait_s": use.eval_wait_ns / 1e9,
            "samples": use.samples,
        }
    return found
