"""The start and the end of recording in a process, from ``sitecustomize`` to the last write.

interpreter starts  ──> begin(): wait for torch
torch is imported   ──> install the patches (a few ms)
first event         ──> start the recorder: this process trains, so it gets a folder and a thread
fetch in a worker   ──> start the worker's recorder instead
exit                ──> write the remaining data and the reason of the exit
"""

from __future__ import annotations

import atexit
import functools
import os
import platform
import sys
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from paceline.inprocess import hooks, import_hook
from paceline.inprocess.recorder import fork_warning, process, timed_functions, torch_names, unread
from paceline.inprocess.recorder.device import debug_switches
from paceline.inprocess.recorder.keep_alive import keep_forever
from paceline.inprocess.recorder.probe_state import gate
from paceline.record import layout

_PATIENCE_AT_EXIT_S = 5.0
_LAST = -100  # exit priority: after all other finalizers of multiprocessing
_state: dict[str, Any] = {"generation": 0}


def begin(run_dir: str) -> None:
    """Install the patches when torch is imported in this process."""
    hooks.tell_once(os.path.join(run_dir, layout.WARNED_FILE))
    _state.update(run_dir=run_dir, host=platform.node() or "localhost", started_unix_s=process.started_unix_s())
    actions: dict[str, Any] = {"torch": _patch_torch}
    actions |= dict.fromkeys(timed_functions.SAVERS, timed_functions.patch_savers)
    actions[timed_functions.WAITS] = lambda module: timed_functions.patch_waits(module) if "torch" in _state else None
    actions["torchdata.stateful_dataloader.stateful_dataloader"] = _patch_stateful
    actions["paceline.data.loader.loader"] = _patch_ours
    import_hook.install(actions)
    _beside("begin")


def _patch_torch(torch: Any) -> None:
    from paceline.inprocess import gpu_detection
    from paceline.inprocess.recorder.device import precision
    from paceline.inprocess.recorder.loaders import fetch, iteration
    from paceline.inprocess.recorder.profiler import window
    from paceline.inprocess.recorder.steps import backward, forward, optimizers

    _state["torch"] = torch
    _state["imported_ns"] = time.monotonic_ns()
    _state["imports_until_then_ns"] = import_hook.imports.spent_ns
    gate.start_scribe = _start_scribe
    hooks.on_undo(_silence)
    parts = {"modules": forward, "backward passes": backward, "optimizers": optimizers}
    parts |= {"loading of batches": iteration, "copies and communication": timed_functions}
    for part, module in parts.items():
        torch_names.patch_part(part, partial(module.patch, torch))
    torch_names.patch_part("loader workers", partial(fetch.patch, torch, _in_worker))
    unread.keep_from_compiler(torch)
    if gpu_detection.has_gpu(torch):
        precision.patch(torch)
    _make_window(torch)
    if "window" in _state:
        torch_names.patch_part("profiler window", partial(window.patch, torch, _end_window))
    _beside("patch", torch)
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
    atexit.register(_at_exit)


def _make_window(torch: Any) -> None:
    """Create the capture of selected steps, or the profiler window, or neither."""
    from paceline.inprocess.recorder.profiler import capture, window

    steps = capture.steps_of(os.environ.get("PACELINE_CAPTURE", ""))
    if steps is not None:
        folder = os.path.join(_state["run_dir"], layout.CAPTURES_DIR)
        _state["window"] = capture.CaptureWindow(torch, folder, steps)
    elif os.environ.get("PACELINE_PROFILE", "1") != "0":
        _state["window"] = window.OperatorWindow(torch)


def _beside(moment: str, *arguments: Any) -> None:
    """Call the function `moment` of each module in PACELINE_BESIDE. These modules apply recipes and layouts."""
    for name in filter(None, os.environ.get("PACELINE_BESIDE", "").split(",")):
        getattr(import_module(name), moment)(*arguments)


def _patch_stateful(module: Any) -> None:
    from paceline.inprocess.recorder.loaders import iteration

    iteration.patch_classes(_state["torch"], module.StatefulDataLoader, module._StatefulBaseDataLoaderIter)


def _patch_ours(module: Any) -> None:
    from paceline.inprocess.recorder.loaders import fetch, iteration

    torch = import_module("torch")  # batches are torch tensors, so torch must be patched first
    iteration.patch_classes(torch, module.Loader, module.LoaderIterator)
    fetch.patch_maker(module.Loader, "_made", lambda own, step: (iteration.number_of(own), len(step[1])))


def _start_scribe() -> None:
    gate.scribe_started = True
    try:
        from paceline.inprocess.recorder import sidecar
        from paceline.inprocess.recorder.device.readings import device_of
        from paceline.inprocess.recorder.recorder import Scribe

        unread.keep_from_compiler(_state["torch"])
        folder = os.path.join(_state["run_dir"], layout.RANKS_DIR, f"{_state['host']}-{os.getpid()}")
        device = _state["device"] = device_of(_state["torch"])
        _state["thread_id"] = threading.get_native_id()
        _state["imports_ns"] = import_hook.imports.spent_ns - _state["imports_until_then_ns"]
        _state["scribe"] = scribe = Scribe(folder, _describe, device, _state.get("window"))
        hooks.on_fault(scribe.tell_fault)
        scribe.start()
        _end_with_multiprocessing()
        if "window" in _state:
            _state["window"].at_start()
        sidecar.start_if_alone(_state["run_dir"], _state["host"])
    except Exception as error:
        hooks.fault(error, "recorder")


def _end_with_multiprocessing() -> None:
    """Register the last write in a process forked by ``multiprocessing``, which skips Python's exit functions."""
    processes, ends = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if processes is not None and ends is not None and processes.parent_process() is not None:
        ends.Finalize(None, _at_exit, exitpriority=_LAST)


def _describe() -> dict[str, Any]:
    """Return the current content of the meta file."""
    rank, world = gate.rank or (int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1))
    torch = _state["torch"]
    return {
        "schema": layout.SCHEMA_VERSION,
        "host": _state["host"],
        "pid": os.getpid(),
        "rank": rank,
        "world": world,
        "distributed": gate.rank is not None,  # stays true after the group was destroyed
        "thread_id": _state["thread_id"],
        "started_unix_s": _state["started_unix_s"],
        "imported_ns": _state["imported_ns"],
        "imports_ns": _state["imports_ns"],  # time of imports between the import of torch and the first event
        "epoch_offset_ns": _state.setdefault("epoch_offset_ns", time.time_ns() - time.monotonic_ns()),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "debug": debug_switches.seen(torch),
        "argv": sys.argv,
        "switched_off": torch_names.switched_off,
        "patched": hooks.installed(),
        **_state["device"].describe(),
    }


def _in_worker(info: Any, meter: Any) -> None:
    from paceline.inprocess.recorder.loaders import worker

    worker.begin(_state["run_dir"], _state["host"], _state["generation"], info, meter)


def _harmless(where: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Return a decorator that reports any exception as a fault, for hooks around forks and at exit."""

    def decorate(function: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(function)
        def run() -> None:
            try:
                function()
            except Exception as error:
                hooks.fault(error, where)

        return run

    return decorate


def _silence() -> None:
    """Stop recording events. An open profiler window ends at the next step end, in the thread that opened it."""
    gate.silence()
    gate.window = lambda optimizer: _end_window()
    if get_ident() == gate.owner:
        _end_window()


@_harmless("profiler window")
def _end_window() -> None:
    """End the profiler window if it is open; a window that has not begun is kept for later steps."""
    window = _state.get("window")
    if window is not None and window.begun_ns is not None:
        window.end()
    if hooks.faulted():
        gate.window = None


@_harmless("before a fork")
def _before_fork() -> None:
    begun, scribe = time.perf_counter(), _state.get("scribe")
    if scribe is not None:
        scribe.stop()
    window = _state.get("window")
    if get_ident() == gate.owner and window is not None and window.ends_at_fork:
        _end_window()
    if scribe is not None:
        scribe.footprint.delayed_fork(time.perf_counter() - begun)
    fork_warning.before_fork(scribe.native_id if scribe is not None else 0)
    _state["generation"] += 1


@_harmless("after a fork")
def _after_fork() -> None:
    scribe = _state.get("scribe")
    if scribe is not None and not hooks.faulted():
        scribe.start()


@_harmless("in a forked process")
def _in_child() -> None:
    """Reset the state in a forked child, which has no recorder until it trains and uses no file of its parent."""
    from paceline.inprocess.recorder.loaders import fetch, iteration
    from paceline.inprocess.recorder.steps import backward, gradient_exchange

    # The child must not free the parent's objects: events, pinned memory, profiler results, losses on the device.
    keep_forever(gate.held(), _state.pop("scribe", None), _state.pop("device", None), _state.get("window"))
    keep_forever(backward.forget_loss())
    _state["started_unix_s"] = time.time()
    iteration.epochs.clear()
    fetch.meters.clear()
    gradient_exchange.forget()
    hooks.forget()
    on, updates = gate.start_scribe, gate.unseen_updates
    gate.reset()
    gate.start_scribe, gate.unseen_updates = on, updates
    gate.owner = threading.get_ident()
    if hooks.faulted():
        gate.silence()
    elif "window" in _state:
        _make_window(_state["torch"])  # if the child trains, it has its own steps


@_harmless("at exit")
def _at_exit() -> None:
    if get_ident() == gate.owner:
        _end_window()
    scribe = _state.get("scribe")
    if scribe is None or hooks.faulted() or scribe.ended:
        return
    if gate.unseen_updates is not None:
        gate.unseen_updates.look()
    try:
        scribe.stop()
        reason = _reason()
        scribe.write_bounded(lambda: scribe.end(**reason), _PATIENCE_AT_EXIT_S)
    except Exception as error:
        hooks.fault(error, "last write")


def finish() -> None:
    """Write the rest of the record, in a process that is about to exit without Python's exit functions."""
    _at_exit()


def _of_program(traceback: Any) -> Any:
    """Return the innermost traceback entry in a file of the program, or the innermost entry if there is none."""
    from paceline.inprocess.recorder.stacks import sampler

    own = last = None
    while traceback is not None:
        last = traceback
        if sampler.kind_of(traceback.tb_frame.f_code.co_filename) == "user":
            own = traceback
        traceback = traceback.tb_next
    return own or last


def _reason() -> dict[str, Any]:
    """Return how this process ends: the uncaught exception, or None."""
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]  # multiprocessing exits during propagation
    if error is None or isinstance(error, SystemExit) or hasattr(sys, "ps1"):
        return {"exception": None}
    traceback = _of_program(getattr(error, "__traceback__", None))
    where = f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}" if traceback else None
    return {"exception": type(error).__name__, "message": str(error)[:2000], "where": where}
