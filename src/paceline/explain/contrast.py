"""In what else do two runs differ, besides time? Findings, losses, settings; and what makes the comparison doubtful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from paceline.core.statistics import Floats, median_interval
from paceline.explain.comparison import Difference, LossChange
from paceline.explain.ending import FINISHED, RUNNING
from paceline.explain.facts import Facts
from paceline.explain.model import Diagnosis, Finding
from paceline.explain.verdict import TOO_SHORT
from paceline.record import layout
from paceline.record.run import Rank, column

_LOSS_WINDOW = 20  # losses that make up the loss at a step
_META = {"torch": "torch", "python": "Python", "threads": "compute threads of a rank"}
_LOADER = (
    "class",
    "dataset",
    "sampler",
    "collate_fn",
    "drop_last",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "start_method",
)
_CONTENTION = "HOST003"
_LATE_AND_HARMLESS = frozenset({"CONV003"})
_LATE = _LATE_AND_HARMLESS | {"CONV001", "CONV002", "MEM002", "RUN005"}  # findings that show only after many steps


def new_findings(before: Diagnosis, after: Diagnosis) -> list[Finding]:
    """Return the findings that only the run after has, unless the run before was too short to have them."""
    shorter = _steps(before) < _steps(after)
    return [f for f in _unshared(after, before) if not (shorter and f.code in _LATE_AND_HARMLESS)]


def gone_findings(before: Diagnosis, after: Diagnosis) -> list[Finding]:
    """Return the findings that only the run before has, unless the run after was too short to have them."""
    shorter = _steps(after) < _steps(before)
    return [f for f in _unshared(before, after) if not (shorter and f.code in _LATE)]


def _unshared(first: Diagnosis, second: Diagnosis) -> list[Finding]:
    """Return the findings of the first that the second does not have, without those that ask for nothing.

    A run that is too short for a diagnosis has no findings about speed, so nothing is concluded from their absence.
    """
    known = {finding.code for finding in second.findings}
    found = [f for f in first.findings if f.code not in known and f.severity != "info"]
    return [f for f in found if f.code in _LATE] if second.verdict == TOO_SHORT else found


def _steps(told: Diagnosis) -> int:
    return max((rank.steps for rank in told.ranks), default=0)


# ------------------------------------------------------------------------------------------------------ loss


def loss_change(before: Rank, after: Rank) -> LossChange | None:
    """Compare the losses up to the last step that both ranks have taken; None where one has none."""
    curves = _losses(before), _losses(after)
    if not all(len(steps) for steps, _ in curves):
        return None
    last = int(min(steps[-1] for steps, _ in curves))
    known = [values[(steps <= last) & np.isfinite(values)] for steps, values in curves]
    middle = [median_interval(values[-_LOSS_WINDOW:]) for values in known]
    alike, common = _alike(*curves)
    if middle[0] is None or middle[1] is None:
        return None
    return LossChange(step=last, before=middle[0], after=middle[1], steps_alike=alike, steps_common=common)


def _losses(rank: Rank) -> tuple[Floats, Floats]:
    rows = rank.steps[(rank.steps["flags"] & layout.FLAG_LOSS) != 0]
    return column(rows, "index"), column(rows, "loss")


def _alike(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> tuple[int, int]:
    """Count the steps from the first on whose losses are the same to the last bit, and the steps in common."""
    _, first, second = np.intersect1d(before[0], after[0], assume_unique=True, return_indices=True)
    same = (before[1][first] == after[1][second]) | (np.isnan(before[1][first]) & np.isnan(after[1][second]))
    return (int(np.argmin(same)) if not same.all() else len(same)), len(same)


# -------------------------------------------------------------------------------------------------- settings


def differences(facts: tuple[Facts, Facts], told: tuple[Diagnosis, Diagnosis]) -> list[Difference]:
    """Return what the two runs do not share: command, device, ranks, batch, versions, settings of the loader."""
    before, after = (dict(_settings(*side)) for side in zip(facts, told, strict=True))
    names = [*before, *(name for name in after if name not in before)]
    pairs = ((name, before.get(name, "none"), after.get(name, "none")) for name in names)
    return [Difference(name=name, before=one, after=other) for name, one, other in pairs if one != other]


def _settings(facts: Facts, told: Diagnosis) -> Iterator[tuple[str, str]]:
    meta = facts.first.record.meta
    yield "command", told.command
    recipes = {launch.recipe for launch in facts.run.launches}
    yield "recipe", ", ".join(sorted(filter(None, recipes))) or "none"
    yield "device", told.device_name or told.device
    yield "ranks", str(told.world)
    yield "batch size of a rank", "unknown" if told.batch_size is None else f"{told.batch_size:g}"
    for key, name in _META.items():
        yield name, str(meta.get(key, "unknown"))
    if told.loader is not None:
        yield "loader workers", str(told.loader.workers)
        yield "loader threads", str(told.loader.threads)
        yield from _loader_settings(told.loader.settings)


def _loader_settings(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key in _LOADER:
        if settings.get(key) is not None:
            yield f"loader {key}", str(settings[key])


# ----------------------------------------------------------------------------------------------------- notes


def notes(told: tuple[Diagnosis, Diagnosis]) -> list[str]:
    """Return what should be known before the comparison is believed."""
    same = told[0].run_id == told[1].run_id
    found = ["BEFORE and AFTER name the same run; `paceline report` lists all runs"] if same else []
    contended = [any(finding.code == _CONTENTION for finding in one.findings) for one in told]
    if any(contended):
        which = "both runs were" if all(contended) else f"the run {'before' if contended[0] else 'after'} was"
        found.append(f"{which} slowed down by other programs that used the CPU ({_CONTENTION})")
    for which, one in zip(("before", "after"), told, strict=True):
        if one.exit_code is not None and one.ended != FINISHED:
            found.append(f"the run {which} did not finish: {one.ended}")
        elif one.ended == RUNNING:
            found.append(f"the run {which} is still running; its steps so far are compared")
        if one.verdict == TOO_SHORT:
            found.append(f"the run {which} is too short for a diagnosis, so it has no findings about speed")
    return found
