"""The memory and the cost of a run."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.model import Diagnosis
from paceline.report import words
from paceline.report.page.markup import Markup, element, section
from paceline.report.page.verdict import Fact, facts

_NAMES = {
    "peak_rss_bytes": "Process memory, peak",
    "peak_device_bytes": "Device memory, peak",
    "device_total_bytes": "Device memory",
    "host_limit_bytes": "Host memory allowed",
}
_UNITS = {"bytes": "bytes", "share": "share", "s": "s"}


def memory(diagnosis: Diagnosis) -> Markup | None:
    """Return the section on memory; None without values.

    The unit of an entry is the last part of its name, as in ``_bytes``.
    """
    known = {name: value for name, value in diagnosis.memory.items() if words.finite(value) is not None}
    if not known:
        return None
    return section("memory", "Memory", facts([_entry(name, value) for name, value in known.items()]))


def _entry(name: str, value: float | None) -> Fact:
    words_of_name, _, unit = name.rpartition("_")
    title = _NAMES.get(name) or (words_of_name or name).replace("_", " ").capitalize()
    return title, words.quantity(value, _UNITS.get(unit, "")), ""


def cost(diagnosis: Diagnosis) -> Markup | None:
    """Return the section on the cost of the run and of the time spent waiting; None without a price."""
    money = diagnosis.cost
    if money is None:
        return None
    entries = [
        ("This run", units.money(money.run), ""),
        (
            "Cost of the time in which the device waited",
            units.money(money.idle),
            f"{units.percent(money.idle_share)} of the cost",
        ),
        ("Price of the machines", f"{units.money(money.price_per_hour)}/h", ""),
    ]
    source = element("p", f"Price: {money.price_source}.", class_="quiet") if money.price_source else None
    return section("cost", "Cost", facts(entries), source)
