"""How is a plan handed on? As a recipe with its layout: the TOML that the engine and `launch` read."""

from __future__ import annotations

from paceline.plan.search import Plan
from paceline.plan.setting import Training

_RECOMPUTE = {
    "full": "checkpoint_every = 1",
    "half": "checkpoint_every = 2",
    "cheap": "selective = true",
    "operators": "selective = true",
}


def _left_to_the_program(how: Training, optimizer: str) -> str:
    kernels = "kernels fused by torch.compile" if how.kernels == "fused" else "kernels not fused"
    return (
        f"assumptions about the program: an optimizer with {how.optimizer_bytes:g} B per weight ({optimizer}), "
        f"weights of {how.weight_bytes:g} B, {kernels}"
    )


def to_toml(plan: Plan, made_for: str, optimizer: str) -> str:
    """Return the recipe of a plan; what the engine has no setting for, and leaves to the program, is a comment."""
    how, layout = plan.case.training, plan.case.layout
    batch = f"{plan.case.global_batch:g} samples per step, micro-batches of {how.micro_batch:g}"
    lines = [f"# planned for {made_for}: {batch}", f"# {_left_to_the_program(how, optimizer)}", f'layout = "{layout}"']
    if how.precision in ("bf16", "fp16"):
        lines += ["", "[precision]", f'autocast = "{how.precision}"']
    elif how.precision == "tf32":
        lines += ["", "[precision]", "tf32 = true"]
    elif how.precision == "fp8":
        lines += ["", "[precision]", 'autocast = "bf16"', "fp8 = true"]
    lines += ["", "[memory]", f"micro_batches = {how.micro_steps}"]
    if how.recompute in _RECOMPUTE:
        lines.append(_RECOMPUTE[how.recompute])
    if layout.pp > 1:
        lines += ["", "[pipeline]", f'schedule = "{how.schedule}"']
    return "\n".join(lines) + "\n"
