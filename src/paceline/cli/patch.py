"""The options and the output of a patch, which writes a recipe into a program's source."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.explain.next_step import as_typed, is_unproven

if TYPE_CHECKING:
    from paceline.core.recipe import Recipe
    from paceline.explain.model import Finding
    from paceline.tune.patches.model import Patch, SourceFile
    from paceline.tune.patches.source.configs import ConfigFile
    from paceline.tune.patches.suggestions import Suggestion

_NEEDS = "a patch to the source needs libcst; install it with `pip install paceline[patch]`"


@dataclass(frozen=True, kw_only=True)
class PatchOffer:
    """A recipe as a patch of the source, or the reason why there is no patch."""

    patch: Patch | None
    diff: str | None
    why_not: str | None  # the reason, if there is no diff
    suggestions: Sequence[Suggestion] = ()  # for lines of the user; shown, never written
    checked: str | None = None  # result of running the patched program; None: it was not run

    def as_json(self) -> dict[str, Any]:
        """Return the patch as JSON values."""
        stays = self.patch.stays if self.patch is not None else ()
        left = [{"setting": one.setting, "why": one.why} for one in stays]
        return {
            "diff": self.diff,
            "diff_reason": self.why_not,
            "diff_check": self.checked,
            "not_in_diff": left,
            "suggestions": [asdict(one) for one in self.suggestions],
        }


def takes_patch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command the options for a patch."""
    diff = click.option("--diff", is_flag=True, help="Print a patch that writes the recipe into the program's source.")
    write = click.option(
        "--write",
        is_flag=True,
        help="Write the recipe into the program's source. The old version of each changed file is kept as FILE.orig.",
    )
    source = click.option(
        "--from",
        "from_recipe",
        type=click.Path(path_type=Path),
        metavar="RECIPE",
        help="Make the patch from this recipe, without running trials.",
    )
    check = click.option(
        "--no-check",
        is_flag=True,
        help="Do not run the patched program. Without --no-check, tune prints a patch only if the program trains the "
        "same with the patch and with the recipe.",
    )
    return diff(write(source(check(function))))


def check(command: Sequence[str], options: dict[str, Any]) -> None:
    """If a patch is requested, check before the trials that it can be made.

    Raises:
        EnvironmentFault: libcst is missing.
        UsageError: The command names no Python file of the user's.
    """
    if options["diff"] or options["write"]:
        if find_spec("libcst") is None:
            raise EnvironmentFault(_NEEDS)
        _read(command)


def from_recipe(command: Sequence[str], options: dict[str, Any]) -> int:
    """Make a patch of a program's source from a recipe file, check it, and show or apply it. Return the exit code.

    Raises:
        UsageError: The recipe is not valid, or no file of the program can be read.
        EnvironmentFault: libcst is missing, or a file cannot be written.
    """
    from paceline.core.recipe import read_recipe

    if options["json_file"] is not None or options["html"] is not None:
        raise UsageError(
            "--json and --html write the result of trials, but with --from there are no trials; leave out --json and "
            "--html"
        )
    recipe = read_recipe(options["from_recipe"])
    options = {**options, "diff": options["diff"] or not options["write"]}
    check(command, options)
    with tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True) as folder:
        found = proven(offer(command, recipe), command, recipe, Path(folder), options)
    show(found, options)
    _tell(_next(command, found, options))
    return 0


def _next(command: Sequence[str], found: PatchOffer, options: dict[str, Any]) -> str:
    """Return the last line: the next command, or, if no setting can be written, that the recipe is still needed."""
    recipe, program = shlex.quote(str(options["from_recipe"])), as_typed(command)
    unproven = "  # paceline tune did not prove its gain" if is_unproven(str(options["from_recipe"])) else ""
    if found.diff is not None and not options["write"]:
        return f"next: paceline tune --write --from {recipe} {program}{unproven}"
    if found.patch is not None and not found.patch.stays:
        return f"next: paceline run {program}"
    if found.diff is not None:
        return f"next: paceline run --recipe {recipe} {program}"
    return (
        "the source stays as it is; the settings take effect only with the recipe: "
        f"paceline run --recipe {recipe} {program}"
    )


def offer(command: Sequence[str], recipe: Recipe, findings: Sequence[Finding] = ()) -> PatchOffer:
    """Return a recipe as a patch, or the reason why there is no patch, such as an internal error.

    Args:
        command: The command that starts the program.
        recipe: The settings to write into the source.
        findings: Findings about the unchanged program, from which suggestions for source lines are made.
    """
    try:
        return _offer(command, recipe, findings)
    except UsageError as error:
        return PatchOffer(patch=None, diff=None, why_not=str(error))
    except Exception as error:
        if os.environ.get("PACELINE_DEBUG"):
            raise
        return PatchOffer(patch=None, diff=None, why_not=f"internal error: {type(error).__name__}: {error}")


def _offer(command: Sequence[str], recipe: Recipe, findings: Sequence[Finding]) -> PatchOffer:
    from paceline.tune.patches.suggestions import suggestions

    sources = _read(command)
    shown = suggestions(findings, sources)
    if not recipe:
        return PatchOffer(patch=None, diff=None, why_not="no change was kept", suggestions=shown)
    if find_spec("libcst") is None:
        return PatchOffer(patch=None, diff=None, why_not=_NEEDS, suggestions=shown)
    from paceline.tune.patches.model import diff_of
    from paceline.tune.patches.patch import patched

    patch = patched(sources, recipe, command, _configs(sources, command))
    diff = diff_of(patch) or None
    reason = (
        "no setting of the recipe can be written into the source"
        if patch.stays
        else "the source already has all settings of the recipe"
    )
    return PatchOffer(patch=patch, diff=diff, why_not=None if diff else reason, suggestions=shown)


def proven(
    found: PatchOffer, command: Sequence[str], recipe: Recipe, folder: Path, options: dict[str, Any]
) -> PatchOffer:
    """Run the patched program, and return the largest patch that trains as the recipe does.

    If there is none, the returned offer has no patch. Nothing is run if no patch is requested or the check is off.

    Args:
        found: The offer.
        command: The command that starts the program.
        recipe: The recipe that the patch is made from.
        folder: A folder for the records of the runs, which the caller removes.
        options: The options of the command line.
    """
    if found.patch is None or found.diff is None or not (options["diff"] or options["write"]) or options["no_check"]:
        return found
    from paceline.tune.equivalence.patched_source import largest_equivalent_patch
    from paceline.tune.patches.model import diff_of
    from paceline.tune.patches.patch import patched

    _tell("comparing the patched program with the program under the recipe")
    sources = _read(command)
    configs = _configs(sources, command)
    make = partial(patched, sources, command=command, configs=configs)
    patch, check = largest_equivalent_patch(command, make, recipe, folder, Path.cwd())
    if check.differs:
        return replace(found, patch=None, diff=None, why_not=check.text, checked=check.text)
    return replace(found, patch=patch, diff=diff_of(patch), checked=check.text)


def show(found: PatchOffer, options: dict[str, Any]) -> None:
    """Print the diff or apply it, and print which settings stay in the recipe.

    Raises:
        EnvironmentFault: A file cannot be written.
    """
    if not (options["diff"] or options["write"]):
        return
    if options["diff"] and found.diff:
        click.echo(found.diff, nl=False)
    if found.why_not is not None:
        _tell(f"no patch: {found.why_not}")
    elif found.checked is not None:
        _tell(f"patch: {found.checked}")
    _tell_rest(found)
    if options["write"] and found.patch is not None:
        _write(found.patch)


def _tell_rest(found: PatchOffer) -> None:
    """Print the settings that are not in the patch, with the reasons, and print the suggestions."""
    stays = found.patch.stays if found.patch is not None else ()
    for why in dict.fromkeys(one.why for one in stays):
        names = ", ".join(one.setting for one in stays if one.why == why)
        _tell(f"not in the patch: {names}: {why}")
    for one in found.suggestions:
        _tell(f"suggestion, not part of the patch: {one.where}: {one.text}")
        for line in (one.diff or "").splitlines():
            _tell(f"  {line}")


def _write(patch: Patch) -> None:
    from paceline.tune.patches.model import write

    for path, kept in write(patch, Path.cwd()):
        _tell(f"wrote {path}; the old version of the file is {kept}")


def _read(command: Sequence[str]) -> list[SourceFile]:
    from paceline.tune.patches.source.sources import sources_of

    return sources_of(command, Path.cwd(), os.environ)


def _configs(sources: Sequence[SourceFile], command: Sequence[str]) -> list[ConfigFile]:
    from paceline.tune.patches.source.configs import configs_of

    return configs_of(sources, command, Path.cwd())


def _tell(text: str) -> None:
    click.echo(f"paceline: {text}", err=True)
