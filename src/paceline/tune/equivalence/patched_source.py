"""Comparison of a patched program with the program under the recipe, over some steps in isolated trials.

The trial sees the patched files in place of the program's own files; the source on disk does not change. Settings that
the patch leaves to the recipe are off on both sides. The comparison also checks that the patch takes effect: the
training loader must have the same workers, prefetch factor and pinning as under the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.recipe import BASELINE, Recipe, setting_keys
from paceline.core.remedies import Safety
from paceline.explain.analysis.loader import training_loaders
from paceline.inprocess import settings
from paceline.inprocess.settings.seeds import SEED
from paceline.inprocess.settings.trial.checksums import FOLDER as WITNESSED
from paceline.inprocess.settings.trial.first_gradients import FIXED as FIXED_DROPOUT
from paceline.inprocess.settings.trial.short_epochs import BATCHES
from paceline.record.read import read_run
from paceline.tune.equivalence.outputs import RankOutputs, compare_outputs, gradient_tolerance, read_outputs
from paceline.tune.equivalence.runs import run_and_end
from paceline.tune.patches.model import Patch, UnpatchedSetting
from paceline.tune.trials.blocks import TrialFailed
from paceline.tune.trials.isolation import Isolation, isolation_for
from paceline.tune.trials.process import TrialProcess

_STEPS, _EPOCH_BATCHES = 24, 8  # 24 steps with epochs of 8 batches reach into the third epoch
_TIMEOUT_S = 300.0
_OF_LOADER = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
_SUSPECTS = (  # settings to leave out one at a time if the results of a patch differ, the likeliest reason first
    "loader.persistent_workers",
    "loader.cache",
    "compute.compile",
    "compute.channels_last",
    "precision.autocast",
)
_MOST_LEFT_OUT = 3


@dataclass(frozen=True, kw_only=True)
class PatchCheck:
    """The result of running a patched program."""

    text: str
    # whether the program fails, the patch has no effect, or training differs from that under the recipe
    differs: bool = False


@dataclass(frozen=True, kw_only=True)
class _PatchedRun:
    """The outputs of a run, and the settings of its training loader."""

    seen: Sequence[RankOutputs]
    loader: Mapping[str, Any]


def largest_equivalent_patch(
    command: Sequence[str], make: Callable[[Recipe], Patch], recipe: Recipe, folder: Path, cwd: Path
) -> tuple[Patch, PatchCheck]:
    """Return the largest patch with which the program trains as it does under the recipe, and the result of its check.

    If the full patch makes a difference, smaller patches are tried that leave out one setting each.

    Args:
        command: The command that starts the program.
        make: Function that makes a patch from a recipe.
        recipe: The recipe.
        folder: Folder for the records of the runs.
        cwd: Working directory of the program.
    """
    patch = make(recipe)
    check = first = check_patch(command, patch, recipe, folder / "whole", cwd)
    staying = {one.setting for one in patch.stays}
    suspects = [key for key in _SUSPECTS if key in setting_keys(recipe) and key not in staying]
    for key in suspects[:_MOST_LEFT_OUT] if check.differs and len(setting_keys(recipe)) > 1 else ():
        smaller = make(without(recipe, [key]))
        if smaller.changed:
            check = check_patch(command, smaller, without(recipe, [key]), folder / key, cwd)
            if not check.differs:
                left = UnpatchedSetting(setting=key, why=f"with it in the patch, {first.text}")
                return replace(smaller, stays=[*smaller.stays, left]), check
    return patch, first


def check_patch(command: Sequence[str], patch: Patch, recipe: Recipe, folder: Path, cwd: Path) -> PatchCheck:
    """Run the program once under a recipe and once with a patch, and compare the first steps.

    Args:
        command: The command that starts the program.
        patch: The patch made from the recipe.
        recipe: The recipe.
        folder: Folder for the records of both runs.
        cwd: Working directory of the program.
    """
    isolation = isolation_for(folder, cwd, allows_network=False)
    if not isolation.by_kernel:
        return PatchCheck(text=f"the patched program was not run, because {isolation.why_not}")
    applied = without(recipe, [one.setting for one in patch.stays])
    runs = _PatchRuns(command, folder, cwd, isolation, _replaced(patch, folder, cwd))
    try:
        under_recipe = again = runs.under(applied)
    except TrialFailed as error:
        return PatchCheck(text=f"the patched program was not compared with the recipe: {error}")
    try:
        patched = runs.patched(applied)
        failed = _differences(applied, under_recipe, again, patched)
        if failed:
            again, patched = runs.under(applied), runs.patched(applied)
            failed = _differences(applied, under_recipe, again, patched)
    except TrialFailed as error:
        return PatchCheck(text=f"the patched program fails, and under the recipe it does not: {error}", differs=True)
    if failed:
        return PatchCheck(text=f"the patched program does not train as the recipe does: {failed[0]}", differs=True)
    return PatchCheck(text=f"the patched program trains as the recipe does, in its first {_STEPS} steps")


def without(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a recipe without the given settings, such as ``loader.threads``."""
    left = {
        table: {key: value for key, value in values.items() if f"{table}.{key}" not in settings}
        for table, values in recipe.items()
    }
    return {table: values for table, values in left.items() if values}


def _replaced(patch: Patch, folder: Path, cwd: Path) -> dict[str, str]:
    """Write the patched files into the trial folder, and map each original path to the path of the patched file."""
    place = folder / "patched-source"
    place.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, (before, after) in enumerate(patch.changed):
        written = place / f"{number}{before.path.suffix}"
        written.write_text(after.text, encoding=after.encoding, newline="")
        found[str((cwd / before.path).resolve())] = str(written)
    return found


class _PatchRuns:
    """Runs the program under a recipe without the patch, and runs the patched program."""

    def __init__(
        self, command: Sequence[str], folder: Path, cwd: Path, isolation: Isolation, replaced: Mapping[str, str]
    ) -> None:
        self._command, self._folder, self._cwd = command, folder, cwd
        self._sides = isolation, replace(isolation, replaced=replaced)
        self._made = 0

    def under(self, recipe: Recipe) -> _PatchedRun:
        """Run the program under the recipe and return its outputs."""
        return self._run(recipe, recipe, self._sides[0])

    def patched(self, recipe: Recipe) -> _PatchedRun:
        """Run the patched program without a recipe and return its outputs.

        `recipe` only decides whether dropout draws fixed numbers.
        """
        return self._run(recipe, BASELINE, self._sides[1])

    def _run(self, recipe: Recipe, own: Recipe, isolation: Isolation) -> _PatchedRun:
        self._made += 1
        variables = {settings.WITNESS: "1", SEED: "0", BATCHES: str(_EPOCH_BATCHES), "PACELINE_PROFILE": "0"}
        if _safety(recipe) == "numeric":
            variables[FIXED_DROPOUT] = "1"
        folder = self._folder / f"patch-{self._made:03d}"
        with ExitStack() as stack:
            process = stack.enter_context(TrialProcess(self._command, own, folder, variables, self._cwd, isolation))
            run_and_end([process], _STEPS, _TIMEOUT_S)
            return _PatchedRun(seen=read_outputs(process.folder / WITNESSED), loader=_loader_of(process.folder))


def _loader_of(folder: Path) -> Mapping[str, Any]:
    """Return the recorded settings of the training loader, or an empty mapping if the run has no training loader."""
    run = read_run(folder)
    numbers = training_loaders(run.ranks[0]) if run.ranks else []
    return run.ranks[0].summary["loaders"][numbers[0]] if numbers else {}


def _differences(recipe: Recipe, wanted: _PatchedRun, again: _PatchedRun, got: _PatchedRun) -> list[str]:
    found = compare_outputs(_safety(recipe), [wanted.seen], again.seen, got.seen, gradient_tolerance(recipe))
    return [check.text for check in found if not check.passed] + _without_effect(recipe, wanted.loader, got.loader)


def _without_effect(recipe: Recipe, wanted: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Return a message for each loader setting of the recipe that the patched program's training loader lacks."""
    settings = {key: value for key, value in recipe.get("loader", {}).items() if key in _OF_LOADER}
    if not wanted or not got:
        return []
    right = {key: value if key == "pin_memory" else wanted.get(key) for key, value in settings.items()}
    return [
        f"the patch has no effect: the training loader has {key}={got.get(key)} instead of {value}"
        for key, value in right.items()
        if got.get(key) != value
    ]


def _safety(recipe: Recipe) -> Safety:
    """Return the safety class for checking a patch: `exact` for loader and debug settings, otherwise `numeric`."""
    return "exact" if set(recipe) <= {"loader", "debug"} else "numeric"
