"""Fixed random draws: loading a batch draws the same random numbers in any process.

The equivalence check of a ``resampled`` change uses them. Before a batch is loaded, Python's, NumPy's and torch's
global generators are seeded from the batch's indices and the trial's seed. After the batch is loaded, the generators of
the training process are restored, so that the model's own draws (dropout, shuffling) do not depend on where batches are
loaded. With fixed draws, a program must compute bitwise the same numbers with and without worker processes.

Each worker also records a checksum of its generator states before the first batch. Two workers with equal states would
draw the same numbers for different samples, which changes the distribution.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.inprocess.settings.digest import digest
from paceline.inprocess.settings.seeds import SEED, save_states
from paceline.inprocess.settings.threads import beside_training

FIXED = "PACELINE_FIXED_DRAWS"  # set if the random draws of samples are fixed
FOLDER = "draws"  # in the run's folder: one file for each worker
_NUMPY_SEEDS = 1 << 32


def patch(torch: Any) -> None:
    """Fix the random draws of samples in both of torch's dataset fetchers."""
    from torch.utils.data._utils import fetch

    _fix(torch, fetch._MapDatasetFetcher, lambda fetcher, index: index)
    _fix(torch, fetch._IterableDatasetFetcher, _batches_before)


def _fix(torch: Any, fetcher: Any, named: Callable[[Any, Any], Any]) -> None:
    """Seed the generators before each batch of a fetcher, from the result of `named` for fetcher and indices."""
    original = fetcher.fetch

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        if beside_training():  # several threads share the global generators
            return original(self, index)
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            _record_states(torch, worker.id)
        restore = save_states(torch)
        _seed(torch, digest(named(self, index), int(os.environ.get(SEED) or 0)))
        try:
            return original(self, index)
        finally:
            if worker is None:
                restore()

    fetcher.fetch = fetch


def _batches_before(fetcher: Any, _: Any) -> int:
    """Return the number of batches that a stream's fetcher has loaded, because a stream has no meaningful indices."""
    count: int = getattr(fetcher, "_paceline_fetched", 0)
    fetcher._paceline_fetched = count + 1
    return count


def _seed(torch: Any, seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % _NUMPY_SEEDS)


@functools.cache
def _record_states(torch: Any, worker: int) -> None:
    """Record the states of a worker's generators before its first batch, once per worker."""
    numpy = sys.modules.get("numpy")
    states = [digest(random.getstate()), digest(torch.get_rng_state())]
    states += [digest(numpy.random.get_state()[1].tolist())] if numpy else []
    folder = Path(os.environ["PACELINE_WATCH_DIR"], FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"worker": worker, "states": states}), encoding="utf-8")
