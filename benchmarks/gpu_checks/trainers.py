"""Watch programs of Hugging Face, Lightning and Accelerate, and compiled ones, on a GPU, and compare their results."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import frameworks
from frameworks import Case

LIMIT_S = 180
_MODULES = {"Hugging Face": "transformers", "Lightning": "lightning", "accelerate": "accelerate"}


def check() -> dict[str, Any]:
    os.environ |= {"DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    launched = tuple(part for part in frameworks.CASES["accelerate launch"].command if part != "--cpu")
    cases = {**frameworks.CASES, "accelerate launch": Case(launched, 96, 192)}
    chosen = {name: case for name, case in cases.items() if case.ranks == 1}
    missing = {name for name in chosen for word, module in _MODULES.items() if word in name and not found(module)}
    with ThreadPoolExecutor(4) as pool:
        names = [name for name in chosen if name not in missing]
        rows = dict(zip(names, pool.map(judged, [chosen[name] for name in names]), strict=True))
    failed = [f"{name}: {text}" for name, row in rows.items() for text in row["faults"]]
    return {"figures": rows, "failed": failed, "not_done": [f"{name}: it is not installed" for name in missing]}


def found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def judged(case: Case) -> dict[str, Any]:
    try:
        return frameworks.judged(case)
    except Exception as error:
        return {"faults": [f"{type(error).__name__}: {error}"]}
