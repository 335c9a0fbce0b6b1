"""The head of a tuning page: the gain, what to do first, a bar for each run, and the main numbers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePath

from paceline.core import units
from paceline.core.remedies import Safety, least_safe
from paceline.report import words
from paceline.report.page.markup import Markup, element, join, sentence
from paceline.report.page.next_step import SAFETY, badge, first_step
from paceline.report.page.paced import Paced, paced
from paceline.report.page.verdict import Fact, facts
from paceline.report.tune import rows as tune_rows
from paceline.report.tune.words import failure_line, money_lines, whole_line
from paceline.tune.search.result import TuneResult

_TRAINING: Mapping[str, str] = {
    "exact": "The same training",
    "resampled": "The same training with other random numbers",
    "numeric": "The same training with different rounding",
    "semantic": "Training with another algorithm",
}


def header(tuned: TuneResult, next_command: str) -> Markup:
    """Return the head of the page."""
    return element(
        "header",
        element("p", element("b", "paceline tune"), element("span", words.device(tuned.before)), class_="brand"),
        _chip(tuned),
        element("h1", sentence(headline(tuned))),
        element("p", _meta(tuned), class_="meta"),
        first_step(first_sentence(tuned), details=_known(tuned), command=next_command),
        _bars(tuned),
        facts(_facts(tuned)),
        *(element("p", sentence(words.headline(line)), class_="meta") for line in _lines(tuned)),
        element("pre", element("code", _command(tuned)), class_="command", tabindex="0", aria_label="The program"),
    )


def _lines(tuned: TuneResult) -> list[str]:
    told = (failure_line(tuned), whole_line(tuned))
    return [*(line for line in told if line is not None), *money_lines(tuned)]


def first_sentence(tuned: TuneResult) -> str:
    """Return what to do first: use the recipe, search again, or keep the program."""
    if tuned.best:
        return "Run the program with the recipe"
    is_open = tuned.out_of_budget or tuned.unproven is not None
    return "Search again: no gain is proven yet" if is_open else "Keep the program as it is"


def _known(tuned: TuneResult) -> list[str | Markup]:
    if not tuned.best:
        return []
    known: list[str | Markup] = [badge(_class(tuned), SAFETY[_class(tuned)])]
    gained = tune_rows.in_all(tuned)
    if gained is not None:
        what = " less memory" if tune_rows.for_memory(tuned) else " measured speed-up of a step"
        known.append(join((element("b", units.factor(gained.value)), what)))
    return known


def _command(tuned: TuneResult) -> str:
    """Return the command of the program as a user would type it, without the path of the interpreter."""
    first, *rest = tuned.command
    return shlex.join([PurePath(first).name, *rest])


def headline(tuned: TuneResult) -> str:
    """Return the result of tuning in one sentence."""
    looked = tuned.unproven.speedup if tuned.unproven is not None else None
    if looked is not None:
        return f"One change looked {units.factor(looked.value)} faster, but that is not proven"
    if not tuned.best:
        return "No gain was proven: keep the program unchanged"
    gained = tune_rows.in_all(tuned)
    changes = words.count(len(_kept(tuned)), "change")
    if gained is None:
        return f"{changes} kept, each with a proven gain; their combined gain was not measured"
    factor = units.factor(gained.value)
    faster = f"{factor} faster per step" if tuned.is_per_step else f"{factor} faster"
    much = f"in {factor} less memory" if tune_rows.for_memory(tuned) else faster
    return f"{_TRAINING[_class(tuned)]}, {much}"


def _kept(tuned: TuneResult) -> list[Safety]:
    """Return the safety class of each change that was kept."""
    return [trial.safety for trial in tuned.trials if trial.status == "kept"]


def _class(tuned: TuneResult) -> Safety:
    return least_safe(_kept(tuned))


def _chip(tuned: TuneResult) -> Markup:
    mark, name, mood = ("✓", "gain proven", "good") if tuned.best else ("●", "no gain proven", "info")
    return element("p", element("span", mark, aria_hidden="true"), element("strong", name), class_=f"chip {mood}")


def _meta(tuned: TuneResult) -> str:
    return f"tuned for {units.seconds(tuned.wall_s)}; {tuned.stopped}"


# -- before and after ------------------------------------------------------------------------------------


def _bars(tuned: TuneResult) -> Markup | None:
    """Return one bar for a step of the baseline, and one for a step with the recipe if that was measured.

    Their lengths are the step times from which the speed-up is computed.
    """
    times = tuned.step_times
    if tuned.after is None or times is None:
        own_s = tuned.before.step_s
        only_s = times.baseline_s if times is not None else words.finite(own_s.value) if own_s is not None else None
        return paced([Paced(name="Baseline", time_s=only_s, shares=tuned.before.shares)])
    return paced(
        [
            Paced(name="Baseline", time_s=times.baseline_s, shares=tuned.before.shares),
            Paced(name="With the recipe", time_s=times.candidate_s, shares=tuned.after.shares),
        ]
    )


# -- figures ---------------------------------------------------------------------------------------------


def _facts(tuned: TuneResult) -> list[Fact]:
    return [*_gained(tuned), *_moved(tuned), *_made(tuned)]


def _gained(tuned: TuneResult) -> list[Fact]:
    speed = "Speed-up", tune_rows.value(tuned.speedup), tune_rows.bounds(tuned.speedup)
    memory = "Memory at its peak", *tune_rows.memory(tuned.saving)
    ordered = (memory, speed) if tune_rows.for_memory(tuned) else (speed, memory)
    how = "; changes measured one after the other" if tuned.in_turn else ""
    return [(name, value, f"{ends} of blocks{how}") for name, value, ends in ordered if ends]


def _moved(tuned: TuneResult) -> list[Fact]:
    before, after = tuned.before, tuned.after
    if after is None:
        return [("Bottleneck", before.verdict, words.headline(before.verdict_text))]
    found = [("Bottleneck", f"{before.verdict} → {after.verdict}", "in one run each")]
    speeds = tune_rows.throughput(tuned)
    if speeds is not None:
        both = " → ".join(f"{speed:,.0f}" if speed >= 100 else units.significant(speed) for speed in speeds)
        found.append(("Throughput", f"{both} samples/s", "computed from the step times of the pairs"))
    return found


def _made(tuned: TuneResult) -> list[Fact]:
    made = tune_rows.rows(tuned)
    kept = sum(row.trial.status == "kept" for row in made)
    beside = f"{len(tune_rows.left_out(tuned.trials))} more not tried" if tune_rows.left_out(tuned.trials) else ""
    return [("Trials", f"{len(made)}, {kept} kept", beside)]
