"""GPU004: a GPU reported errors."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.explain.analysis.gpu import Errors, GpuUse
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

# NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
_PROGRAM: Mapping[int, str] = {
    13: "a kernel raised an exception",
    31: "a kernel accessed invalid memory",
    43: "a kernel was stopped after an error of the program",
    45: "a clean-up after another error",
}
_CARD: Mapping[int, str] = {
    48: "a memory error that error correction (ECC) could not correct",
    63: "a memory row was retired",
    64: "a memory row could not be retired",
    74: "an NVLink error",
    79: "the driver lost contact with the GPU (fallen off the bus)",
    92: "many memory errors that error correction (ECC) corrected",
    94: "a memory error that affected only one process",
    95: "a memory error that affected all processes on the GPU",
    119: "the system processor (GSP) of the GPU does not answer",
    120: "the system processor (GSP) of the GPU failed",
}

PAGE = """
## What it means

The driver reported a GPU error (an Xid), or GPU memory had an error that its error-correcting code (ECC) could not
correct. Results that the GPU computes after a GPU error may be wrong, and the next error may end the run.

## How it is detected

Paceline reports `gpu-errors` if the driver reported at least one Xid error during the run, or if the number of
uncorrectable memory errors rose by at least one. The Xid errors 13, 31, 43 and 45 usually come from the program (a
failing kernel, an invalid memory access), so their severity is "warning". All other Xid errors, and uncorrectable
memory errors, have the severity "critical".

Corrected memory errors and NVLink errors are listed in the finding, but Paceline does not report `gpu-errors` because
of them alone. In many containers, the driver reports no events, so Paceline cannot see Xid errors there. The meaning of
the Xid numbers comes from NVIDIA's documentation.

The page [devices](../reference/devices.md) lists the hardware on which the finding `gpu-errors` was tested.

## What helps

- `gpu.replace`: stop using the GPU or its node, and resume training on another one.
- `gpu.debug`: if the error comes from the program, run the program with `CUDA_LAUNCH_BLOCKING=1` or
  `compute-sanitizer`.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding GPU004, or None if it does not apply."""
    found = [(rank, gpu) for rank, gpu in analysis.gpus if gpu.errors.xids or gpu.errors.uncorrected]
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
            Remedy(id="gpu.replace", safety="exact", change=f"stop using GPU {gpu.index} of {rank.record.host}")
            if card
            else Remedy(id="gpu.debug", safety="exact", change="run the program once with CUDA_LAUNCH_BLOCKING=1")
        ],
        summary=f"GPU {gpu.index} of {rank.record.host} reported errors",
    )


def _is_the_card(errors: Errors) -> bool:
    return bool(errors.uncorrected) or any(number not in _PROGRAM for number in errors.xids)


def _evidence(rank: RankAnalysis, gpu: GpuUse) -> list[Evidence]:
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
