"""Diagnoses as nobody would write them: odd text, missing parts, NaN wherever a number may be."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from paceline.core.remedies import REMEDIES, SAFETY_CLASSES
from paceline.core.statistics import Interval
from paceline.explain.model import (
    Cost,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    GaugeSeries,
    HotFunction,
    LoaderBreakdown,
    LossCurve,
    RankBreakdown,
    Remedy,
    TimelinePoint,
)
from paceline.record.layout import PHASES

text = st.text(max_size=30)
positive = st.floats(min_value=0, max_value=1e15)
odd = positive | st.just(math.nan)
maybe = st.none() | odd
share = st.floats(min_value=0, max_value=1)
small = st.integers(min_value=0, max_value=1_000_000)
gains = st.none() | st.builds(Gain, low=positive, high=positive)
intervals = st.builds(Interval, value=odd, low=odd, high=odd, count=small)
hot = st.builds(HotFunction, function=text, share=share, count=small)
remedies = st.builds(
    Remedy, id=st.sampled_from(sorted(REMEDIES)), safety=st.sampled_from(SAFETY_CLASSES), change=text, gain=gains
)
findings = st.builds(
    Finding,
    code=text,
    name=text,
    severity=st.sampled_from(["critical", "warning", "info"]),
    confidence=st.sampled_from(["high", "medium", "low"]),
    time_share=st.none() | share,
    gain=gains,
    ranks=st.lists(small, max_size=3),
    evidence=st.lists(st.builds(Evidence, text=text, value=maybe, unit=text), max_size=2),
    remedies=st.lists(remedies, max_size=2),
    summary=text,
)


@st.composite
def shares(draw: st.DrawFn) -> dict[str, float]:
    weights = draw(st.lists(share, min_size=9, max_size=9))
    whole = sum(weights) or 1.0
    return {name: weight / whole for name, weight in zip(PHASES, weights, strict=True)}


seconds = st.fixed_dictionaries(dict.fromkeys(PHASES, odd))
ranks = st.builds(
    RankBreakdown,
    rank=small,
    host=text,
    pid=small,
    device=text,
    steps=small,
    micro_steps=small,
    warmup=small,
    step_s=intervals,
    p95_s=odd,
    seconds=seconds,
    shares=shares(),
    samples_per_s=maybe,
    batch_size=maybe,
    peak_rss_bytes=maybe,
    peak_device_bytes=maybe,
    startup_s=maybe,
    host_functions=st.lists(hot, max_size=2),
)
loaders = st.builds(
    LoaderBreakdown,
    workers=small,
    loader=text,
    batches=small,
    samples=small,
    produce_s=odd,
    idle_s=odd,
    on_cpu=share,
    blocked=share,
    runnable=share,
    collate=share,
    hand_over=share,
    batch_s=intervals,
    cpu_per_batch_s=odd,
    slow_share=odd,
    read_bytes_per_s=maybe,
    hot=st.lists(hot, max_size=2),
)
any_number = st.floats(width=32)


@st.composite
def losses(draw: st.DrawFn) -> LossCurve:
    values = draw(st.lists(any_number, max_size=20))
    places = list(range(len(values)))
    return LossCurve(
        steps=places,
        values=values,
        seconds=[float(i) for i in places],
        samples=draw(st.sampled_from([[float(i) for i in places], [math.nan] * len(values)])),
        first=draw(st.none() | any_number),
        last=draw(st.none() | any_number),
        finite=draw(st.booleans()),
        first_bad_step=draw(st.none() | small),
        target=draw(st.none() | any_number),
    )


@st.composite
def timelines(draw: st.DrawFn) -> list[TimelinePoint]:
    times = draw(st.lists(st.floats(min_value=0, max_value=1e6), max_size=5))
    parts = list(draw(shares()).values())
    return [
        TimelinePoint(step=i, seconds=float(i), steps=1, step_s=time, slowest_s=2 * time, shares=parts)
        for i, time in enumerate(times)
    ]


@st.composite
def gauges(draw: st.DrawFn) -> GaugeSeries:
    values = draw(st.lists(st.none() | any_number, max_size=6))
    return GaugeSeries(
        host=draw(text),
        name=draw(text),
        unit=draw(st.sampled_from(["%", "bytes", "bytes/s", "W", ""])),
        seconds=[float(i) for i in range(len(values))],
        values=values,
        limit=draw(st.none() | positive),
    )


diagnoses = st.builds(
    Diagnosis,
    run_id=text,
    command=text,
    exit_code=st.none() | st.integers(min_value=0, max_value=255),
    ended=text,
    device=text,
    device_name=text,
    world=small,
    wall_s=maybe,
    ranks=st.lists(ranks, max_size=3),
    shares=st.just({}) | shares(),
    seconds=seconds,
    step_s=st.none() | intervals,
    p95_s=maybe,
    samples_per_s=maybe,
    batch_size=maybe,
    mfu=maybe,
    loader=st.none() | loaders,
    loss=st.none() | losses(),
    cost=st.none() | st.builds(Cost, price_per_hour=odd, price_source=text, run=odd, idle=odd, idle_share=share),
    verdict=text,
    verdict_text=text,
    findings=st.lists(findings, max_size=3),
    unavailable=st.dictionaries(text, text, max_size=2),
    memory=st.dictionaries(text, maybe, max_size=2),
    timelines=st.dictionaries(small, timelines(), max_size=2),
    gauges=st.lists(gauges(), max_size=3),
    problems=st.lists(text, max_size=2),
    top_operators=st.lists(hot, max_size=2),
    startup_s=maybe,
)
