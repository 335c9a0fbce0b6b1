"""How many weights does a device hold, and over how many ranks is each kind shared?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.plan.columns import Columns, Floats
from paceline.plan.stages import Place, fullest_blocks


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a stage on one device before replicas share them, and how many ranks share each kind.

    Experts are spread over `ep` ranks and so have fewer replicas; nothing is split finer than its replicas.
    """

    rest: Floats
    experts: Floats
    sharers: Floats  # of the rest, where parameters are sharded
    expert_sharers: Floats
    replicas: Floats
    expert_replicas: Floats

    @property
    def device(self) -> Floats:
        """Both kinds."""
        return self.rest + self.experts

    def split(self, rest: Floats, experts: Floats) -> Floats:
        """Return what one rank has where each kind is shared by so many."""
        return self.rest / rest + self.experts / experts


def weights_of(c: Columns, place: Place | None = None) -> Weights:
    """Count the weights of a place, or of the fullest one."""
    share = np.where(c.balanced > 0, fullest_blocks(c)[0] / c.layers, 1 / c.pp)
    ends = np.where(c.pp > 1, 1.0 - 0.5 * (1 - c.tied), 1.0)
    if place is not None:
        share, ends = np.where(c.balanced > 0, place.blocks / c.layers, 1 / c.pp), place.ends
    replicas = c.dp * c.shard * c.cp
    sharers = np.where(c.shard_parameters > 0, c.shard * c.cp, 1.0)
    return Weights(
        rest=c.block_params * share / c.tp + ends * c.embedding_params / c.tp,
        experts=c.expert_params * share / c.ep,
        sharers=sharers,
        expert_sharers=np.maximum(1.0, sharers * c.tp / c.ep),
        replicas=replicas,
        expert_replicas=np.maximum(1.0, replicas * c.tp / c.ep),
    )
