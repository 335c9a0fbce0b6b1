"""How do ranks that each take a part of a loader's batches get, together, the batches of one process?

The order is made for one process, whatever the number of ranks, and each step is dealt out sample by sample. Each rank
then reads blocks that others read too; a loader whose `lanes` were set to the number of ranks reads each block once.
"""

from __future__ import annotations

from typing import Any

from paceline.core.errors import UsageError
from paceline.data.loader.loader import Loader


def part_of(loader: Loader, rank: int, ranks: int) -> Loader:
    """Return a loader of one rank's part of each batch; it goes on where the given one is.

    Args:
        loader: Its `batch_size` is that of all ranks together.
        rank: Which part, from 0.
        ranks: How many parts; they divide the batches.

    Raises:
        UsageError: It gives a part already, or ranks would have parts of different sizes.
    """
    settings = settings_of(loader)
    if settings["rank"] is not None or settings["world"] is not None:
        raise UsageError(
            f"the loader already has rank={settings['rank']} and world={settings['world']}, so its batches would be "
            "split twice; leave both out and give the batch_size of all ranks together"
        )
    if ranks > 1 and settings["on_error"] == "skip":
        raise UsageError(
            f'on_error="skip" would give {ranks} ranks parts of different sizes; leave it out, so that a '
            "damaged sample ends the run"
        )
    send, (arguments, _, state) = loader.__reduce__()
    data, batch, *rest = arguments
    own = {**settings, "rank": rank, "world": ranks, "lanes": settings["lanes"] or 1}
    return send((data, batch // ranks, *rest), own, state)


def settings_of(loader: Loader) -> dict[str, Any]:
    """Return the settings of a loader by their names."""
    _, (_, settings, _) = loader.__reduce__()
    return dict(settings)
