"""A plan: one configuration with its predicted step time and memory, and its recipe as TOML."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cost.case import Case, Training
from paceline.plan.cost.pipeline import PipelineStages
from paceline.plan.models.architecture import Transformer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One configuration with its predicted step time and memory."""

    case: Case
    step_s: float
    step_parts: dict[str, float]
    memory_bytes: float  # as nvidia-smi shows it
    memory_parts: dict[str, float]
    fits: float  # probability that the plan fits in memory
    stages: PipelineStages | None = None  # the stages, if the pipeline was simulated

    @property
    def reserved_bytes(self) -> float:
        """Return the bytes that torch's allocator reserves: all memory except the CUDA context."""
        return self.memory_bytes - self.memory_parts["context"]

    @property
    def allocated_bytes(self) -> float:
        """Return the bytes of tensors."""
        return self.reserved_bytes - self.memory_parts["fragmentation"]

    @property
    def samples_per_s(self) -> float:
        """Return the samples/s of the whole cluster."""
        return self.case.global_batch / self.step_s

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tokens/s of the whole cluster; None if samples have no tokens."""
        model = self.case.model
        return self.samples_per_s * model.seq if isinstance(model, Transformer) else None


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


def recipe_toml(plan: Plan, made_for: str, optimizer: str) -> str:
    """Return the recipe of a plan as TOML. Settings that the program has to make itself appear as comments."""
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
