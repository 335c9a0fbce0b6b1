"""The command to run after a run or a comparison, with the reason."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from paceline.core.remedies import SAFETY_CLASSES, Safety
from paceline.explain.analysis.ending import RUNNING
from paceline.explain.comparison import Comparison
from paceline.explain.model import Diagnosis, Finding, Remedy
from paceline.explain.verdict import NO_STEPS, OF_THE_MACHINE, TOO_SHORT, measured_first
from paceline.record.run import Launch

COMPUTE_BOUND = "compute-bound"
_BY_DEFAULT = ("exact", "resampled")  # safety classes that `paceline tune` tries by default


UNPROVEN = "unproven"  # prefix of the names of recipe files without a proven gain
_WORTH = 1.05  # a search for another finding than the verdict's needs a gain whose upper end is at least this


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The next step as text, and its command, or None if no command performs the step."""

    text: str
    command: str | None

    @property
    def record(self) -> dict[str, str | None]:
        """The step as a JSON object."""
        return {"command": self.command, "text": self.text}

    @property
    def line(self) -> str:
        """The command with the text as a shell comment, or the text alone."""
        return self.text if self.command is None else f"{self.command}  # {self.text}"


def after_run(
    diagnosis: Diagnosis, launch: Launch | None, before: str | None = None, *, recipe_in_force: bool = True
) -> NextStep:
    """Return the next step after a run.

    A run with a recipe is compared with the run before it. If no setting of the recipe had an effect, the program is
    tuned. If ``paceline tune`` can try a remedy of the verdict, a search for it is the next step. For a compute-bound
    program, the next step is a search among changes of the computation. Otherwise the next step is the page of the
    verdict. A run without a verdict is repeated, and the text says what has to change first.

    Args:
        diagnosis: The diagnosis of the run.
        launch: How the run was started, or None if its record does not contain it.
        before: Name of the last run of the same program without a recipe, or None if there is none.
        recipe_in_force: Whether a setting of the recipe had an effect.
    """
    verdict = next((f for f in diagnosis.findings if f.name == diagnosis.verdict), None)
    steps = [
        None if launch is None else _with_recipe(diagnosis, launch, before, recipe_in_force),
        None if launch is None or _failed(diagnosis) else _search(diagnosis, verdict, launch),
        None if launch is None else _corrected(diagnosis, launch),
        None if launch is None or _failed(diagnosis) else _faster_computing(verdict, launch),
        None if verdict is None else _page(verdict, failed=_failed(diagnosis)),
        None if launch is None else _repeated(diagnosis, launch),
    ]
    found = next((step for step in steps if step is not None), None)
    return found or NextStep(text="see the report again", command=_report(diagnosis, launch))


def _report(diagnosis: Diagnosis, launch: Launch | None) -> str:
    return f"paceline report {_option('--dir', launch)}{diagnosis.run_id}"


def _option(name: str, launch: Launch | None) -> str:
    """Return an option of the command that started the run, with a space after it; empty if it was not given.

    Args:
        name: The option, such as ``--dir``. An option of the program with the same name does not count.
        launch: The command.
    """
    own = [] if launch is None else list(launch.argv)[: max(0, len(launch.argv) - len(launch.command) + 1)]
    for place, word in enumerate(own):
        if word.startswith(f"{name}="):
            return f"{name} {shlex.quote(word.removeprefix(f'{name}='))} "
        if word == name and place + 1 < len(own):
            return f"{name} {shlex.quote(own[place + 1])} "
    return ""


def _failed(diagnosis: Diagnosis) -> bool:
    return diagnosis.exit_code not in (0, None)


def _with_recipe(diagnosis: Diagnosis, launch: Launch, before: str | None, in_force: bool) -> NextStep | None:
    if launch.recipe is None:
        return None
    if not in_force and not _failed(diagnosis):
        return NextStep(
            text="no setting of the recipe has an effect on this program; search for changes that have one",
            command=f"paceline tune {as_typed(launch.command)}",
        )
    if before is None:
        return _patch(launch)
    command = f"paceline compare {_option('--dir', launch)}{before} {diagnosis.run_id}"
    return NextStep(text="compare with the previous run", command=command)


def _search(diagnosis: Diagnosis, verdict: Finding | None, launch: Launch) -> NextStep | None:
    """Return the command that tries remedies of the verdict or another finding; None if tune can try none of them."""
    found = _searched(diagnosis, verdict)
    safety = _needed(found) if found is not None else None
    if found is None or safety is None:
        return None
    none = "" if verdict is None else f", because tune can try no change for {verdict.name}"
    of_other = f"try the changes proposed for {found.name}{none}"
    text = "try the proposed changes and keep those that help" if found is verdict else of_other
    return NextStep(text=text, command=_tune(safety, launch))


def _faster_computing(verdict: Finding | None, launch: Launch) -> NextStep | None:
    """Return the command that measures changes of the computation if the verdict is compute-bound, or None."""
    if verdict is None or verdict.name != COMPUTE_BOUND:
        return None
    text = "measure whether lower precision or compilation makes the computation faster"
    return NextStep(text=text, command=_tune("numeric", launch))


def _searched(diagnosis: Diagnosis, verdict: Finding | None) -> Finding | None:
    """Return the finding whose remedies a search tries first: the verdict, another finding worth a search, or None."""
    if verdict is not None and _needed(verdict) is not None:
        return verdict
    of_machine = verdict is not None and verdict.code in OF_THE_MACHINE
    others = measured_first(diagnosis.findings) if of_machine else diagnosis.findings
    return next((one for one in others if _is_worth_a_search(one, unsure=of_machine)), None)


def named_remedy(diagnosis: Diagnosis) -> str | None:
    """Return the id of the first remedy that a run proposes and ``tune`` can try, or None."""
    verdict = next((f for f in diagnosis.findings if f.name == diagnosis.verdict), None)
    found = _searched(diagnosis, verdict)
    return next((r.id for r in found.remedies if _can_be_tried(r)), None) if found is not None else None


def _tune(safety: Safety, launch: Launch) -> str:
    allow = "" if safety in _BY_DEFAULT else f"--allow {safety} "
    return f"paceline tune {allow}{as_typed(launch.command)}"


def _page(verdict: Finding, *, failed: bool) -> NextStep:
    """Return the command that explains the verdict, with the reason why no search is proposed."""
    why = "" if failed or not verdict.remedies else "; tune can try none of its remedies"
    return NextStep(
        text=f"see what {verdict.name} means and what helps{why}", command=f"paceline explain {verdict.code}"
    )


def _corrected(diagnosis: Diagnosis, launch: Launch) -> NextStep | None:
    """Return the step after a run that ended with an error of the program, or None after other runs."""
    if (diagnosis.exit_code or 0) not in range(1, 128):
        return None
    command = _run(launch)
    if diagnosis.exit_code in (1, 2) or ":" in diagnosis.ended:  # an exception, or a usage error
        return NextStep(text="correct the error, then run the program again", command=command)
    why = f"the program's output says why it ended with exit code {diagnosis.exit_code}; then run it again"
    return NextStep(text=why, command=command)


def _repeated(diagnosis: Diagnosis, launch: Launch) -> NextStep | None:
    """Return the step after a run without a verdict, or None if there is nothing to do."""
    if diagnosis.ended == RUNNING:
        return NextStep(text="look again later", command=_report(diagnosis, launch))
    if diagnosis.verdict == TOO_SHORT:
        return NextStep(text="let the program make more steps", command=_run(launch))
    if diagnosis.verdict == NO_STEPS:
        return NextStep(text="run a program that trains with torch; this one made no training step", command=None)
    return None


def after_comparison(comparison: Comparison) -> NextStep:
    """Return the next step after a comparison.

    If the second run is faster and had a recipe, the next step is to write the recipe as a patch. If the difference is
    unclear and the second run had a recipe, both runs are repeated. Otherwise the next step is the page of a new
    finding or of the verdict.
    """
    launch, after = comparison.launch_after, comparison.after
    if comparison.outcome == "cannot-tell" and launch is not None and launch.recipe is not None:
        return _both_again(launch)
    if comparison.outcome == "faster" and launch is not None and launch.recipe is not None:
        return _patch(launch)
    named = [*comparison.new, *(f for f in after.findings if f.name == after.verdict)]
    if named:
        text = f"see what {named[0].name} means and what helps"
        return NextStep(text=text, command=f"paceline explain {named[0].code}")
    return NextStep(text="see the report again", command=f"paceline report {after.run_id}")


def _both_again(launch: Launch) -> NextStep:
    program, recipe = as_typed(launch.command), shlex.quote(launch.recipe or "")
    return NextStep(
        text="the difference is unclear; run both again, one right after the other, while the machine is idle",
        command=f"paceline run {program} && paceline run --recipe {recipe} {program} && paceline compare last~1 last",
    )


def _patch(launch: Launch) -> NextStep:
    recipe = shlex.quote(launch.recipe or "")
    command = f"paceline tune --diff --from {recipe} {as_typed(launch.command)}"
    unproven = "; paceline tune did not prove its gain" if is_unproven(launch.recipe or "") else ""
    return NextStep(text=f"write the recipe into the source{unproven}", command=command)


def is_unproven(recipe: str) -> bool:
    """Return whether a file has the name that ``tune`` gives to recipes without a proven gain."""
    return PurePath(recipe).stem.startswith(UNPROVEN)


def _run(launch: Launch) -> str:
    """Return the command that runs a program again, with its layout and recipe."""
    recipe = "" if launch.recipe is None else f"--recipe {shlex.quote(launch.recipe)} "
    return f"paceline run {_option('--layout', launch)}{recipe}{as_typed(launch.command)}"


def as_typed(command: Sequence[str]) -> str:
    """Return a command as typed after a Paceline subcommand: a script or a module, or ``--`` and a command line."""
    return shlex.join(command[1:] if command[0] == sys.executable else ["--", *command])


def _is_worth_a_search(finding: Finding, *, unsure: bool) -> bool:
    """Return whether a finding other than the verdict is likely enough, and its gain large enough, to try its remedies.

    Args:
        finding: The finding.
        unsure: Whether a finding with low confidence counts. True if the verdict is about the machine, because then no
            other finding is more certain.
    """
    likely = (unsure or finding.confidence != "low") and finding.gain is not None and finding.gain.high >= _WORTH
    return likely and _needed(finding) is not None


def _needed(finding: Finding) -> Safety | None:
    """Return the least permissive safety class that allows a remedy of a finding; None if ``tune`` cannot try any."""
    return min((r.safety for r in finding.remedies if _can_be_tried(r)), key=SAFETY_CLASSES.index, default=None)


def _can_be_tried(remedy: Remedy) -> bool:
    return remedy.info.tunable and (remedy.gain is None or remedy.gain.high > 1.0)
