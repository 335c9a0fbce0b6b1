"""What is there to read about each finding? The pages of the rules, and an index of all findings of the design.

    python -m paceline.explain.pages docs/findings      writes one Markdown file for each finding

A page lives in the file of its rule and nowhere else: what is printed and what is on the site are made from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.explain.rules import all_rules

INDEX = "index.md"
_NOTE = "<!-- Made from the rule by `python -m paceline.explain.pages docs/findings`; edit the rule. -->"
_GROUPS = {
    "DATA": "Data loading",
    "XFER": "Copies to the device",
    "COMP": "Computing",
    "MEM": "Memory",
    "COMM": "Communication between ranks",
    "RUN": "The run as a whole",
    "HOST": "The host",
    "GPU": "The GPU",
    "CONV": "Convergence",
}

# Every finding there is, decided by a rule here or not: code -> name, and when it is found.
TABLE: Mapping[str, tuple[str, str]] = {
    "DATA001": ("loader-serial", "data is produced in the training process and waits show"),
    "DATA002": ("loader-cpu-bound", "workers burn the cores there are; more workers would not help"),
    "DATA003": ("loader-io-bound", "workers are blocked on storage or network"),
    "DATA004": ("loader-underprovisioned", "workers cannot keep up, and there is room for more"),
    "DATA005": ("loader-transport-bound", "handing batches over (collate, pickling, shared memory) is the limit"),
    "DATA006": ("loader-restart", "workers are started anew every epoch, and it shows"),
    "DATA007": ("small-reads", "many small or random reads; a sharded format would stream"),
    "DATA008": ("loader-jitter", "a few samples or batches are far slower than the rest"),
    "XFER001": ("transfer-blocking", "copies to the device from pageable memory, or not overlapped"),
    "COMP001": ("compute-bound", "the device works nearly all the time: healthy"),
    "COMP002": ("launch-bound", "many tiny operations; the host cannot issue them fast enough"),
    "COMP003": ("sync-stall", "the host waits for the device inside the step (`.item()`, `.cpu()`, printing a tensor)"),
    "COMP004": ("precision-unused", "fp32 matrix work on hardware with faster formats"),
    "COMP005": ("shapes-misaligned", "dimensions that miss the tensor cores"),
    "COMP006": ("bandwidth-bound", "element-wise work dominates; fusable"),
    "COMP007": ("device-underfilled", "small batch, low occupancy, memory to spare"),
    "COMP008": ("optimizer-unfused", "the optimizer step takes a visible share and runs per tensor"),
    "MEM001": ("memory-near-limit", "little headroom, allocator retries"),
    "MEM002": ("memory-growing", "device or host memory grows step by step"),
    "MEM003": ("memory-fragmented", "reserved far above allocated"),
    "COMM001": ("communication-exposed", "collectives not hidden behind compute"),
    "COMM002": ("rank-straggling", "one rank makes the others wait; names the rank and its own cause"),
    "COMM003": ("link-degraded", "measured bandwidth far below what the link should give"),
    "COMM004": ("sync-each-microstep", "gradients reduced on every micro-step of an accumulation"),
    "RUN001": ("checkpoint-stall", "saving blocks training"),
    "RUN002": ("evaluation-heavy", "evaluation takes a large share"),
    "RUN003": ("startup-slow", "long before the first step"),
    "RUN004": ("step-jitter", "step times scatter, and not for the loader's sake"),
    "RUN005": ("throughput-drift", "steps get slower as the run goes on"),
    "RUN006": ("host-code-heavy", "the user's own Python between phases takes a large share; names the function"),
    "HOST001": ("cpu-oversubscribed", "more compute threads than cores"),
    "HOST002": ("memory-swapping", "the host pages"),
    "HOST003": ("cpu-contended", "other processes or a cgroup quota take the cores"),
    "GPU001": ("thermal-throttling", "clocks cut for heat"),
    "GPU002": ("power-capped", "clocks cut for power"),
    "GPU003": ("pcie-degraded", "fewer lanes or an older generation than the card supports"),
    "GPU004": ("gpu-errors", "ECC or Xid errors"),
    "GPU005": ("gpu-shared", "another process uses the device"),
    "CONV001": ("loss-not-finite", "first step at which the loss is NaN or infinite"),
    "CONV002": ("loss-diverging", "the loss rises far above where it began"),
    "CONV003": ("loss-plateau", "the loss has stopped improving"),
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is known about one finding."""

    code: str
    name: str
    when: str  # one line
    body: str  # Markdown sections; empty: no rule of this version decides it

    @property
    def decided(self) -> bool:
        """Whether this version can make the finding."""
        return bool(self.body)

    @property
    def file_name(self) -> str:
        """Name of its file: ``DATA001-loader-serial.md``."""
        return f"{self.code}-{self.name}.md"

    @property
    def group(self) -> str:
        """Heading under which it is listed."""
        return _GROUPS.get(self.code.rstrip("0123456789"), "Others")


def all_pages() -> list[Page]:
    """Return a page for every finding: those of the table in its order, then rules that the table does not name."""
    rules = {rule.code: rule for rule in all_rules()}
    told = [
        Page(code=code, name=name, when=when, body=rules[code].page.strip() if code in rules else "")
        for code, (name, when) in TABLE.items()
    ]
    more = [
        Page(code=rule.code, name=rule.name, when=_first_sentence(rule.page), body=rule.page.strip())
        for code, rule in rules.items()
        if code not in TABLE
    ]
    return told + more


def _first_sentence(page: str) -> str:
    text = re.sub(r"^#.*$", "", page, flags=re.MULTILINE)
    return " ".join(text.split()).partition(". ")[0]


def markdown(page: Page) -> str:
    """Return a finding's page as Markdown."""
    return f"# {page.code} {page.name}\n\nFound when: {page.when}.\n\n{page.body or _undecided(page)}\n"


def _undecided(page: Page) -> str:
    return (
        "## Not decided by this version\n\n"
        f"No rule of this version makes the finding {page.name}, so its absence from a report says nothing. "
        "The code and the name are reserved for it."
    )


def index(pages: list[Page]) -> str:
    """Return the list of all findings as Markdown."""
    lines = ["# Findings", "", "Each is printed offline by `paceline explain CODE`.", ""]
    for group in dict.fromkeys(page.group for page in pages):
        lines += [f"## {group}", "", "| code | name | when |", "|---|---|---|"]
        lines += [_row(page) for page in pages if page.group == group] + [""]
    return "\n".join(lines)


def _row(page: Page) -> str:
    when = page.when if page.decided else f"{page.when} (not decided by this version)"
    return f"| [{page.code}]({page.file_name}) | {page.name} | {when} |"


def files() -> dict[str, str]:
    """Return the content of every file below ``docs/findings``, by name."""
    pages = all_pages()
    return {INDEX: index(pages), **{page.file_name: f"{_NOTE}\n\n{markdown(page)}" for page in pages}}


def write_pages(folder: Path) -> None:
    """Write the pages of all findings into a folder, and remove pages of findings that are no more."""
    replace_pages(folder, files())


def replace_pages(folder: Path, wanted: Mapping[str, str]) -> None:
    """Have a folder hold these pages, by file name, and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.name for path in folder.glob("*.md")} - set(wanted):
        (folder / stale).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/findings"))
