"""Seed the random generators with the trial's seed, so that two runs of one program can be compared.

A seed that the program sets later replaces the trial's seed. If the trial's seed is not 0, it is added to every seed
given to `torch.manual_seed`, so that trials differ although the program sets a seed.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

SEED = "PACELINE_TRIAL_SEED"


def patch(torch: Any, seed: int) -> None:
    """Seed the generators of Python, NumPy and torch."""
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy as np
    except ImportError:
        pass
    else:
        np.random.seed(seed)
    if seed:
        _shift_seeds(torch, seed)


def _shift_seeds(torch: Any, by: int) -> None:
    original = torch.manual_seed

    @functools.wraps(original)
    def manual_seed(seed: Any) -> Any:
        return original(int(seed) + by)

    torch.manual_seed = manual_seed


def save_states(torch: Any) -> Callable[[], None]:
    """Save the states of the global generators of torch, Python and NumPy; return a function that restores them.

    For torch, these are the generators of the CPU and, once the program uses CUDA, of all CUDA devices.
    """
    numpy = sys.modules.get("numpy")
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    of_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    of_numpy = numpy.random.get_state() if numpy else None

    def restore() -> None:
        torch.set_rng_state(of_torch)
        if of_cuda is not None:
            torch.cuda.set_rng_state_all(of_cuda)
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)

    return restore
