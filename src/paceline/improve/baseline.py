"""The unchanged program is watched first: does it run as a trial does, and with whom does it want to speak?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paceline.core.recipe import BASELINE
from paceline.improve.isolation import peers_of, shortened
from paceline.improve.situation import Situation
from paceline.improve.trials import ProgramFailed, TrialFailed
from paceline.improve.workshop import Workshop


def watch_baseline(workshop: Workshop, told: Callable[[str], None]) -> Situation:
    """Watch the unchanged program; one that fails while the kernel isolates it is watched in the sandbox instead.

    Raises:
        TrialFailed: It cannot be run, or wants to speak to the network, which was not allowed.
    """
    told(workshop.isolation.in_words())
    told("measuring the unchanged program")
    try:
        found = workshop.watch(BASELINE)
    except TrialFailed as error:
        _check_network(workshop)
        if not isinstance(error, ProgramFailed) or not workshop.isolation.by_kernel:
            raise
        why_not = f"with isolation by the kernel {error}"
        workshop.isolation = replace(workshop.isolation, by_kernel=False, why_not=why_not)
        told(workshop.isolation.in_words())
        found = workshop.watch(BASELINE)
    _check_network(workshop)
    return found


def _check_network(workshop: Workshop) -> None:
    peers = peers_of(workshop.last_folder)
    if peers and not workshop.isolation.allows_network:
        raise TrialFailed(
            f"it opens connections to {shortened(peers)}, and each trial would do the same; nothing was sent so far. "
            f"If that is harmless, use --allow-network; if not, switch it off in the program"
        )
