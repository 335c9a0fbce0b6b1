"""The section on how the gain was measured."""

from __future__ import annotations

from paceline.core import units
from paceline.report import words
from paceline.report.page.markup import Markup, element, section
from paceline.report.page.verdict import Fact, facts
from paceline.report.tune import rows as tune_rows
from paceline.report.tune import words as tune_words
from paceline.tune.search.result import TuneResult

_TURNS = (
    "The baseline and the candidate ran in separate processes and alternated: while one process ran a block of "
    "steps, the other process was stopped. A block of the baseline and the same block of the candidate form one "
    "pair, which is one measurement. The 95% confidence intervals stay valid although the result is checked "
    "repeatedly during the trial. The intervals include the noise between processes of the same program. Paceline "
    "discarded pairs only if other programs used CPU cores."
)
_BARS = (
    "Each bar at the top shows a mean step time. The times come from the same pairs as the speed-up. The shares of the "
    "phases come from one run each."
)
_TURNS_TIME = "The second step time is computed from the speed-ups of the single changes."


def method(tuned: TuneResult) -> Markup:
    """Return the section that explains how the numbers were measured."""
    missing = f"The program was {tune_words.not_watched(tuned)}." if tuned.best else ""
    bars = [_BARS, *([_TURNS_TIME] if tuned.in_turn else [])]
    shown = tuned.after is not None and tuned.step_times is not None
    paragraphs = (_TURNS, " ".join(bars) if shown else missing if tuned.after is None else "", _predictions(tuned))
    return section(
        "method",
        "How it was measured",
        *(element("p", text, class_="prose") for text in paragraphs if text),
        facts(_facts(tuned)),
    )


def _facts(tuned: TuneResult) -> list[Fact]:
    made = [row.trial for row in tune_rows.rows(tuned)]
    pairs = sum(trial.speedup.count for trial in made if trial.speedup is not None)
    rounds, aside = sum(trial.rounds for trial in made), sum(trial.set_aside for trial in made)
    return [
        ("Blocks", words.count(pairs, "pair"), f"{aside:,} discarded"),
        ("Rounds", f"{rounds:,}", "each with new processes"),
        ("Noise between processes", units.percent(tuned.scatter), _scatter(tuned)),
        ("Time", units.seconds(tuned.wall_s), words.headline(tuned.stopped)),
    ]


def _scatter(tuned: TuneResult) -> str:
    if tuned.compared < 2:
        return "a typical value is assumed, because the budget was too small to measure the noise"
    return f"standard deviation over {tuned.compared} processes of the same program"


def _predictions(tuned: TuneResult) -> str:
    """Return sentences on the accuracy of predictions, and on whether earlier trials improved them."""
    measured = [t for t in tuned.trials if t.speedup is not None and t.predicted is not None]
    judged = [trial.as_predicted for trial in measured if trial.as_predicted is not None]
    said = []
    if measured:
        within = f"Of {words.count(len(measured), 'measured speed-up')} with an expected interval, {sum(judged)} "
        open_ones = len(measured) - len(judged)
        rest = f"; for {open_ones}, the measurement is too uncertain to tell" if open_ones else ""
        said.append(f"{within}{'is' if sum(judged) == 1 else 'are'} within it{rest}.")
    known = [t for t in tuned.trials if t.predicted_by_findings is not None]
    if any(t.predicted != t.predicted_by_findings for t in known):
        said.append(
            "Expected gains come from the findings, and are corrected with the results of earlier trials on "
            "this machine."
        )
    return " ".join(said)
