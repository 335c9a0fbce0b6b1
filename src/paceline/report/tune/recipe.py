"""The sections on the recipe, on the checks that training stays the same, and on the patch of the source."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.recipe import recipe_toml
from paceline.report import words
from paceline.report.page.markup import Markup, details, element, join, section, sentence
from paceline.report.tune.trials import check_of
from paceline.report.tune.words import quality_lines, unproven_lines
from paceline.tune.search.result import TuneResult

MAX_DIFF = 3000  # lines
_KINDS = {"+": "added", "-": "removed", "@": "place"}


def recipe(tuned: TuneResult, recipe_file: str | None) -> Markup | None:
    """Return the section with the best recipe (proven or not) and its checks; None without a recipe."""
    shown, found = tuned.best, tuned.checks
    if not tuned.best and tuned.unproven is not None:
        shown, found = tuned.unproven.recipe, tuned.unproven.checks
    if not shown:
        return None
    where = element("p", "Written to ", element("code", recipe_file), ".", class_="quiet") if recipe_file else None
    checks = element("ul", *map(check_of, found), class_="checks") if found else None
    return section(
        "recipe",
        "The recipe" if tuned.best else "What looked fastest",
        *(element("p", sentence(words.headline(line))) for line in unproven_lines(tuned)[:1]),
        where,
        _block(recipe_toml(shown).splitlines()),
        element("h3", "Is the training result still the same?") if checks else None,
        checks,
        _quality(tuned),
    )


def _quality(tuned: TuneResult) -> Markup | None:
    """Return the comparison of the time to a target loss; None if it was not measured."""
    if tuned.quality is None:
        return None
    lines = quality_lines(tuned.quality, tuned.price_per_hour)
    return element("ul", *(element("li", sentence(words.headline(line))) for line in lines), class_="evidence")


def _block(lines: Iterable[str | Markup]) -> Markup:
    text = join(piece for line in lines for piece in (line, Markup("\n")))
    return element("pre", element("code", text), class_="block", tabindex="0")


def source(diff: str | None) -> Markup | None:
    """Return the section with the recipe as a change of the source; None without a diff."""
    if not diff:
        return None
    lines = diff.splitlines()
    counts = ", ".join(f"{sum(_kind(line) == name for line in lines)} {name}" for name in ("added", "removed"))
    shown = [element("span", line.expandtabs(4), class_=_kind(line)) for line in lines[:MAX_DIFF]]
    if len(lines) > MAX_DIFF:
        shown.append(element("span", f"… and {words.count(len(lines) - MAX_DIFF, 'more line')}"))
    said = f"Apply this patch instead of the recipe: {words.count(len(lines), 'line')}, {counts}"
    patch = details(said, _block(shown), open_=True, class_="diff")
    return section("source", "The recipe as a patch", patch)


def _kind(line: str) -> str | None:
    """Return the CSS class of a line of a unified diff: added, removed, or place (a position); None for others."""
    return None if line.startswith(("+++", "---")) else _KINDS.get(line[:1])
