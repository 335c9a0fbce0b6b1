"""How was it measured, and how far can it be believed?"""

from __future__ import annotations

from paceline import units
from paceline.improve.model import Tuned
from paceline.report import tune_rows, tune_words, words
from paceline.report.page.markup import Markup, element, section
from paceline.report.page.verdict import Fact, facts

_TURNS = (
    "The program as it was kept so far and the program with the change each ran in processes of their own, one of them "
    "stopped at any time, and made the same steps in turn. Such a pair of blocks is one observation. The 95 % interval "
    "holds however often one looks, and includes by how much processes of one and the same program differ here; pairs "
    "during which others took cores were set aside, by that alone."
)
_BARS = "The bars at the top show the median step of one watched run each; the speed-up is from the pairs of blocks."


def method(tuned: Tuned) -> Markup:
    """Tell what the numbers rest on."""
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
        ("Blocks", words.count(pairs, "pair"), f"{aside:,} set aside"),
        ("Rounds", f"{rounds:,}", "each with new processes of both"),
        ("Process scatter", units.percent(tuned.scatter), _scatter(tuned)),
        ("Time", units.seconds(tuned.wall_s), words.headline(tuned.stopped)),
    ]


def _scatter(tuned: Tuned) -> str:
    if tuned.compared < 2:
        return "what is usual: the budget did not allow to measure it"
    return f"speeds of {tuned.compared} processes of the same program, standard deviation"


def _predictions(tuned: Tuned) -> str:
    """Say how predictions did, and whether earlier trials had a part in them."""
    judged = [trial.as_predicted for trial in tuned.trials if trial.as_predicted is not None]
    said = []
    if judged:
        said.append(f"{sum(judged)} of {len(judged)} measured speed-ups lie in what was expected.")
    known = [t for t in tuned.trials if t.predicted_by_findings is not None]
    if any(t.predicted != t.predicted_by_findings for t in known):
        said.append("What was expected is what the findings say, corrected by earlier trials on this machine.")
    return " ".join(said)
