"""The remedies that ``tune`` can try, one module each."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from paceline.core.remedies import RemedyInfo, Safety, remedy_info
from paceline.explain.model import Gain, LoaderBreakdown
from paceline.tune.candidates import Candidate, DiagnosisContext

_UNKNOWN = 1.1  # assumed gain of a candidate without a prediction, used for its rank
_Propose = Callable[[DiagnosisContext], Sequence[Candidate]]


@dataclass(frozen=True, kw_only=True)
class TunableRemedy:
    """A remedy that ``tune`` can try: the candidates that it proposes, and its page.

    Attributes:
        id: Id of the remedy in the table of remedies.
        page: Text of the page, as Markdown sections.
        candidates: Function that returns the changes to try, given the diagnosis context.

    Raises:
        ValueError: The table has no such id, or `tune` cannot try this remedy.
    """

    id: str
    page: str
    candidates: _Propose

    def __post_init__(self) -> None:
        """Check that `tune` can try the remedy."""
        if not self.info.tunable:
            raise ValueError(f"the table of remedies says that paceline tune cannot try {self.id!r}")

    @property
    def info(self) -> RemedyInfo:
        """The row of the remedy in the table: title, safety classes, settings."""
        return remedy_info(self.id)


def switch(
    remedy: str,
    setting: str,
    value: object,
    *,
    why: str,
    safety: Safety = "numeric",
    when: Callable[[DiagnosisContext], bool] = lambda _: True,
) -> _Propose:
    """Return a function that proposes one setting, unless the recipe already has a value for it.

    Args:
        remedy: The id of the remedy.
        setting: The recipe key, such as ``compute.compile``.
        value: The value to set.
        why: Why the setting is tried, as text for the user.
        safety: The safety class of the setting.
        when: Function that returns whether the setting is worth a trial, given the diagnosis context.
    """
    table, _, key = setting.partition(".")

    def propose(context: DiagnosisContext) -> list[Candidate]:
        if context.setting(table, key) is not None or not when(context):
            return []
        predicted = context.gain_of(remedy)
        recipe = {table: {key: value}}
        return [Candidate(remedy=remedy, recipe=recipe, safety=safety, predicted=predicted, why=why)]

    return propose


def without_workers(loader: LoaderBreakdown) -> dict[str, int]:
    """Return the setting that removes the workers of a loader, or no setting if the loader has no workers."""
    return {"num_workers": 0} if loader.workers else {}


def at_most(propose: _Propose, bound: Callable[[DiagnosisContext], float | None]) -> _Propose:
    """Return a function that proposes the same candidates; those without a predicted gain get an upper bound.

    Args:
        propose: Function that returns the candidates.
        bound: Function that returns the largest possible speed-up as a factor, or None if unknown.
    """

    def bounded(context: DiagnosisContext) -> list[Candidate]:
        found, most = propose(context), bound(context)
        if most is None:
            return list(found)
        return [one if one.predicted else replace(one, predicted=Gain(low=1.0, high=most)) for one in found]

    return bounded


@cache
def all_remedies() -> tuple[TunableRemedy, ...]:
    """Return all remedies that ``tune`` can try, sorted by module name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}").REMEDY for name in names)


def candidates(context: DiagnosisContext) -> list[Candidate]:
    """Return the candidates of all remedies, the largest expected gain first.

    Candidates with the same expected gain are sorted by the order in which findings name their remedies.
    """
    found = [one for remedy in all_remedies() for one in remedy.candidates(context)]
    named = [remedy.id for finding in context.findings for remedy in finding.remedies]
    places = {remedy: place for place, remedy in reversed(list(enumerate(named)))}
    return sorted(found, key=lambda one: (-expected(one), places.get(one.remedy, len(named))))


def expected(candidate: Candidate) -> float:
    """Return the gain by which a candidate is ranked: the geometric mean of the ends of the predicted interval.

    A candidate without a prediction counts as if its expected gain were 1.1.
    """
    if candidate.predicted is None:
        return _UNKNOWN
    return (candidate.predicted.low * candidate.predicted.high) ** 0.5
