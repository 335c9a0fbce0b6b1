"""How long does a message between ranks take? Hockney's latency and bandwidth, over the slowest link of the group.

Ranks are numbered with `tp` fastest, then `cp`, then replicas, then `pp`. A group of `size` ranks, `stride` apart, has
`domain / stride` members in one domain of fast links; what enters a domain passes the adapters of those members alone,
since every other rank of the domain sends for a group of its own at the same time.
"""

from __future__ import annotations

import numpy as np

from paceline.plan.columns import Columns, Floats
from paceline.plan.constants import Constants


def rate(c: Columns, k: Constants, size: Floats, stride: Floats) -> Floats:
    """Bytes/s at which one copy of a tensor goes round a group."""
    inside = np.clip(c.domain / stride, 1.0, size)
    fast = k.link_share * c.link
    return np.where(size * stride <= c.domain, fast, np.minimum(fast, k.network_share * c.network * inside))


def gather_s(c: Columns, k: Constants, whole_bytes: Floats, size: Floats, stride: Floats) -> Floats:
    """An all-gather, or a reduce-scatter, of a tensor of `whole_bytes` over a group; an all-reduce is two of them."""
    inside = np.clip(c.domain / stride, 1.0, size)
    between = np.log2(np.maximum(size / inside, 1.0))
    latency = k.message_s * (np.minimum(inside, 8.0) - 1.0) + k.hop_s * between
    return np.where(size > 1, whole_bytes * (size - 1) / size / rate(c, k, size, stride) + latency, 0.0)


def exchange_s(c: Columns, k: Constants, sent_bytes: Floats, size: Floats, stride: Floats) -> Floats:
    """An all-to-all in which every rank sends `sent_bytes` in all; each member has an adapter of its own."""
    inside = np.clip(c.domain / stride, 1.0, size)
    fast = sent_bytes * (inside - 1) / size / (k.link_share * c.link)
    slow = sent_bytes * (size - inside) / size / (k.network_share * c.network)
    latency = k.message_s + k.hop_s * (size > inside)
    return np.where(size > 1, np.maximum(fast, slow) + latency, 0.0)


def hand_over_s(c: Columns, k: Constants, sent_bytes: Floats, stride: Floats) -> Floats:
    """One message to the rank `stride` further on."""
    outside = stride * 2 > c.domain
    speed = np.where(outside, k.network_share * c.network, k.link_share * c.link)
    return sent_bytes / speed + np.where(outside, k.hop_s, k.message_s)
