"""Is training the same under a patched source as under the recipe? Both run for some steps, isolated by the kernel.

The patched files stand in for the program's own in the view that the trial has of the file system; nothing is written
to the source. What the patch leaves to the recipe is in force on neither side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core.safety import Safety
from paceline.improve import child
from paceline.improve.child.first_gradients import FIXED as FIXED_DROPOUT
from paceline.improve.child.seeds import SEED
from paceline.improve.child.short_epochs import BATCHES
from paceline.improve.child.witness import FOLDER as WITNESSED
from paceline.improve.isolation import Isolation, isolation_for
from paceline.improve.patches.model import Patch
from paceline.improve.proofs import play_to
from paceline.improve.recipe import BASELINE, Recipe
from paceline.improve.trials import Player, TrialFailed
from paceline.improve.verify import Seen, checks, read_seen, rounding_of

_STEPS, _EPOCH_BATCHES = 24, 8  # into the third epoch
_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class PatchCheck:
    """What came of running a patched program."""

    text: str
    differs: bool = False  # whether it trains otherwise than the program under the recipe


def check_patch(command: Sequence[str], patch: Patch, recipe: Recipe, folder: Path, cwd: Path) -> PatchCheck:
    """Run a program under a recipe and with a patch, and compare the first steps.

    Args:
        command: What starts the program.
        patch: The recipe as a patch.
        recipe: The recipe.
        folder: For the records of both runs.
        cwd: Where the program runs.
    """
    isolation = isolation_for(folder, cwd, allows_network=False)
    if not isolation.by_kernel:
        return PatchCheck(text=f"the patched program was not run, because {isolation.why_not}")
    applied = without(recipe, [one.setting for one in patch.stays])
    runs = _Runs(command, folder, cwd, isolation, _replaced(patch, folder, cwd))
    try:
        under_recipe, patched = runs.computed(applied)
        failed = _differences(applied, under_recipe, under_recipe, patched)
        if failed:
            again, _ = runs.computed(applied)
            failed = _differences(applied, under_recipe, again, patched)
    except TrialFailed as error:
        return PatchCheck(text=f"the patched program was not compared with the recipe: {error}")
    if failed:
        return PatchCheck(text=f"the patched program does not train as the recipe does: {failed[0]}", differs=True)
    return PatchCheck(text=f"the patched program trains as the recipe does, in its first {_STEPS} steps")


def without(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a recipe without some settings, such as ``loader.threads``."""
    left = {
        table: {key: value for key, value in values.items() if f"{table}.{key}" not in settings}
        for table, values in recipe.items()
    }
    return {table: values for table, values in left.items() if values}


def _replaced(patch: Patch, folder: Path, cwd: Path) -> dict[str, str]:
    """Write the patched files beside the trials; return where each belongs."""
    place = folder / "patched-source"
    place.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, (before, after) in enumerate(patch.changed):
        written = place / f"{number}.py"
        written.write_text(after.text, encoding=after.encoding, newline="")
        found[str((cwd / before.path).resolve())] = str(written)
    return found


class _Runs:
    """Runs the program with and without the patch."""

    def __init__(
        self, command: Sequence[str], folder: Path, cwd: Path, isolation: Isolation, replaced: Mapping[str, str]
    ) -> None:
        self._command, self._folder, self._cwd = command, folder, cwd
        self._sides = isolation, replace(isolation, replaced=replaced)
        self._made = 0

    def computed(self, recipe: Recipe) -> tuple[list[Seen], list[Seen]]:
        """Return what is computed under the recipe, and by the patched program."""
        sides = [(recipe, self._sides[0]), (BASELINE, self._sides[1])]
        return self._run(recipe, *sides[0]), self._run(recipe, *sides[1])

    def _run(self, recipe: Recipe, own: Recipe, isolation: Isolation) -> list[Seen]:
        self._made += 1
        variables = {child.WITNESS: "1", SEED: "0", BATCHES: str(_EPOCH_BATCHES), "PACELINE_PROFILE": "0"}
        if _safety(recipe) == "numeric":
            variables[FIXED_DROPOUT] = "1"
        folder = self._folder / f"patch-{self._made:03d}"
        with ExitStack() as stack:
            player = stack.enter_context(Player(self._command, own, folder, variables, self._cwd, isolation))
            play_to([player], _STEPS, _TIMEOUT_S)
            return read_seen(player.folder / WITNESSED)


def _differences(recipe: Recipe, wanted: Sequence[Seen], again: Sequence[Seen], got: Sequence[Seen]) -> list[str]:
    found = checks(_safety(recipe), [wanted], again, got, rounding_of(recipe))
    return [check.text for check in found if not check.passed]


def _safety(recipe: Recipe) -> Safety:
    """Return how closely a patch must follow: to the bit, but for other orders of rounding around the model."""
    return "exact" if set(recipe) <= {"loader", "debug"} else "numeric"
