"""How the gain was measured."""

from __future__ import annotations

from paceline import units
from paceline.improve.model import Tuned
from paceline.report import tune_rows, tune_words, words
from paceline.report.page.markup import Markup, element, section
from paceline.report.page.verdict import Fact, facts

_TURNS = (
    "The baseline and the candidate ran in separate processes and alternated: while one process ran a block of "
    "steps, the other process was stopped. A block of the baseline and the same block of the candidate form one "
    "pair, which is one measurement. The 95% confidence intervals stay valid although the result is checked "
    "repeatedly during the trial. The intervals include the noise between processes of the same program. Paceline "
    "discarded pairs only if other programs used CPU cores."
)
_BARS = "Each bar at the top shows the median step time of one run. The speed-up is computed from the pairs."


def method(tuned: Tuned) -> Markup:
    """Explain how the numbers were measured."""
    missing = f"The program was {tune_words.not_watched(tuned)}." if tuned.best else ""
    paragraphs = (_TURNS, _BARS if tuned.after is not None else missing, _predictions(tuned))
    return section(
        "method",
        "How it was measured",
        *(element("p", text, class_="prose") for text in paragraphs if text),
        facts(_facts(tuned)),
    )


def _facts(tuned: Tuned) -> list[Fact]:
    made = [row.trial for row in tune_rows.rows(tuned)]
    pairs = sum(trial.speedup.count for trial in made if trial.speedup is not None)
    rounds, aside = sum(trial.rounds for trial in made), sum(trial.set_aside for trial in made)
    return [
        ("Blocks", words.count(pairs, "pair"), f"{aside:,} discarded"),
        ("Rounds", f"{rounds:,}", "each with new processes"),
        ("Noise between processes", units.percent(tuned.scatter), _scatter(tuned)),
        ("Time", units.seconds(tuned.wall_s), words.headline(tuned.stopped)),
    ]


def _scatter(tuned: Tuned) -> str:
    if tuned.compared < 2:
        return "a typical value is assumed, because the budget was too small to measure the noise"
    return f"standard deviation over {tuned.compared} processes of the same program"


def _predictions(tuned: Tuned) -> str:
    """Say how predictions did, and whether earlier trials had a part in them."""
    judged = [trial.as_predicted for trial in tuned.trials if trial.as_predicted is not None]
    said = []
    if judged:
        said.append(f"{sum(judged)} of the {len(judged)} measured speed-ups are within their expected intervals.")
    known = [t for t in tuned.trials if t.predicted_by_findings is not None]
    if any(t.predicted != t.predicted_by_findings for t in known):
        said.append(
            "Expected gains come from the findings, and are corrected with the results of earlier trials on "
            "this machine."
        )
    return " ".join(said)
