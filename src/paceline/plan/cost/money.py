"""The price of a training run: hours times price, with the cost of interruptions on spot machines.

A cluster of n instances, each interrupted λ times an hour, is interrupted every MTBF = 1/(nλ) hours on average. A
checkpoint takes the time C and is written every τ; a restart takes the time R. So training takes
1 + C/τ + (τ/2 + R)/MTBF times as long. This factor is smallest for τ = sqrt(2·C·MTBF) (Young 1974, Daly 2006).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date

from paceline.plan.cost.machines import Machines
from paceline.plan.cost.plan import Plan

# Middle of the spot advisor's bands, as the share of instances interrupted in a month.
_BANDS = {"<5%": 0.025, "5-10%": 0.075, "10-15%": 0.125, "15-20%": 0.175, ">20%": 0.25}
_MONTH_H = 730.0
_SAVED_BYTES = 12.0  # bytes of a weight in a checkpoint: fp32 with two moments
_STORAGE_BYTES_PER_S = 2e9  # assumed write speed of a node to shared storage; named in the output
_RESTART_S = 600.0  # assumed time for a new machine, the container, the data and the checkpoint
OLD_DAYS = 90


@dataclass(frozen=True, kw_only=True)
class SpotRisk:
    """The cost of a training run on spot machines, with the effect of interruptions.

    Attributes:
        usd: Price of the whole run, with restarts.
        checkpoint_every_s: The best checkpoint interval in seconds.
        interruptions: Expected number of interruptions.
    """

    usd: float
    hours: float
    checkpoint_every_s: float
    interruptions: float
    monthly_interruption: float
    source: str


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Hours and price of some training steps. Four of five measurements are between the low and the high value.

    Attributes:
        usd_per_hour: On-demand price of all machines; None if unknown.
        source: Source of the price, with its date.
        given: Whether the user gave the price.
        age_days: Age of the price; None if its source has no date.
        most_energy_kwh: Energy of the GPUs at their power limit, without hosts and cooling.
    """

    steps: int
    hours: float
    hours_low: float
    hours_high: float
    usd_per_hour: float | None
    usd: float | None
    usd_low: float | None
    usd_high: float | None
    source: str
    given: bool
    age_days: int | None
    most_energy_kwh: float
    spot: SpotRisk | None


def training_cost(
    plan: Plan, machines: Machines, steps: int, spread: float, price: tuple[float | None, str, date]
) -> TrainingCost:
    """Return the hours and the price of some training steps of a plan.

    Args:
        plan: The plan.
        machines: The machines.
        steps: Number of training steps.
        spread: Relative error of the step time that four of five predictions stay below.
        price: US dollars per hour of all machines (None if the user gave no price), the source of the price, and
            today's date.
    """
    given, said, today = price
    hours = plan.step_s * steps / 3600
    rate = machines.usd_per_hour if given is None else given
    source = said or (machines.instance.price_source if machines.instance else "")
    low, high = hours / (1 + spread), hours * (1 + spread)
    return TrainingCost(
        steps=steps,
        hours=hours,
        hours_low=low,
        hours_high=high,
        usd_per_hour=rate,
        usd=_times(rate, hours),
        usd_low=_times(rate, low),
        usd_high=_times(rate, high),
        source=source,
        given=given is not None,
        age_days=age_days(source, today),
        most_energy_kwh=high * machines.cluster.count * machines.cluster.gpu.power_w / 1000,
        spot=spot_risk(plan, machines, hours),
    )


def age_days(source: str, today: date) -> int | None:
    """Return the age of a price in days, computed from the date in its source; None without a date."""
    found = re.search(r"(\d{4})-(\d{2})-(\d{2})", source)
    try:
        return (today - date(int(found[1]), int(found[2]), int(found[3]))).days if found else None
    except ValueError:
        return None


def spot_risk(plan: Plan, machines: Machines, hours: float) -> SpotRisk | None:
    """Return the hours and the price of a plan on spot machines; None if the price or the risk is unknown."""
    instance = machines.instance
    if instance is None or instance.spot_usd_h is None or instance.interruption_band not in _BANDS:
        return None
    monthly = _BANDS[instance.interruption_band]
    per_hour = -math.log(1 - monthly) / _MONTH_H * machines.cluster.nodes
    between_s = 3600 / per_hour
    saving_s = plan.case.model.params * _SAVED_BYTES / (_STORAGE_BYTES_PER_S * machines.cluster.nodes)
    every_s = math.sqrt(2 * saving_s * between_s)
    longer = 1 + saving_s / every_s + (every_s / 2 + _RESTART_S) / between_s
    return SpotRisk(
        usd=instance.spot_usd_h * machines.cluster.nodes * hours * longer,
        hours=hours * longer,
        checkpoint_every_s=every_s,
        interruptions=hours * longer * per_hour,
        monthly_interruption=monthly,
        source=f"{instance.spot_source}; interruptions: spot advisor 2025-06, {instance.interruption_band} a month",
    )


def _times(rate: float | None, hours: float) -> float | None:
    return None if rate is None else rate * hours
