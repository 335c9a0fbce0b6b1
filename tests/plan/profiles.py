"""A profile of a machine that is not there, whose figures follow from a formula."""

from __future__ import annotations

from datetime import date

from paceline.hardware.host import this_host
from paceline.plan.calibrate.profile import (
    SCHEMA,
    BlockProfile,
    Figure,
    MachineDescription,
    Message,
    Point,
    Profile,
    RankProfile,
)

CALL_S, FAR_BYTE_S, FRESH_BYTE_S = 5e-6, 2e-10, 4e-10
BESIDE = 0.6
REFERENCE_S = 2e-3
FLOPS, BYTES_PER_S = 1e11, 2e10
FIRST_BYTES, SHARE = 20e6, 1.25
LATENCY_S, LINK_BYTES_PER_S = 1e-4, 1e9


def figure(seconds: float) -> Figure:
    return Figure(seconds=seconds, low=0.99 * seconds, high=1.01 * seconds, count=20)


def product(m: float, n: float, k: float, layout: str) -> Point:
    work = 2.0 * m * n * k
    return Point(family=f"product.{layout}.float32", sizes=(m, n, k), work=work, time=figure(work / FLOPS))


def moving(name: str, size: float) -> Point:
    return Point(family=f"each.{name}.float32", sizes=(size,), work=size, time=figure(1e-6 + size / BYTES_PER_S))


def block(ranks: int, number: int) -> BlockProfile:
    operators, calls, far, live = 0.01 * number, 400 * number, 1e8 * number**2, 5e7 * number
    fresh = 5e7 * (number % 3)
    exchanged = 1e6 * number if ranks > 1 else 0.0
    messages = LATENCY_S * 1 + exchanged / LINK_BYTES_PER_S if exchanged else 0.0
    if exchanged > 2**20:
        messages += LATENCY_S
    step = operators + calls * CALL_S + far * FAR_BYTE_S + fresh * FRESH_BYTE_S + messages
    return BlockProfile(
        name=f"block {number}",
        kind="transformer",
        step=figure(step),
        beside=figure(step + BESIDE * 0.02),
        beside_cpu_s=0.02,
        operators=operators,
        calls=calls,
        far_bytes=far,
        fresh_bytes=fresh,
        exchanged_bytes=exchanged,
        held_bytes=300_000_000,
        live_bytes=int(live),
        peak_bytes=int(300_000_000 + FIRST_BYTES + SHARE * live),
    )


def place(ranks: int) -> RankProfile:
    sizes = (64, 256, 1024, 4096)
    points = [product(m, n, k, how) for how in ("nn", "nt", "tn") for m in sizes for n in sizes for k in sizes]
    points += [moving(name, 4.0**power) for name in ("add.Tensor", "gelu.default") for power in range(4, 14)]
    blocks = tuple(block(ranks, number) for number in range(1, 6))
    return RankProfile(
        ranks=ranks, threads=2 // ranks, reference=figure(REFERENCE_S), points=tuple(points), blocks=blocks
    )


def profile(day: date = date(2026, 11, 20), others_cores: float = 0.0, cpu_model: str | None = None) -> Profile:
    host = this_host()
    made = MachineDescription(
        host="there",
        cpu_model=host.cpu_model if cpu_model is None else cpu_model,
        cores=host.allowed_cores,
        memory_bytes=2**34,
        device="cpu",
        devices=0,
        device_memory_bytes=None,
        context_bytes=None,
        torch="2.13.0",
        python="3.11.7",
        paceline="0.1.0",
        day=day,
    )
    messages = tuple(
        Message(name="all_reduce", ranks=2, sent_bytes=size, time=figure(LATENCY_S + size / LINK_BYTES_PER_S))
        for size in (2.0**12, 2.0**18, 2.0**24)
    )
    return Profile(
        schema=SCHEMA,
        made=made,
        others_cores=others_cores,
        took_s=100.0,
        places=(place(1), place(2)),
        messages=messages,
        copies=(),
        host_copies=(),
        storage=(),
        launch=figure(1e-6),
    )
