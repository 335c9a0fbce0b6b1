"""Diagnoses as runs make them, for the tests of every report and for looking at them."""

from __future__ import annotations

import dataclasses
import functools
import math
import random

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
    WorkerRow,
)
from paceline.record.layout import PHASES

GIB = 2.0**30


def spread(*shares: float) -> dict[str, float]:
    """Nine shares, made to sum to 1."""
    total = sum(shares)
    return {name: share / total for name, share in zip(PHASES, shares, strict=True)}


DATA_BOUND = spread(0.61, 0.0, 0.12, 0.19, 0.04, 0.0, 0.025, 0.0, 0.015)
COMPUTE = spread(0.006, 0.01, 0.31, 0.58, 0.05, 0.02, 0.01, 0.01, 0.004)


def evidence(text: str, value: float | None, unit: str) -> Evidence:
    return Evidence(text=text, value=value, unit=unit)


def remedy(name: str, safety: str, change: str, low: float = 0.0, high: float = 0.0) -> Remedy:
    gain = Gain(low=low, high=high) if high else None
    return Remedy(id=name, safety=safety, change=change, gain=gain)  # type: ignore[arg-type]


def finding(code: str, name: str, summary: str, **changes: object) -> Finding:
    values: dict[str, object] = {
        "severity": "warning",
        "confidence": "high",
        "time_share": None,
        "gain": None,
        "ranks": (0,),
        "evidence": (),
        "remedies": (),
    }
    return Finding(code=code, name=name, summary=summary, **(values | changes))  # type: ignore[arg-type]


CPU_BOUND = finding(
    "DATA002",
    "loader-cpu-bound",
    "Both workers are busy on a CPU 94% of the time, and there are 2 cores: more workers would not help.",
    time_share=0.61,
    gain=Gain(low=1.55, high=2.1),
    evidence=(
        evidence("The training process waits for data 61% of a step (1,190 steps).", 0.61, "share"),
        evidence("Workers are on a CPU 94% of the time they produce, blocked 2.1%.", 0.94, "share"),
        evidence("augment (train.py:31) holds 58% of 4,212 samples of their stacks.", 0.58, "share"),
    ),
    remedies=(
        remedy("loader.cache", "exact", "Keep the decoded images (1.2 GiB, fits in memory)", 1.5, 2.0),
        remedy("loader.batch_transform", "numeric", "Do `augment` for a whole batch with torch", 1.3, 1.9),
        remedy("loader.decode", "semantic", "Store the images at 256 pixels; they are cropped to 224", 1.2, 1.4),
    ),
)
CHECKPOINT = finding(
    "RUN001",
    "checkpoint-stall",
    "Saving blocks training for 1.9 s every 200 steps, 2.5% of the time.",
    confidence="high",
    time_share=0.025,
    gain=Gain(low=1.01, high=1.03),
    evidence=(evidence("6 saves took 1.9 s each (1.7 to 2.2 s).", 1.9, "s"),),
    remedies=(remedy("checkpoint.async", "exact", "Save in the background", 1.01, 1.03),),
)
RESTART = finding(
    "DATA006",
    "loader-restart",
    "Workers start anew in each of 6 epochs; the first batch then takes 2.3 s.",
    severity="info",
    confidence="medium",
    time_share=0.018,
    gain=Gain(low=1.0, high=1.02),
    evidence=(evidence("6 starts took 2.3 s each.", 2.3, "s"),),
    remedies=(remedy("loader.persistent", "exact", "Set persistent_workers=True", 1.0, 1.02),),
)
STRAGGLER = finding(
    "COMM002",
    "rank-straggling",
    "Rank 5 makes the seven others wait: its loader is blocked on storage 71% of the time.",
    time_share=0.34,
    gain=Gain(low=1.3, high=1.48),
    ranks=(5,),
    evidence=(
        evidence("Rank 5 waits for data 36% of a step; the median rank 1.1%.", 0.36, "share"),
        evidence("Ranks 0–4, 6 and 7 spend 38% of a step in collectives, rank 5 3.0%.", 0.38, "share"),
        evidence("gpu-node-1 reads 41 MiB/s, gpu-node-0 612 MiB/s.", 41 * 2**20, "bytes/s"),
    ),
    remedies=(
        remedy("loader.local_copy", "exact", "Give rank 5 local shards: paceline data pack", 1.3, 1.48),
        remedy("ranks.balance", "exact", "Replace gpu-node-1", 1.2, 1.48),
    ),
)
PRECISION = finding(
    "COMP004",
    "precision-unused",
    "Matrix products run in fp32 on a device with bf16 tensor cores.",
    severity="info",
    confidence="medium",
    time_share=0.42,
    gain=Gain(low=1.15, high=1.6),
    ranks=tuple(range(8)),
    evidence=(evidence("91% of matrix time is in fp32 kernels (3 profiled steps).", 0.91, "share"),),
    remedies=(
        remedy("precision.autocast", "numeric", "Run forward and backward under bf16 autocast", 1.3, 1.6),
        remedy("precision.tf32", "numeric", 'torch.set_float32_matmul_precision("high")', 1.15, 1.4),
    ),
)
HEALTHY = finding(
    "COMP001",
    "compute-bound",
    "The device works 94% of the time; nothing found would gain 5%.",
    severity="info",
    time_share=0.94,
    evidence=(
        evidence("Forward, backward and optimizer take 94% of a step.", 0.94, "share"),
        evidence("47% of the device's peak arithmetic is used (MFU, bf16 dense).", 0.47, "share"),
    ),
)
NAN_LOSS = finding(
    "CONV001",
    "loss-not-finite",
    "The loss is NaN from step 412 on; everything after it is lost.",
    severity="critical",
    evidence=(evidence("The last finite loss was 1.84, at step 411.", 1.84, ""),),
    remedies=(remedy("optimizer.clip", "semantic", "Clip gradients to norm 1.0"),),
)
GROWING = finding(
    "MEM002",
    "memory-growing",
    "Host memory grows by 1.9 MiB a step and reached the limit of 16.0 GiB.",
    severity="critical",
    evidence=(evidence("Resident memory rose from 2.1 to 15.8 GiB over 7,300 steps.", 13.7 * GIB, "bytes"),),
    remedies=(remedy("memory.detach", "exact", "Append loss.item(), not loss, to `history`"),),
)


def around(value: float, count: int, width: float = 0.02) -> Interval:
    return Interval(value=value, low=value * (1 - width), high=value * (1 + width), count=count)


def rank(number: int = 0, shares: dict[str, float] | None = None, **changes: object) -> RankBreakdown:
    shares = shares or DATA_BOUND
    steady = 1190
    values: dict[str, object] = {
        "host": f"gpu-node-{number // 5}" if changes.get("device") == "cuda" else "laptop",
        "pid": 4000 + number,
        "device": "cpu",
        "steps": 1240,
        "micro_steps": 1240,
        "warmup": 50,
        "step_s": around(0.4123, steady),
        "p95_s": 0.981,
        "seconds": {name: share * 0.43 * steady for name, share in shares.items()},
        "samples_per_s": 155.2,
        "batch_size": 64.0,
        "peak_rss_bytes": 2.31 * GIB,
        "peak_device_bytes": None,
        "startup_s": 4.2,
        "host_functions": (HotFunction(function="log_metrics (train.py:88)", share=0.7, count=210),),
    }
    return RankBreakdown(rank=number, shares=shares, **(values | changes))  # type: ignore[arg-type]


def worker(number: int) -> WorkerRow:
    return WorkerRow(
        worker_id=number,
        pid=4100 + number,
        batches=620,
        produce_s=497.0 + number,
        idle_s=2.0,
        on_cpu_s=467.2,
        blocked_s=10.4,
        runnable_s=19.4,
        collate_s=21.0,
        hand_over_s=9.0,
    )


def loader(**changes: object) -> LoaderBreakdown:
    values: dict[str, object] = {
        "workers": 2,
        "loader": "DataLoader over Photos (batch_size 64, 2 workers)",
        "batches": 1240,
        "samples": 79360,
        "produce_s": 995.0,
        "idle_s": 4.0,
        "on_cpu": 0.94,
        "blocked": 0.021,
        "runnable": 0.039,
        "collate": 0.042,
        "hand_over": 0.018,
        "batch_s": around(0.801, 1240, 0.03),
        "cpu_per_batch_s": 0.753,
        "slow_share": 0.05,
        "read_bytes_per_s": 3.1e6,
        "hot": (
            HotFunction(function="augment (train.py:31)", share=0.58, count=2443),
            HotFunction(function="__getitem__ (photos.py:14)", share=0.21, count=884),
            HotFunction(function="load (PIL/ImageFile.py:189)", share=0.14, count=590),
            HotFunction(function="collate (torch/utils/data/_utils/collate.py:398)", share=0.04, count=168),
        ),
        "settings": {"batch_size": 64, "num_workers": 2, "pin_memory": False, "prefetch_factor": 2},
        "per_worker": tuple(worker(number) for number in range(2)),
    }
    return LoaderBreakdown(**(values | changes))  # type: ignore[arg-type]


def loss(points: int = 1240, bad_step: int | None = None, end: float = 0.021) -> LossCurve:
    """A loss that falls from 2.3 to `end`; NaN from `bad_step` on."""
    noise = random.Random(3)
    every = max(1, points // 1500)
    steps = list(range(0, points, every))
    values = [
        math.nan
        if bad_step is not None and step >= bad_step
        else (end + (2.3 - end) * math.exp(-7 * step / points)) * noise.lognormvariate(0, 0.12)
        for step in steps
    ]
    return LossCurve(
        steps=steps,
        values=values,
        seconds=[step * 0.43 for step in steps],
        samples=[step * 64.0 for step in steps],
        first=2.3,
        last=math.nan if bad_step is not None else end,
        finite=bad_step is None,
        first_bad_step=bad_step,
        target=0.05 if bad_step is None else None,
        target_reached={"step": 830.0, "seconds": 357.0, "samples": 53120.0} if bad_step is None else None,
    )


def timeline(buckets: int, shares: dict[str, float], step_s: float, every: int = 1) -> list[TimelinePoint]:
    """Buckets of steps with a warm-up, noise, saves and a few spikes."""
    noise = random.Random(buckets + round(step_s * 1e6))
    points, clock = [], 0.0
    for i in range(buckets):
        mean = step_s * (1 + 3 * math.exp(-i / (buckets * 0.008))) * noise.lognormvariate(0, 0.04)
        parts = [share * noise.lognormvariate(0, 0.12) for share in shares.values()]
        spike = noise.random() < 0.012
        slowest = mean * (noise.uniform(3, 9) if spike else noise.uniform(1.02, 1.3))
        points.append(
            TimelinePoint(
                step=i * every,
                seconds=clock,
                steps=every,
                step_s=mean,
                slowest_s=slowest,
                shares=[part / sum(parts) for part in parts],
            )
        )
        clock += mean * every
    return points


def gauge(name: str, unit: str, level: float, limit: float | None, host: str = "laptop") -> GaugeSeries:
    noise = random.Random(name + host)
    values = [max(0.0, level * noise.lognormvariate(0, 0.08)) for _ in range(240)]
    values = [min(value, limit) if limit else value for value in values]
    gaps: list[float | None] = [None if 100 <= i < 104 else value for i, value in enumerate(values)]
    return GaugeSeries(host=host, name=name, unit=unit, seconds=[i * 2.2 for i in range(240)], values=gaps, limit=limit)


def host_gauges(host: str = "laptop") -> list[GaugeSeries]:
    return [
        gauge("cpu_own", "%", 88, 100, host),
        gauge("cpu_others", "%", 5, 100, host),
        gauge("ram_used", "bytes", 6.1 * GIB, 15.6 * GIB, host),
        gauge("disk_read", "bytes/s", 3.1e6, None, host),
        gauge("cpu_pressure", "%", 31, 100, host),
    ]


def gpu_gauges(host: str, gpus: int) -> list[GaugeSeries]:
    made = []
    for i in range(gpus):
        made += [
            gauge(f"gpu{i} utilization", "%", 61, 100, host),
            gauge(f"gpu{i} memory", "bytes", 52 * GIB, 80 * GIB, host),
            gauge(f"gpu{i} power", "W", 480, 700, host),
            gauge(f"gpu{i} temperature", "°C", 63, 87, host),
        ]
    return made


def diagnosis(**changes: object) -> Diagnosis:
    """A data-bound run of one process on a CPU, with whatever is to be different."""
    base = rank()
    values: dict[str, object] = {
        "run_id": "20261118-142301-a7f3",
        "command": "python train.py --epochs 6 --data ~/photos",
        "exit_code": 0,
        "ended": "finished",
        "device": "cpu",
        "device_name": "Intel Xeon (2 cores)",
        "world": 1,
        "wall_s": 541.0,
        "ranks": (base,),
        "shares": base.shares,
        "seconds": base.seconds,
        "step_s": base.step_s,
        "p95_s": base.p95_s,
        "samples_per_s": 155.2,
        "batch_size": 64.0,
        "mfu": None,
        "loader": loader(),
        "loss": loss(),
        "cost": Cost(price_per_hour=0.34, price_source="--price", run=0.0511, idle=0.0312, idle_share=0.61),
        "verdict": "loader-cpu-bound",
        "verdict_text": "The loader's workers use every core there is: training waits for data 61% of the time.",
        "findings": (CPU_BOUND, CHECKPOINT, RESTART),
        "unavailable": {"gpu": "no NVIDIA driver", "mfu": "the peak of this CPU is not known"},
        "memory": {"peak_rss_bytes": 2.31 * GIB, "peak_device_bytes": None, "host_limit_bytes": 15.6 * GIB},
        "timelines": {0: timeline(1240, base.shares, 0.43)},
        "gauges": host_gauges(),
        "startup_s": 4.2,
    }
    return Diagnosis(**(values | changes))  # type: ignore[arg-type]


def data_bound() -> Diagnosis:
    return diagnosis()


def gpu_rank(number: int, shares: dict[str, float]) -> RankBreakdown:
    return rank(
        number,
        shares,
        device="cuda",
        step_s=around(0.298 + 0.0004 * number, 5950, 0.004),
        p95_s=0.341,
        steps=6000,
        micro_steps=24000,
        samples_per_s=214.0,
        peak_rss_bytes=9.4 * GIB,
        peak_device_bytes=(61.2 + number) * GIB,
        startup_s=21.0,
    )


WAITING = spread(0.011, 0.012, 0.17, 0.35, 0.04, 0.38, 0.005, 0.012, 0.02)
LATE = spread(0.36, 0.012, 0.17, 0.35, 0.04, 0.03, 0.005, 0.012, 0.021)


def straggler(world: int = 8, buckets: int = 2000, every: int = 3) -> Diagnosis:
    """Ranks on H100 GPUs of which number 5 waits for its storage."""
    ranks = [gpu_rank(number, LATE if number == 5 else WAITING) for number in range(world)]
    hosts = sorted({one.host for one in ranks})
    return diagnosis(
        run_id="20261118-150912-c41e",
        command="torchrun --nproc-per-node 8 pretrain.py --config llama-1b.toml",
        device="cuda",
        device_name="NVIDIA H100 80GB HBM3",
        world=world,
        wall_s=1850.0,
        ranks=ranks,
        shares=WAITING,
        seconds=ranks[0].seconds,
        step_s=ranks[0].step_s,
        p95_s=0.341,
        samples_per_s=214.0 * world,
        mfu=0.231,
        loader=loader(on_cpu=0.22, blocked=0.71, runnable=0.07, read_bytes_per_s=41 * 2.0**20),
        loss=loss(6000, end=0.8),
        cost=Cost(price_per_hour=55.04, price_source="p5.48xlarge", run=28.28, idle=11.6, idle_share=0.41),
        verdict="rank-straggling",
        verdict_text="Rank 5 makes the seven others wait 38% of every step; its loader is blocked on storage.",
        findings=(STRAGGLER, PRECISION, CHECKPOINT),
        unavailable={"network": "no counters for the InfiniBand ports (permission denied)"},
        memory={"peak_rss_bytes": 9.4 * GIB, "peak_device_bytes": 68.2 * GIB, "device_total_bytes": 80 * GIB},
        timelines={one.rank: timeline(buckets, dict(one.shares), 0.3 + one.rank / 1e4, every) for one in ranks[:8]},
        gauges=[series for host in hosts[:2] for series in host_gauges(host) + gpu_gauges(host, 4)],
        startup_s=21.0,
        top_operators=(HotFunction(function="aten::mm", share=0.41, count=3120),),
    )


def healthy() -> Diagnosis:
    one = rank(0, COMPUTE, device="cuda", peak_device_bytes=61.2 * GIB)
    return diagnosis(
        device="cuda",
        device_name="NVIDIA H100 80GB HBM3",
        ranks=(one,),
        shares=one.shares,
        seconds=one.seconds,
        mfu=0.47,
        verdict="compute-bound",
        verdict_text="The device works 94% of the time; nothing found would gain 5%.",
        findings=(HEALTHY,),
        unavailable={},
        timelines={0: timeline(1240, COMPUTE, 0.43)},
        cost=None,
    )


def crashed() -> Diagnosis:
    return diagnosis(exit_code=1, ended="failed with exit code 1", cost=None)


def killed() -> Diagnosis:
    return diagnosis(
        exit_code=137,
        ended="killed by SIGKILL (out of memory)",
        verdict="memory-growing",
        verdict_text="The host ran out of memory: the program grew by 1.9 MiB a step for 7,300 steps.",
        findings=(GROWING, CPU_BOUND),
    )


def running() -> Diagnosis:
    return diagnosis(exit_code=None, ended="still running", wall_s=310.0)


def _without_steps(verdict: str, text: str, **changes: object) -> Diagnosis:
    values: dict[str, object] = {
        "verdict": verdict,
        "verdict_text": text,
        "findings": (),
        "ranks": (),
        "shares": {},
        "seconds": {},
        "step_s": None,
        "p95_s": None,
        "samples_per_s": None,
        "batch_size": None,
        "loader": None,
        "loss": None,
        "cost": None,
        "timelines": {},
        "gauges": (),
        "wall_s": 3.1,
        "startup_s": None,
    }
    return diagnosis(**(values | changes))


def too_short() -> Diagnosis:
    return _without_steps("too-short", "Only 4 steps were taken; a diagnosis needs 20.", startup_s=2.0)


def no_steps() -> Diagnosis:
    return _without_steps(
        "no-steps",
        "No training step was seen: no optimizer updated parameters that had gradients.",
        unavailable={"steps": "torch was imported, but no backward pass ran"},
        exit_code=1,
        ended="failed with exit code 1",
    )


def nan_loss() -> Diagnosis:
    return diagnosis(
        loss=loss(bad_step=412),
        verdict="loss-not-finite",
        verdict_text="The loss is NaN from step 412 on; everything after it is lost.",
        findings=(NAN_LOSS, CPU_BOUND),
    )


def million() -> Diagnosis:
    """A million steps of eight ranks, thinned by the reader to 2,000 buckets a rank."""
    made = straggler(8, 2000, 500)
    ranks = [dataclasses.replace(one, steps=1_000_000) for one in made.ranks]
    return dataclasses.replace(made, ranks=ranks, loss=loss(1_000_000, end=0.8), wall_s=300_000.0)


def thousand_ranks() -> Diagnosis:
    return straggler(1000, 400)


HOSTILE = "<script>alert(1)</script>\x1b[31m\"'&</style><img src=http://evil.example/x onerror=alert(2)>"


def hostile() -> Diagnosis:
    """The user's strings, all of them, try to break out of every format."""
    bad = finding(
        HOSTILE,
        HOSTILE,
        HOSTILE,
        gain=Gain(low=1.1, high=1.2),
        evidence=(evidence(HOSTILE, 1.0, HOSTILE),),
        remedies=(remedy("loader.workers", "exact", HOSTILE, 1.1, 1.2),),
    )
    hot = (HotFunction(function=HOSTILE, share=1.0, count=3),)
    return diagnosis(
        run_id=HOSTILE,
        command=HOSTILE,
        ended=HOSTILE,
        device_name=HOSTILE,
        verdict=HOSTILE,
        verdict_text=HOSTILE,
        findings=(bad, CPU_BOUND),
        loader=loader(loader=HOSTILE, hot=hot, settings={HOSTILE: HOSTILE}),
        ranks=(rank(0, host=HOSTILE, host_functions=hot), rank(1, COMPUTE, host=HOSTILE)),
        world=2,
        unavailable={HOSTILE: HOSTILE},
        gauges=[gauge(HOSTILE, HOSTILE, 5, None, HOSTILE)],
        problems=(HOSTILE,),
        top_operators=hot,
        memory={HOSTILE: 1.0},
        cost=Cost(price_per_hour=1, price_source=HOSTILE, run=1, idle=0.5, idle_share=0.5),
    )


SCENES = {
    make.__name__: functools.cache(make)
    for make in (
        data_bound,
        straggler,
        healthy,
        crashed,
        killed,
        running,
        too_short,
        no_steps,
        nan_loss,
        million,
        thousand_ranks,
        hostile,
    )
}
