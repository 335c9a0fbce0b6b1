"""The end of a page: measurements that are missing, with reasons, and the footer."""

from __future__ import annotations

from paceline import __version__
from paceline.explain.model import Diagnosis
from paceline.report import words
from paceline.report.page.markup import Markup, details, element, section

_NAMES = {
    "cgroup_memory_bytes": "memory of the container",
    "cgroup_throttled_share": "CPU throttling of the container",
    "cgroup_throttled_s_per_s": "CPU time lost to throttling",
    "rdma_rx_bytes_per_s": "RDMA traffic received",
    "rdma_tx_bytes_per_s": "RDMA traffic sent",
    "net_rx_bytes_per_s": "network traffic received",
    "net_tx_bytes_per_s": "network traffic sent",
    "gpus": "GPUs",
    "mfu": "model FLOPs utilization",
    "device_memory": "device memory",
    "samples": "samples per second",
    "loader": "data loading",
    "steps": "steps",
}


def unavailable(diagnosis: Diagnosis) -> Markup | None:
    """Return a folded list of the values that could not be measured, by reason; None if nothing is missing."""
    if not diagnosis.unavailable:
        return None
    reasons: dict[str, list[str]] = {}
    for name, why in diagnosis.unavailable.items():
        reasons.setdefault(why, []).append(_NAMES.get(name) or name.replace("_", " "))
    listed = (
        element("li", element("b", words.headline(", ".join(names))), f": {why}") for why, names in reasons.items()
    )
    title = f"{words.count(len(diagnosis.unavailable), 'reading')} could not be measured in this run"
    return section("unavailable", "Not measured", details(title, element("ul", *listed, class_="evidence")))


def footer(diagnosis: Diagnosis) -> Markup:
    """Return the footer of a run's page."""
    return page_footer(f"run {diagnosis.run_id}")


def page_footer(about: str = "", *notes: str) -> Markup:
    """Return the footer of a page: notes on the sources of numbers, and the version of Paceline."""
    made = (
        f"paceline {__version__}{f', {about}' if about else ''}. This page is one self-contained file and loads "
        f"nothing from the network."
    )
    return element("footer", *(element("p", note) for note in notes), element("p", made))
