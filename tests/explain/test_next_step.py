"""What is a user told to type after a run?"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from tests.report import sample

from paceline.explain.comparison import Comparison
from paceline.explain.model import Gain, Remedy
from paceline.explain.next_step import after_comparison, after_run
from paceline.record.run import Launch
from paceline.report.words import own_finding

LAUNCH = Launch(
    host="h", pid=1, argv=[], command=[sys.executable, "my train.py", "--lr", "0.1"], started_unix_s=0.0, started_ns=0
)


def diagnosis(*remedies: Remedy, **changes):
    plain = sample.diagnosis()
    findings = [replace(f, remedies=remedies) if f.name == plain.verdict else f for f in plain.findings]
    return replace(plain, findings=findings, exit_code=0, **changes)


def remedy(name: str, safety: str, high: float = 1.5) -> Remedy:
    return Remedy(id=name, safety=safety, change="do it", gain=Gain(low=1.0, high=high))


@pytest.mark.parametrize("safety, allow", [("exact", ""), ("resampled", ""), ("numeric", "--allow numeric ")])
def test_a_remedy_that_tune_can_try_is_tried(safety, allow):
    step = after_run(diagnosis(remedy("loader.workers", safety)), LAUNCH)
    assert step.command == f"paceline tune {allow}'my train.py' --lr 0.1"


def test_the_safest_remedy_decides_what_has_to_be_allowed():
    step = after_run(diagnosis(remedy("batch.size", "semantic"), remedy("loader.workers", "resampled")), LAUNCH)
    assert "--allow" not in str(step.command)


@pytest.mark.parametrize(
    "remedies", [[], [remedy("loader.decode", "numeric")], [remedy("loader.workers", "exact", high=1.0)]]
)
def test_what_tune_cannot_try_is_explained(remedies):
    found = diagnosis(*remedies)
    code = next(f.code for f in found.findings if f.name == found.verdict)
    assert after_run(found, LAUNCH).command == f"paceline explain {code}"


def test_a_program_that_failed_is_not_tuned():
    failed = replace(diagnosis(remedy("loader.workers", "exact")), exit_code=1)
    assert str(after_run(failed, LAUNCH).command).startswith("paceline run")


@pytest.mark.parametrize("given", [["--layout", "dp=2"], ["--layout=dp=2"]])
def test_a_run_on_several_ranks_is_repeated_with_its_layout(given):
    """An option --layout of the program is not Paceline's."""
    program = ["train.py", "--layout", "wide"]
    launch = replace(LAUNCH, command=[sys.executable, *program], argv=["paceline", "run", *given, *program])
    failed = replace(diagnosis(remedy("loader.workers", "exact")), exit_code=1)
    assert after_run(failed, launch).command == "paceline run --layout dp=2 train.py --layout wide"


def test_any_command_line_is_tuned_as_it_was_typed():
    launch = replace(LAUNCH, command=["torchrun", "--nproc-per-node", "2", "train.py"])
    step = after_run(diagnosis(remedy("loader.workers", "exact")), launch)
    assert step.command == "paceline tune -- torchrun --nproc-per-node 2 train.py"


def test_a_run_with_a_recipe_is_compared_with_the_run_before_it():
    launch = replace(LAUNCH, recipe="recipe.toml")
    found = diagnosis(remedy("loader.workers", "exact"))
    assert after_run(found, launch, "earlier").command == f"paceline compare earlier {found.run_id}"
    assert after_run(found, launch).command == "paceline tune --diff --from recipe.toml 'my train.py' --lr 0.1"


@pytest.mark.parametrize("given", [["--dir", "my runs"], ["--dir=my runs"]])
def test_commands_about_runs_name_their_folder(given):
    """An option --dir of the program is not Paceline's."""
    program = ["train.py", "--dir", "data"]
    argv = ["paceline", "run", *given, "--recipe", "recipe.toml", *program]
    launch = replace(LAUNCH, recipe="recipe.toml", command=["python", *program], argv=argv)
    found = diagnosis(remedy("loader.workers", "exact"))
    assert after_run(found, launch, "earlier").command == f"paceline compare --dir 'my runs' earlier {found.run_id}"
    elsewhere = replace(launch, argv=["paceline", "run", *program])
    assert after_run(found, elsewhere, "earlier").command == f"paceline compare earlier {found.run_id}"


def test_another_finding_is_searched_and_the_text_says_why():
    plain = diagnosis(remedy("host.cores", "exact"))
    verdict, *others = plain.findings
    remedies, gain = [remedy("loader.workers", "exact")], Gain(low=1.1, high=1.5)
    other = replace(verdict, name="loader-serial", confidence="high", gain=gain, remedies=remedies)
    step = after_run(replace(plain, findings=[verdict, other, *others]), LAUNCH)
    assert step.command == "paceline tune 'my train.py' --lr 0.1"
    assert step.text == f"try the changes proposed for loader-serial, because tune can try no change for {verdict.name}"


def test_beside_a_verdict_about_the_machine_an_unsure_finding_is_searched():
    plain = diagnosis(remedy("host.cores", "exact"))
    verdict = replace(plain.findings[0], code="HOST003")
    remedies, gain = [remedy("loader.workers", "exact")], Gain(low=1.02, high=3.9)
    own = replace(verdict, code="DATA001", name="loader-serial", confidence="low", gain=gain, remedies=remedies)
    step = after_run(replace(plain, findings=[verdict, own]), LAUNCH)
    assert step.command == "paceline tune 'my train.py' --lr 0.1"


def test_beside_a_verdict_about_the_machine_a_measured_gain_comes_before_an_assumed_one():
    plain = diagnosis(remedy("host.cores", "exact"))
    verdict = replace(plain.findings[0], code="HOST003")
    assumed = Gain(low=1.0, high=1.5, basis="assumed")
    launches = replace(
        verdict, code="COMP002", name="launch-bound", confidence="low", gain=assumed,
        remedies=[remedy("compute.compile", "numeric")],
    )  # fmt: skip
    waits = replace(
        verdict, code="DATA003", name="loader-io-bound", confidence="low", gain=Gain(low=1.0, high=1.25),
        remedies=[remedy("loader.workers", "exact")],
    )  # fmt: skip
    found = replace(plain, findings=[verdict, launches, waits])
    assert own_finding(found) is waits
    assert after_run(found, LAUNCH).command == "paceline tune 'my train.py' --lr 0.1"


def test_the_page_of_a_verdict_says_why_nothing_is_searched():
    found = diagnosis(remedy("host.cores", "exact"))
    assert after_run(found, LAUNCH).text.endswith("; tune can try none of its remedies")


def test_of_a_program_that_only_computes_changes_of_the_computation_are_measured():
    plain = diagnosis()
    computes = replace(plain.findings[0], name="compute-bound", code="COMP001", remedies=[], gain=None)
    found = after_run(replace(plain, verdict="compute-bound", findings=[computes]), LAUNCH)
    assert found.command == "paceline tune --allow numeric 'my train.py' --lr 0.1"
    failed = replace(plain, verdict="compute-bound", findings=[computes], exit_code=1)
    assert not after_run(failed, LAUNCH).command.startswith("paceline tune")


@pytest.mark.parametrize(
    "verdict, exit_code, ended, command, said",
    [
        ("too-short", 1, "exited with code 1", "paceline run 'my train.py' --lr 0.1", "correct the error"),
        ("too-short", 3, "exited with code 3", "paceline run 'my train.py' --lr 0.1", "ended with exit code 3"),
        ("too-short", 3, "exited with code 3: ValueError", "paceline run 'my train.py' --lr 0.1", "correct the error"),
        ("cpu-contended", 1, "exited with code 1", "paceline run 'my train.py' --lr 0.1", "correct the error"),
        ("no-steps", 1, "exited with code 1", "paceline run 'my train.py' --lr 0.1", "correct the error"),
        ("too-short", 0, "finished", "paceline run 'my train.py' --lr 0.1", "more steps"),
        ("too-short", 130, "interrupted (SIGINT)", "paceline run 'my train.py' --lr 0.1", "more steps"),
        ("too-short", None, "still running", "paceline report", "later"),
        ("no-steps", 0, "finished", None, "run a program that trains"),
    ],
)
def test_a_run_without_a_verdict_says_what_has_to_change(verdict, exit_code, ended, command, said):
    step = after_run(
        replace(sample.diagnosis(), verdict=verdict, findings=[], exit_code=exit_code, ended=ended), LAUNCH
    )
    assert (step.command or "").startswith(command or "")
    assert (step.command is None) == (command is None)
    assert said in step.text


def test_a_recipe_without_effect_leads_to_a_search_and_not_back_to_its_patch():
    launch = replace(LAUNCH, recipe="recipe.toml")
    for before in ("earlier", None):
        step = after_run(diagnosis(), launch, before, recipe_in_force=False)
        assert step.command == "paceline tune 'my train.py' --lr 0.1"
        assert "no setting of the recipe has an effect" in step.text
    failed = replace(diagnosis(), exit_code=1)
    assert "tune 'my" not in str(after_run(failed, launch, recipe_in_force=False).command)  # it may have had no time


def test_without_a_verdict_the_report_is_shown_again():
    healthy = replace(diagnosis(), verdict="balanced", findings=[])
    assert after_run(healthy, LAUNCH).command == f"paceline report {healthy.run_id}"


@pytest.fixture
def comparison(tmp_path):
    before, after = (sample.diagnosis(run_id=name) for name in ("before", "after"))
    values = dict.fromkeys(Comparison.__dataclass_fields__)
    values |= {"before": before, "after": after, "new": [], "outcome": "faster", "launch_after": LAUNCH}
    return Comparison(**values)


def test_a_recipe_that_made_a_run_faster_is_written_into_the_source(comparison):
    found = replace(comparison, launch_after=replace(LAUNCH, recipe="my recipe.toml"))
    assert after_comparison(found).command == "paceline tune --diff --from 'my recipe.toml' 'my train.py' --lr 0.1"


def test_a_patch_of_a_recipe_without_a_proven_gain_is_said_to_be_one(comparison):
    found = replace(comparison, launch_after=replace(LAUNCH, recipe="runs/unproven-2.toml"))
    assert "did not prove" in after_comparison(found).text
    found = replace(comparison, launch_after=replace(LAUNCH, recipe="recipe.toml"))
    assert "did not prove" not in after_comparison(found).text


@pytest.mark.parametrize("changes", [{"outcome": "same"}, {"launch_after": LAUNCH}, {"launch_after": None}])
def test_any_other_comparison_leads_to_the_page_of_the_verdict(comparison, changes):
    step = after_comparison(replace(comparison, **changes))
    assert str(step.command).startswith("paceline explain ")


def test_an_unclear_difference_is_measured_again(comparison):
    found = replace(comparison, outcome="cannot-tell", launch_after=replace(LAUNCH, recipe="recipe.toml"))
    program = "'my train.py' --lr 0.1"
    assert after_comparison(found).command == (
        f"paceline run {program} && paceline run --recipe recipe.toml {program} && paceline compare last~1 last"
    )
