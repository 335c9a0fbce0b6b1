"""Do the remedies that need a CUDA device take hold there, and is the loss what it was?"""

from __future__ import annotations

from typing import Any

from _watched import Watched, basics, figures_of, watched

LIMIT_S = 150
STEPS = 40
CASES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "tf32": ("precision_unused.py", {"precision": {"tf32": True}}),
    "fp16": ("cnn.py", {"precision": {"autocast": "fp16"}}),
    "convolutions": (
        "cnn.py",
        {"compute": {"cudnn_benchmark": True}, "allocator": {"expandable_segments": True}},
    ),
    "attention": ("transformer.py", {"compute": {"sdpa_backend": "efficient"}}),
    "ahead": ("transformer.py", {"loader": {"pin_memory": True, "device_prefetch": True}}),
}
TOLERANCE = 0.05  # of the loss after so many steps


def check() -> dict[str, Any]:
    answer: dict[str, Any] = {"figures": {}, "failed": [], "not_done": []}
    bare: dict[str, Watched] = {}
    for name, (program, recipe) in CASES.items():
        if program not in bare:
            bare[program] = played(program, {})
        changed = played(program, recipe)
        answer["figures"][name] = figures(bare[program], changed)
        failed = [*basics(changed, STEPS // 2), *wrong(bare[program], changed, recipe)]
        answer["failed"] += [f"{name}: {text}" for text in failed]
    return answer


def played(program: str, recipe: dict[str, dict[str, Any]]) -> Watched:
    with watched(program, "--steps", str(STEPS), seconds=40, recipe=recipe) as found:
        return found


def figures(bare: Watched, changed: Watched) -> dict[str, Any]:
    steps = {when: figures_of(one)["step_median_s"] for when, one in (("bare", bare), ("changed", changed))}
    losses = {"bare": bare.told.get("loss"), "changed": changed.told.get("loss")}
    return {"step_median_s": steps, "loss": losses, "held": changed.held, "refused": changed.refused}


def wrong(bare: Watched, changed: Watched, recipe: dict[str, dict[str, Any]]) -> list[str]:
    """Return the settings that did not take hold, and that the loss is another."""
    keys = [f"{table}.{key}" for table, settings in recipe.items() for key in settings]
    failed = [f"{key} had no effect: {changed.refused.get(key)}" for key in keys if key not in changed.held]
    before, after = bare.told.get("loss"), changed.told.get("loss")
    if before is None or after is None or abs(after - before) > TOLERANCE * abs(before):
        failed.append(f"the loss after {STEPS} steps is {after}, and {before} without")
    return failed
