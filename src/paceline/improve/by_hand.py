"""Remedies that findings name and a search did not try: each is told, so that nothing is left out silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.remedies import remedy_info
from paceline.explain.model import Remedy
from paceline.improve.model import Tuned

_JOINED = " + "  # between the remedies of a trial of several changes


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """A remedy that was not tried."""

    remedy: Remedy
    finding: str  # its code

    @property
    def why(self) -> str:
        """Why it was not tried."""
        if remedy_info(self.remedy.id).tunable:
            return "no trial was about it"
        return "it can only be made in the source or on the machine"


def by_hand(tuned: Tuned) -> Sequence[ByHand]:
    """Return the remedies that findings of the program, as it is now, name and no trial was about."""
    tried = {part for trial in tuned.trials for part in trial.remedy.split(_JOINED)}
    diagnosis = tuned.after if tuned.after is not None else tuned.before
    found: dict[str, ByHand] = {}
    for finding in diagnosis.findings:
        if finding.severity == "info":
            continue
        for remedy in finding.remedies:
            if remedy.id not in tried:
                found.setdefault(remedy.id, ByHand(remedy=remedy, finding=finding.code))
    return list(found.values())
