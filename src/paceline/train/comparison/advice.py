"""Messages of the comparison: what differs, and what to change."""

from __future__ import annotations

from paceline.train.layout import Layout

_BY_AXIS = {
    "tp": "With tp a rank has some of the heads or hidden units of a part: write view(batch, length, -1, head), put "
    "nothing that sees all units at once between the split matrices, or use shard instead of tp",
    "cp": "A model that counts positions takes them from paceline.train.positions(length, device); one that mixes "
    "positions other than by scaled_dot_product_attention, or returns a mean over them, needs shard or tp instead of "
    "cp",
    "pp": "With pp a layer must take nothing but the output of the one before",
    "samples": "With dp and shard a rank has some of the samples: the loss must be a mean over samples, or over the "
    "things that weight= counts, and nothing may see the whole batch at once but torch's BatchNorm",
}
_OFF = "To train it all the same, set first_step = false in the recipe's section [checks]"


def of_difference(layout: Layout, name: str, what: str, share: float) -> str:
    """Return the message for a model that differs."""
    axes: list[str] = [axis for axis in ("tp", "cp", "pp") if axis in layout.in_use] or ["samples"]
    ways_out = ". ".join(_BY_AXIS[axis] for axis in axes)
    return (
        f"{layout}: {name} computes something else on {layout.ranks} ranks than on one: on the first batch {what} "
        f"differs by {share:.2%} (the first that does, in the order of computation). {ways_out}. {_OFF}"
    )


def of_draws(layout: Layout, name: str, what: str) -> str:
    """Return the message for ranks of a tp group that draw other random numbers."""
    return (
        f"{layout}: ranks of one tp group draw other random numbers ({what}) in {name} for the same activations; draw "
        "from torch's own generator only, or use shard instead of tp"
    )


def of_exchange(layout: Layout, name: str, what: str) -> str:
    """Return the message for a model or a loss that exchanges tensors between ranks itself."""
    return (
        f"{layout}: {name} or its loss exchanges tensors between ranks itself ({what}), and the engine reduces "
        f"gradients too: one process trains something else. Leave the exchange out. {_OFF}"
    )


def of_no_comparison(layout: Layout, name: str, why: str) -> str:
    """Return the line for a model that is not compared."""
    return f"{layout}: {name} is not compared with one process: {why}"
