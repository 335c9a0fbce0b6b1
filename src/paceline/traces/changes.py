"""What may be taken to be faster? Parts of a capture by name, as ``paceline trace --what-if`` takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from paceline.core.errors import UsageError
from paceline.traces.critical import Timeline
from paceline.traces.intervals import Ns
from paceline.traces.model import CLASSES, COMMUNICATION, COPY
from paceline.traces.whatif import Change, Lasting, as_it_was

GONE = "gone"
_KERNEL = "kernel:"
PARTS = ("loader", "host", "waits", *CLASSES, "kernel:NAME")
_NAMES = {"loader": "fetching batches", "host": "host work", "copy": "copies"}
_LARGEST, _TWICE = 3, 2.0


def change_of(text: str) -> Change:
    """Return the change that a text such as ``communication=2`` or ``kernel:gemm=gone`` asks for.

    Raises:
        UsageError: There is no such part, or no such factor; the message says what there is.
    """
    part, _, factor = text.rpartition("=")
    known = part in ("loader", "host", "waits", *CLASSES) or (part.startswith(_KERNEL) and part != _KERNEL)
    gone = factor.strip() == GONE
    if not known or (part == "waits" and not gone):
        raise UsageError(
            f"--what-if {text}: unknown part of the time; the known parts are {', '.join(PARTS)}, each with a factor "
            f"such as =2, or with ={GONE}; the part waits can only be given as waits={GONE}"
        )
    share = _left(text, factor)
    said = f"{_NAMES.get(part, part.removeprefix(_KERNEL))} {'took no time' if gone else f'took 1/{factor.strip()}'}"
    if part == "loader":
        return Change(what=said, loader=share)
    if part == "host":
        return Change(what=said, host=share)
    if part == "waits":
        return Change(what="no call of the host waited for the GPU", waits=False)
    if part in CLASSES:
        return Change(what=said, lasting=_of_class(CLASSES.index(part), share))
    return Change(what=said, lasting=_of_names(part.removeprefix(_KERNEL), share))


def check_kernels(asked: Sequence[str], names: Iterable[str]) -> None:
    """Refuse to ask of kernels that no rank has.

    Raises:
        UsageError: No kernel has the name, or the part of it.
    """
    known = set(names)
    for text in asked:
        part = text.rpartition("=")[0].removeprefix(_KERNEL)
        if text.startswith(_KERNEL) and not any(part in name for name in known):
            raise UsageError(f"--what-if {text}: no kernel name contains {part!r}")


def usual(line: Timeline) -> list[Change]:
    """Return what is worth asking of a capture: each part gone that it has, its largest kernels twice as fast."""
    present = set(np.unique(line.class_).tolist())
    asked = ["loader=gone"] if line.loader.length_ns else []
    asked += ["host=gone"]
    asked += ["waits=gone"] if line.synchronising.length_ns else []
    asked += [f"{CLASSES[each]}=gone" for each in (COMMUNICATION, COPY) if each in present]
    changes = [change_of(text) for text in asked]
    return changes + [_twice(line, name) for name in _largest(line)]


def _largest(line: Timeline) -> Sequence[int]:
    totals = np.bincount(line.name, weights=as_it_was(line), minlength=len(line.names))
    return [int(name) for name in np.argsort(-totals, kind="stable")[:_LARGEST] if totals[name] > 0]


def _twice(line: Timeline, name: int) -> Change:
    def lasting(line: Timeline) -> Ns:
        return _scaled(line, lambda own: own.name == name, 1 / _TWICE)

    return Change(what=f"{line.names[name]} took 1/2", lasting=lasting)


def _left(text: str, factor: str) -> float:
    """Return what is left of a time that becomes so many times faster."""
    if factor.strip() == GONE:
        return 0.0
    try:
        times = float(factor)
    except ValueError:
        times = 0.0
    if not 0 < times < float("inf"):
        raise UsageError(f"--what-if {text}: {factor!r} is not a factor; give a number above 0, such as 2, or {GONE}")
    return 1 / times


def _of_class(class_: int, share: float) -> Lasting:
    return lambda line: _scaled(line, lambda own: own.class_ == class_, share)


def _of_names(part: str, share: float) -> Lasting:
    def chosen(line: Timeline) -> np.ndarray:
        return np.array([part in name for name in line.names], bool)[line.name]

    return lambda line: _scaled(line, chosen, share)


def _scaled(line: Timeline, chosen: Callable[[Timeline], np.ndarray], share: float) -> Ns:
    lasted = as_it_was(line)
    return np.where(chosen(line), np.rint(lasted * share).astype(np.int64), lasted)
