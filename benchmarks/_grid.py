"""Which of all the settings that matter for a program is the best? Every cell of a grid, each beside the baseline."""

from __future__ import annotations

import itertools
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _clocked import RunFailed, clocked, under

from paceline.core.recipe import BASELINE, Recipe, check_recipe, describe_recipe, merge_recipes

PROGRAMS = Path(__file__).parent / "tune_programs"
AS_IS = "as is"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, what holds it back, and the grid of what might help it."""

    name: str
    bottleneck: str
    allow: str  # the boldest safety class that it may be tuned with
    warmup: int  # steps
    steps: int  # that are measured
    cells: Sequence[Recipe]

    @property
    def program(self) -> Path:
        """Its file."""
        return PROGRAMS / f"{self.name}.py"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A recipe of the grid, measured; seconds of a step are None when it failed, and `failed` says why."""

    recipe: Recipe
    baseline_step_s: float | None
    step_s: float | None
    failed: str | None = None

    @property
    def speedup(self) -> float:
        """How many times faster than the baseline beside it; 0 when it failed."""
        return self.baseline_step_s / self.step_s if self.baseline_step_s and self.step_s else 0.0


def read_cases(file: Path = PROGRAMS / "programs.toml") -> dict[str, Case]:
    """Return the programs with their grids.

    Raises:
        UsageError: A grid sets what a recipe cannot set.
    """
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: Case(
            name=name,
            bottleneck=given["bottleneck"],
            allow=given["allow"],
            warmup=given["warmup"],
            steps=given["steps"],
            cells=cells_of(given["grid"], f"{file.name}, {name}"),
        )
        for name, given in content.items()
    }


def cells_of(tables: Sequence[Mapping[str, Sequence[Any]]], where: str) -> list[Recipe]:
    """Return the recipes of the union of some products, each once; the baseline is not among them."""
    made = (
        _recipe(dict(zip(table, values)), where) for table in tables for values in itertools.product(*table.values())
    )
    once = {describe_recipe(recipe): recipe for recipe in made if recipe}
    return list(once.values())


def _recipe(values: Mapping[str, Any], where: str) -> Recipe:
    parts = [{name.partition(".")[0]: {name.partition(".")[2]: v}} for name, v in values.items() if v != AS_IS]
    return check_recipe(merge_recipes(*parts), where)


def measured(case: Case, folder: Path, told: Callable[[str], None]) -> tuple[list[Cell], float]:
    """Measure every cell of a program's grid beside a run of the baseline, in an order that changes.

    Returns:
        The cells, and the wall seconds that all of it took.
    """
    begun, found = time.monotonic(), []
    for number, recipe in enumerate(case.cells):
        order = [BASELINE, recipe] if number % 2 else [recipe, BASELINE]
        cell = _cell(case, recipe, order, folder)
        told(f"{case.name}: {number + 1} of {len(case.cells)}: {describe_recipe(recipe)}: {cell.failed or shown(cell)}")
        found.append(cell)
    return found, time.monotonic() - begun


def shown(cell: Cell) -> str:
    """Print a cell's figures."""
    return f"{cell.speedup:.2f}x, {1e3 * cell.step_s:.1f} ms beside {1e3 * cell.baseline_step_s:.1f} ms"


def _cell(case: Case, recipe: Recipe, order: Sequence[Recipe], folder: Path) -> Cell:
    try:
        step_s = {describe_recipe(one): timed(case, one, folder) for one in order}
    except RunFailed as error:
        return Cell(recipe=recipe, baseline_step_s=None, step_s=None, failed=str(error))
    return Cell(
        recipe=recipe, baseline_step_s=step_s[describe_recipe(BASELINE)], step_s=step_s[describe_recipe(recipe)]
    )


def timed(case: Case, recipe: Recipe, folder: Path) -> float:
    """Return the seconds of a step of a program under a recipe.

    Raises:
        RunFailed: It failed.
    """
    command = under(recipe, folder, case.program, "--steps", case.warmup + case.steps)
    return clocked(command, folder).step_s(case.warmup)


def finalists(cells: Sequence[Cell], count: int = 2) -> list[Recipe]:
    """Return the fastest recipes of a grid, each measured once so far; the baseline where none is faster than it."""
    ordered = sorted((cell for cell in cells if cell.speedup > 1.0), key=lambda cell: cell.speedup, reverse=True)
    return [cell.recipe for cell in ordered[:count]] or [BASELINE]
