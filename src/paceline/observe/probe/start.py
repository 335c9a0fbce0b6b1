"""How does watching begin in a process? From ``sitecustomize`` to the first moment, and to the last.

interpreter starts ──> begin(): wait for torch
torch imported     ──> patches (a few ms)
first moment       ──> scribe: this process trains, so it gets a folder and a thread
fetch in a worker  ──> ticker instead
exit               ──> what is left is written, with the reason
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
import time
from typing import Any

from paceline.observe.probe import guard, lazy, marks, process
from paceline.observe.probe.gate import gate
from paceline.record import layout

_state: dict[str, Any] = {"generation": 0}


def begin(run_dir: str) -> None:
    """Wait for torch to be imported in this process."""
    _state.update(run_dir=run_dir, host=platform.node() or "localhost", started_unix_s=process.started_unix_s())
    actions: dict[str, Any] = {"torch": _patch_torch}
    actions |= dict.fromkeys(marks.SAVERS, marks.patch_savers)
    actions["torchdata.stateful_dataloader.stateful_dataloader"] = _patch_stateful
    lazy.install(actions)


def _patch_torch(torch: Any) -> None:
    from paceline.observe.probe import backwards, fetchers, loaders, modules, optimizers, window

    _state["torch"] = torch
    _state["imported_ns"] = time.monotonic_ns()
    gate.start_scribe = _start_scribe
    for patch in (modules.patch, backwards.patch, optimizers.patch, loaders.patch, marks.patch):
        patch(torch)
    fetchers.patch(torch, _in_worker)
    if os.environ.get("PACELINE_PROFILE", "1") != "0":
        _state["window"] = window.OperatorWindow(torch)
        window.patch(torch, _state["window"])
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
    atexit.register(_at_exit)


def _patch_stateful(module: Any) -> None:
    from paceline.observe.probe import loaders

    loaders.patch_classes(_state["torch"], module.StatefulDataLoader, module._StatefulBaseDataLoaderIter)


def _start_scribe() -> None:
    gate.scribe_started = True
    try:
        from paceline.observe.probe.device import device_of
        from paceline.observe.probe.scribe import Scribe

        folder = os.path.join(_state["run_dir"], layout.RANKS_DIR, f"{_state['host']}-{os.getpid()}")
        device = _state["device"] = device_of(_state["torch"])
        _state["thread_id"] = threading.get_native_id()
        _state["scribe"] = scribe = Scribe(folder, _describe, device, _state.get("window"))
        guard.on_fault(lambda reason: _note_fault(scribe, reason))
        scribe.start()
    except Exception as error:
        guard.fault(error, "recorder")


def _note_fault(scribe: Any, reason: str) -> None:
    scribe.note("fault", reason=reason)
    scribe.flush()


def _describe() -> dict[str, Any]:
    """Return the meta file's content as it is known now."""
    rank, world = gate.rank or (int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1))
    torch = _state["torch"]
    return {
        "schema": layout.SCHEMA_VERSION,
        "host": _state["host"],
        "pid": os.getpid(),
        "rank": rank,
        "world": world,
        "distributed": gate.distributed,
        "thread_id": _state["thread_id"],
        "started_unix_s": _state["started_unix_s"],
        "imported_ns": _state["imported_ns"],
        "epoch_offset_ns": _state.setdefault("epoch_offset_ns", time.time_ns() - time.monotonic_ns()),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "argv": sys.argv,
        **_state["device"].describe(),
    }


def _in_worker(info: Any, meter: Any) -> None:
    from paceline.observe.probe import worker

    worker.begin(_state["run_dir"], _state["host"], _state["generation"], info, meter)


def _before_fork() -> None:
    scribe = _state.get("scribe")
    if scribe is not None:
        scribe.stop()
    _state["generation"] += 1


def _after_fork() -> None:
    scribe = _state.get("scribe")
    if scribe is not None and not guard.faulted():
        scribe.start()


def _in_child() -> None:
    """A forked child is a process of its own: it has no scribe until it trains, and it owns no file of its parent's."""
    from paceline.observe.probe import fetchers, loaders

    _state.pop("scribe", None)
    _state["started_unix_s"] = time.time()
    loaders.epochs.clear()
    fetchers.meters.clear()
    guard.forget()
    on = gate.start_scribe
    gate.reset()
    gate.start_scribe = on
    gate.owner = threading.get_ident()


def _at_exit() -> None:
    scribe = _state.get("scribe")
    if scribe is None or guard.faulted():
        return
    try:
        scribe.stop()
        scribe.end(**_reason())
    except Exception as error:
        guard.fault(error, "last write")


def _reason() -> dict[str, Any]:
    """Return how this process ends: the exception that nobody caught, if there was one."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):
        return {"exception": None}
    traceback = getattr(error, "__traceback__", None)
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}" if traceback else None
    return {"exception": type(error).__name__, "message": str(error)[:2000], "where": where}
