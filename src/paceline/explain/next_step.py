"""What to type after a run, and why."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.safety import SAFETY_CLASSES, Safety
from paceline.explain.comparison import Comparison
from paceline.explain.model import Diagnosis, Finding, Remedy
from paceline.record.run import Launch

_BY_DEFAULT = ("exact", "resampled")  # classes that `paceline tune` tries without being asked


_WORTH = 1.05  # the least upper end of a gain that a search is proposed for, if it is not the verdict's


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """What to do next in a few words, and the command for it; None if no command does it."""

    text: str
    command: str | None


def after_run(diagnosis: Diagnosis, launch: Launch | None, before: str | None = None) -> NextStep:
    """Return the next step after a run.

    A run with a recipe is compared with the run before it. If ``paceline tune`` can try a remedy of the verdict, that
    is the next step. Otherwise it is the page of the verdict.

    Args:
        diagnosis: The run, explained.
        launch: How the run was started; None if its record does not say.
        before: The name of the last run of the same program without a recipe; None if there is none.
    """
    failed = diagnosis.exit_code not in (0, None)
    verdict = next((f for f in diagnosis.findings if f.name == diagnosis.verdict), None)
    if launch is not None and (not failed or launch.recipe is not None):
        program = as_typed(launch.command)
        if launch.recipe is not None and before is not None:
            return NextStep(
                text="compare with the previous run", command=f"paceline compare {before} {diagnosis.run_id}"
            )
        if launch.recipe is not None:
            return _patch(launch)
        if verdict is not None and (safety := _needed(verdict)) is not None:
            allow = "" if safety in _BY_DEFAULT else f"--allow {safety} "
            return NextStep(
                text="try the proposed changes and keep those that make training faster",
                command=f"paceline tune {allow}{program}",
            )
        if other := next((f for f in diagnosis.findings if _is_worth_a_search(f)), None):
            allow = "" if _needed(other) in _BY_DEFAULT else f"--allow {_needed(other)} "
            return NextStep(
                text=f"try the changes proposed for {other.name}", command=f"paceline tune {allow}{program}"
            )
    if verdict is not None:
        return NextStep(text="see what this finding means and what helps", command=f"paceline explain {verdict.code}")
    return NextStep(text="see the report again", command=f"paceline report {diagnosis.run_id}")


def after_comparison(comparison: Comparison) -> NextStep:
    """Return the next step after a comparison.

    If the second run is faster and had a recipe, it is the recipe as a patch. Otherwise it is the page of a new finding
    or of the verdict.
    """
    launch, after = comparison.launch_after, comparison.after
    if comparison.outcome == "faster" and launch is not None and launch.recipe is not None:
        return _patch(launch)
    named = [*comparison.new, *(f for f in after.findings if f.name == after.verdict)]
    if named:
        return NextStep(text="see what this finding means and what helps", command=f"paceline explain {named[0].code}")
    return NextStep(text="see the report again", command=f"paceline report {after.run_id}")


def _patch(launch: Launch) -> NextStep:
    recipe = shlex.quote(launch.recipe or "")
    command = f"paceline tune --diff --from {recipe} {as_typed(launch.command)}"
    return NextStep(text="write the recipe into the source", command=command)


def as_typed(command: Sequence[str]) -> str:
    """Return a command as it is typed behind a verb: a script or a module, or ``--`` and any command line."""
    return shlex.join(command[1:] if command[0] == sys.executable else ["--", *command])


def _is_worth_a_search(finding: Finding) -> bool:
    """Say whether a finding beside the verdict is likely enough, and its gain large enough, to try its remedies."""
    likely = finding.confidence != "low" and finding.gain is not None and finding.gain.high >= _WORTH
    return likely and _needed(finding) is not None


def _needed(finding: Finding) -> Safety | None:
    """Return the class that has to be allowed to try a remedy of a finding; None if ``tune`` can try none of them."""
    return min((r.safety for r in finding.remedies if _can_be_tried(r)), key=SAFETY_CLASSES.index, default=None)


def _can_be_tried(remedy: Remedy) -> bool:
    return remedy.info.tunable and (remedy.gain is None or remedy.gain.high > 1.0)
