"""The pages of the findings, and their index.

    python -m paceline.explain.pages docs/findings      writes one Markdown file for each finding

The text of a page is in the file of its rule. ``paceline explain`` prints it, and the files in ``docs/findings`` are
written from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.remedies import REMEDIES
from paceline.explain.rules import all_rules

INDEX = "index.md"
_NOTE = "<!-- Made from the rule by `python -m paceline.explain.pages docs/findings`; edit the rule. -->"
_LINK = re.compile(r"\[[^\]]+\]\(\.\./([^)]+)\)")  # a link to another page of the documentation
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

# All findings, with or without a rule in this version, by code: the name, and when the finding is reported.
TABLE: Mapping[str, tuple[str, str]] = {
    "DATA001": (
        "loader-serial",
        "the training process loads its data itself, without workers, and training waits for the data",
    ),
    "DATA002": ("loader-cpu-bound", "the loader's workers use all CPU cores, so more workers would not help"),
    "DATA003": ("loader-io-bound", "the loader's workers wait for storage or the network"),
    "DATA004": ("loader-underprovisioned", "the loader has too few workers, and CPU cores are free"),
    "DATA005": (
        "loader-transport-bound",
        "collating batches and sending them to the training process takes longer than loading the samples",
    ),
    "DATA006": (
        "loader-restart",
        "the loader starts its workers again in every epoch, which takes a visible share of the time",
    ),
    "DATA007": ("small-reads", "loading each sample takes many small or random reads"),
    "DATA008": ("loader-jitter", "a few samples or batches take far longer to load than the others"),
    "XFER001": ("transfer-blocking", "copies to the GPU use pageable memory or do not overlap with computing"),
    "COMP001": (
        "compute-bound",
        "the GPU (or CPU) that trains computes nearly all the time, which is the healthy state",
    ),
    "COMP002": ("launch-bound", "a step has many small operations, and the host cannot launch them fast enough"),
    "COMP003": ("sync-stall", "the host waits for the GPU inside a step (`.item()`, `.cpu()`, printing a tensor)"),
    "COMP004": (
        "precision-unused",
        "the program multiplies matrices in fp32 on a GPU that is faster in other data types",
    ),
    "COMP005": ("shapes-misaligned", "matrix dimensions are not aligned for the tensor cores"),
    "COMP006": (
        "bandwidth-bound",
        "element-wise operations take most of the compute time, and memory bandwidth limits their speed",
    ),
    "COMP007": (
        "device-underfilled",
        "the kernels of a step are too small to use the whole GPU, and memory is free for a larger batch",
    ),
    "COMP008": ("optimizer-unfused", "the optimizer takes a visible share of a step and updates one tensor at a time"),
    "COMP009": (
        "device-idle",
        "in a profiler capture, the GPU is idle for a reason that the capture does not show",
    ),
    "MEM001": ("memory-near-limit", "nearly all memory is in use, or torch had to retry allocations"),
    "MEM002": ("memory-growing", "the memory that the program uses on the GPU or the host grows with each step"),
    "MEM003": (
        "memory-fragmented",
        "torch has reserved much more GPU memory than the program allocated at any one time",
    ),
    "COMM001": ("communication-exposed", "communication between ranks does not overlap with computing"),
    "COMM002": ("rank-straggling", "one rank is slower and makes the other ranks wait"),
    "COMM003": ("link-degraded", "a link between GPUs or hosts is far slower than expected"),
    "COMM004": ("sync-each-microstep", "ranks exchange gradients in every micro-step of gradient accumulation"),
    "RUN001": ("checkpoint-stall", "training stops while the program saves checkpoints"),
    "RUN002": ("evaluation-heavy", "evaluation takes a large share of the run"),
    "RUN003": ("startup-slow", "a long time passes before the first training step"),
    "RUN004": ("step-jitter", "some steps take far longer than the others, and the loader is not the cause"),
    "RUN005": ("throughput-drift", "steps get slower during the run"),
    "RUN006": (
        "host-code-heavy",
        "the program's own Python code between the phases of a step takes a large share of the time",
    ),
    "RUN007": ("debug-mode-on", "a debug setting of torch or CUDA that slows training down is on"),
    "HOST001": ("cpu-oversubscribed", "the program has more compute threads than CPU cores"),
    "HOST002": ("memory-swapping", "the host moves memory pages to disk (swapping)"),
    "HOST003": ("cpu-contended", "the program gets too little CPU time, because of other processes or a CPU quota"),
    "HOST004": (
        "thread-blocked",
        "the training thread waits for something else while it should compute",
    ),
    "HOST005": ("page-faults", "the program takes memory from the operating system anew in each step"),
    "GPU001": ("thermal-throttling", "the GPU lowers its clock rate because it is too hot"),
    "GPU002": ("power-capped", "the GPU lowers its clock rate because of a power limit"),
    "GPU003": ("pcie-degraded", "the PCIe link has fewer lanes or an older generation than the card supports"),
    "GPU004": ("gpu-errors", "the GPU reported memory errors or Xid errors"),
    "GPU005": ("gpu-shared", "a process outside the run uses the same GPU"),
    "CONV001": ("loss-not-finite", "the loss is NaN or infinite"),
    "CONV002": ("loss-diverging", "the loss rises far above its first values"),
    "CONV003": ("loss-plateau", "the loss has stopped improving"),
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """The page of one finding."""

    code: str
    name: str
    when: str  # when the finding is reported, in one line
    body: str  # Markdown sections; empty if no rule of this version reports the finding
    remedies: tuple[str, ...] = ()  # ids of remedies

    @property
    def decided(self) -> bool:
        """Whether this version can report the finding."""
        return bool(self.body)

    @property
    def file_name(self) -> str:
        """File name of the page, such as ``DATA001-loader-serial.md``."""
        return f"{self.code}-{self.name}.md"

    @property
    def group(self) -> str:
        """Heading of the finding's group in the index."""
        return _GROUPS.get(self.code.rstrip("0123456789"), "Others")


def all_pages() -> list[Page]:
    """Return the pages of all findings, in the order of the table."""
    rules = {rule.code: rule for rule in all_rules()}
    return [
        Page(
            code=code,
            name=name,
            when=when,
            body=rules[code].page.strip() if code in rules else "",
            remedies=rules[code].remedies if code in rules else (),
        )
        for code, (name, when) in TABLE.items()
    ]


def findings_naming(remedy: str) -> list[Page]:
    """Return the pages of the findings that name a remedy.

    Args:
        remedy: The id of the remedy.
    """
    return [page for page in all_pages() if remedy in page.remedies]


def markdown(page: Page, *, links: bool = False) -> str:
    """Return the page of a finding as Markdown.

    Args:
        page: The page.
        links: Whether names of other pages are links to their files, as in ``docs/findings``, or plain names.
    """
    says = f"Paceline reports the finding {page.name} when" if page.decided else f"The finding {page.name} means that"
    head = f"# {page.code} {page.name}\n\n{says} {page.when}.\n\n"
    body = page.body if links else without_links(page.body)
    return head + (body or _undecided(page)) + "\n" + _remedies(page, links)


def without_links(text: str) -> str:
    """Return Markdown text in which each link to another documentation page is replaced by the path of that page."""
    return _LINK.sub(r"docs/\1", text)


def _remedies(page: Page, links: bool) -> str:
    if not page.remedies:
        return ""
    rows = [REMEDIES[remedy] for remedy in page.remedies]
    lines = ["", "## Remedies", "", "| remedy | safety class | what it does |", "|---|---|---|"]
    for row in rows:
        name = f"[{row.id}](../remedies/{row.file_name})" if links else row.id
        lines.append(f"| {name} | {', '.join(row.classes)} | {row.title} |")
    return "\n".join([*lines, "", f"`paceline explain {rows[0].id}` prints the page of the remedy `{rows[0].id}`.", ""])


def _undecided(page: Page) -> str:
    return (
        "## Not detected by this version\n\n"
        f"This version of Paceline cannot detect {page.name}. The problem may exist even if a report does not "
        "show the finding."
    )


def index(pages: list[Page]) -> str:
    """Return the index of all findings as Markdown."""
    lines = [
        "# Findings",
        "",
        "`paceline explain CODE` prints the page of the finding CODE and needs no network connection.",
        "",
    ]
    for group in dict.fromkeys(page.group for page in pages):
        lines += [f"## {group}", "", "| code | name | when |", "|---|---|---|"]
        lines += [_row(page) for page in pages if page.group == group] + [""]
    return "\n".join(lines)


def _row(page: Page) -> str:
    when = page.when if page.decided else f"{page.when} (not detected by this version)"
    return f"| [{page.code}]({page.file_name}) | {page.name} | {when} |"


def files() -> dict[str, str]:
    """Return the content of every file in ``docs/findings``, by file name."""
    pages = all_pages()
    return {INDEX: index(pages), **{page.file_name: f"{_NOTE}\n\n{markdown(page, links=True)}" for page in pages}}


def write_pages(folder: Path) -> None:
    """Write the pages of all findings into a folder, and remove old pages from the folder."""
    replace_pages(folder, files())


def replace_pages(folder: Path, wanted: Mapping[str, str]) -> None:
    """Write pages into a folder, and remove all other Markdown files from the folder.

    Args:
        folder: The folder; it is created if it does not exist.
        wanted: Content of each page, by file name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.name for path in folder.glob("*.md")} - set(wanted):
        (folder / stale).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/findings"))
