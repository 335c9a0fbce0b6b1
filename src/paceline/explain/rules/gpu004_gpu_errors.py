"""GPU004: did a GPU report errors?"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.explain.facts import Facts, RankFacts
from paceline.explain.gpu import Errors, GpuUse
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

# NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
_PROGRAM: Mapping[int, str] = {
    13: "an exception of a kernel",
    31: "a kernel touched memory that is not its own",
    43: "a kernel was stopped after a fault of the program",
    45: "clean-up after another error",
}
_CARD: Mapping[int, str] = {
    48: "a memory error that ECC could not mend",
    63: "a memory row was retired",
    64: "a memory row could not be retired",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many memory errors that ECC mended",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
}

PAGE = """
## What it means

The driver reported a critical error (an Xid), or the GPU's memory had an error that its error correction could
not mend. The results since then may be wrong, and the next failure may end the run.

## How it is decided

At least one Xid was reported during the run, or the count of uncorrectable memory errors rose by at least one.
Xids 13, 31, 43 and 45 are mostly the program's own doing (a kernel that fails, memory it does not own): they
are a warning; every other one, and an uncorrectable error, is critical. Corrected errors and NVLink's are named
beside them, but decide nothing. Where the driver gives no events (in many containers), Xids are not seen. No
GPU has been seen by the authors; the numbers are NVIDIA's.

## What helps

`gpu.replace`: take the card or the node out of service, resume on another. `gpu.debug`: for the program's own
faults run it with `CUDA_LAUNCH_BLOCKING=1` or `compute-sanitizer`.
"""


def check(facts: Facts) -> Finding | None:
    """Decide GPU004."""
    found = [(rank, gpu) for rank, gpu in facts.gpus if gpu.errors.xids or gpu.errors.uncorrected]
    if not found:
        return None
    rank, gpu = max(found, key=lambda each: (_is_the_card(each[1].errors), sum(each[1].errors.xids.values())))
    card = _is_the_card(gpu.errors)
    return Finding(
        code="GPU004",
        name="gpu-errors",
        severity="critical" if card else "warning",
        confidence="high" if card else "medium",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r, _ in found],
        evidence=_evidence(rank, gpu),
        remedies=[
            Remedy(
                id="gpu.replace", safety="exact", change=f"take GPU {gpu.index} of {rank.record.host} out of service"
            )
            if card
            else Remedy(id="gpu.debug", safety="exact", change="run once with CUDA_LAUNCH_BLOCKING=1")
        ],
        summary=f"GPU {gpu.index} of {rank.record.host} reported errors",
    )


def _is_the_card(errors: Errors) -> bool:
    return bool(errors.uncorrected) or any(number not in _PROGRAM for number in errors.xids)


def _evidence(rank: RankFacts, gpu: GpuUse) -> list[Evidence]:
    errors = gpu.errors
    found = [
        Evidence(
            text=f"Xid {number} ({_meaning(number)}) was reported {count} time{'s' if count != 1 else ''} for GPU "
            f"{gpu.index} of {rank.record.host}",
            value=float(count),
            unit="errors",
        )
        for number, count in sorted(errors.xids.items())
    ]
    counts = {"uncorrectable memory errors": errors.uncorrected, "corrected memory errors": errors.corrected}
    counts |= {f"NVLink {kind} errors": count for kind, count in errors.link.items()}
    found += [
        Evidence(text=f"{count:,} {what} during the run", value=float(count), unit="errors")
        for what, count in counts.items()
        if count
    ]
    return found


def _meaning(number: int) -> str:
    return _PROGRAM.get(number) or _CARD.get(number) or "see NVIDIA's Xid catalogue"


RULE = Rule(code="GPU004", name="gpu-errors", page=PAGE, check=check)
