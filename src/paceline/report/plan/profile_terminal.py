"""The profile of a machine in a few lines; each number has its interval and count."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.units import count, percent, seconds, significant, size
from paceline.plan.calibrate.local_prediction import fit_rates, messages_of
from paceline.plan.calibrate.profile import Figure, Moved, Profile, RankProfile

_REFERENCE_FLOPS = 2 * 512**3
_NOISY = 0.1  # half the interquartile range, as a share of the figure


def lines_of(profile: Profile) -> Iterator[str]:
    """Yield the lines of a profile."""
    made = profile.made
    model = made.cpu_model or "unknown processor"
    yield f"{made.host}: {model}, {made.cores:g} cores; {made.device}, torch {made.torch}"
    for place in profile.places:
        yield from _place(place, profile)
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        yield from _messages(profile, name)
    if profile.copies:
        near, far = _rate(profile.copies[0]), _rate(profile.copies[-1])
        yield f"memory copies: {near} within the CPU caches, {far} outside the CPU caches"
    for what, moved in (("to the device", profile.host_copies), ("reading a file", profile.storage)):
        yield from (f"{what}: {_rate(each)}" for each in moved)
    yield f"time of the smallest operator: {_figure(profile.launch)}"
    others = f"{profile.others_cores:.1f} of {made.cores:g} cores"
    yield f"calibration took {seconds(profile.took_s)}; meanwhile, other processes used {others}"


def _place(place: RankProfile, profile: Profile) -> Iterator[str]:
    who = f"{place.ranks} rank{'s' * (place.ranks > 1)} with {place.threads} thread{'s' * (place.threads > 1)}"
    reference = place.reference
    speed = significant(_REFERENCE_FLOPS / reference.seconds / 1e9)
    product = f"a 512 x 512 matrix product takes {_figure(reference)}, {speed} GFLOP/s"
    yield f"{who}: {len(place.points)} operators; {product}"
    if place.blocks:
        rates = fit_rates(place, profile)
        yield (
            f"  from {len(place.blocks)} measured models: {seconds(rates.call_s)} per operator call, "
            f"{_per_byte(rates.far_byte_s)} read outside the CPU caches, {_per_byte(rates.fresh_byte_s)} of a new "
            f"buffer; prediction error {percent(rates.scatter)}"
        )
    if (reference.high - reference.low) / 2 > _NOISY * reference.seconds:
        yield "  the machine's speed varied during calibration, so predictions have wider intervals"


def _messages(profile: Profile, name: str) -> Iterator[str]:
    for ranks in sorted({each.ranks for each in profile.messages}):
        found = messages_of(profile, name, ranks)
        if found is not None:
            said = count(sum(each.time.count for each in profile.messages if each.name == name), "message")
            speed = size(found.bytes_per_s)
            yield f"{name}, {ranks} ranks: latency {seconds(found.latency_s)}, bandwidth {speed}/s ({said})"


def _rate(moved: Moved) -> str:
    fast, slow = moved.moved_bytes / moved.time.low, moved.moved_bytes / moved.time.high
    times = count(moved.time.count, "time")
    return f"{size(moved.moved_bytes / moved.time.seconds)}/s ({size(slow)} to {size(fast)}, {times})"


def _per_byte(rate: float) -> str:
    return f"{significant(rate * 1e12)} ps per byte"


def _figure(figure: Figure) -> str:
    return f"{seconds(figure.seconds)} ({seconds(figure.low)} to {seconds(figure.high)}, {count(figure.count, 'time')})"
