"""The data types of an explanation: breakdown, evidence, remedy, finding, diagnosis. Frozen, in SI units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.core.remedies import RemedyInfo, Safety, remedy_info
from paceline.core.statistics import Interval

Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Basis = Literal["measured", "model", "assumed"]


_SURE: Mapping[Basis, Confidence] = {"measured": "high", "model": "medium", "assumed": "low"}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Expected speed-up of the whole step, as a factor: with 1.5, steps take two thirds of the time.

    Attributes:
        low: Lower end of the expected interval.
        high: Upper end of the expected interval.
        basis: Source of the interval: a measurement, a model of measured times, or an assumed bound.
    """

    low: float
    high: float
    basis: Basis = field(default="model", compare=False)

    @property
    def confidence(self) -> Confidence:
        """How reliable the interval is: measured is high, modelled is medium, assumed is low."""
        return _SURE[self.basis]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One number that supports a finding, and a sentence with this number."""

    text: str
    value: float | None
    unit: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A remedy that a finding proposes, with the value to set and the expected gain.

    Attributes:
        id: Id from the table of remedies, such as ``loader.workers``.
        safety: Safety class of the remedy in this run.
        change: The change as text, with the value to set.
        gain: Expected speed-up of a step, or None without an estimate.

    Raises:
        ValueError: The table of remedies has no such id.
    """

    id: str
    safety: Safety
    change: str
    gain: Gain | None = None

    def __post_init__(self) -> None:
        """Check that the table of remedies contains the id."""
        remedy_info(self.id)

    @property
    def info(self) -> RemedyInfo:
        """The row of the remedy in the table: title, safety classes, settings."""
        return remedy_info(self.id)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cause of lost time, or of a wrong result."""

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    time_share: float | None  # share of step wall time; None if the finding does not cost time
    gain: Gain | None
    ranks: Sequence[int]
    evidence: Sequence[Evidence]
    remedies: Sequence[Remedy]
    summary: str  # one sentence: what is wrong, with its main number


@dataclass(frozen=True, kw_only=True)
class HotFunction:
    """A function of the user's program in which stack samples were taken."""

    function: str  # "augment (train.py:31)"
    share: float  # share of the stack samples of the same kind
    count: int


@dataclass(frozen=True, kw_only=True)
class SourceLines:
    """The source lines around a line that a report names."""

    file: str  # path of the file when the program ran
    marked: int  # number of the named line
    first: int  # number of the first line in `lines`
    lines: Sequence[str]  # without common indentation; empty if the file changed after the run started
    changed: bool = False  # whether the file changed after the run started


@dataclass(frozen=True, kw_only=True)
class LoaderBreakdown:
    """How the workers of one rank's training loader spend their time. Without workers, this is the training process.

    on_cpu, blocked and runnable are shares of the time spent producing batches and sum to 1.
    """

    workers: int
    loader: str  # "DataLoader over Photos (batch_size 64, 2 workers)"
    batches: int
    samples: int
    produce_s: float  # seconds spent producing batches, summed over all workers
    idle_s: float  # seconds spent waiting for requests, summed over all workers
    on_cpu: float
    blocked: float
    runnable: float
    collate: float  # share of produce_s spent in the collate function
    hand_over: float  # CPU time of sending batches to the training process, as a share of produce_s
    batch_s: Interval  # seconds that a worker takes for one batch
    cpu_per_batch_s: float
    slow_share: float  # share of produce_s in batches that took at least four times the median
    read_bytes_per_s: float | None
    hot: Sequence[HotFunction]
    draws_random: bool | None = None  # whether loading samples drew random numbers; None if not observed
    own_generator: bool | None = None  # whether the dataset has its own random generator, which workers copy
    settings: Mapping[str, object] = field(default_factory=dict)  # batch_size, pin_memory, prefetch_factor …
    per_worker: Sequence[WorkerRow] = ()
    threads: int = 0  # threads of the training process that load batches in the background, instead of workers
    batch_times: Sequence[tuple[int, float]] = ()  # histogram of batch times: (number of batches, seconds)

    @property
    def makers(self) -> int:
        """Number of workers or threads that load batches in the background; 0 if the training thread loads them."""
        return self.workers or self.threads


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """One worker in the report's table. The times are sums over the life of the worker."""

    worker_id: int
    pid: int
    batches: int
    produce_s: float
    idle_s: float
    on_cpu_s: float
    blocked_s: float
    runnable_s: float
    collate_s: float
    hand_over_s: float


@dataclass(frozen=True, kw_only=True)
class RankBreakdown:
    """The steady steps of one rank: their duration, and the time in each phase."""

    rank: int
    host: str
    pid: int
    device: str
    steps: int  # number of applied updates, warm-up included
    micro_steps: int
    warmup: int  # steps at the start that are left out of every statistic
    step_s: Interval  # median over steady steps
    p95_s: float
    seconds: Mapping[str, float]  # seconds in each of the nine phases, over the steady steps
    shares: Mapping[str, float]  # share of each of the nine phases; the shares sum to 1
    samples_per_s: float | None
    batch_size: float | None
    peak_rss_bytes: float | None
    peak_device_bytes: float | None
    startup_s: float | None
    host_functions: Sequence[HotFunction]  # functions in phase `other`


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The loss over a rank's steps, thinned to a few thousand points."""

    steps: Sequence[int]
    values: Sequence[float]
    seconds: Sequence[float]  # seconds since the start of the first step
    samples: Sequence[float]
    first: float | None  # median of the first steps
    last: float | None  # median of the last steps
    finite: bool
    first_bad_step: int | None
    averaged: int = 1  # number of steps at each end over which `first` and `last` are medians
    target: float | None = None
    target_reached: Mapping[str, float] | None = None  # "step", "seconds" and "samples" at which the target was reached


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a run, if the price of the machine is known."""

    price_per_hour: float
    price_source: str
    run: float
    idle: float  # part of `run` for the time in which the device waited
    idle_share: float


@dataclass(frozen=True, kw_only=True)
class TimelinePoint:
    """A group of consecutive steps of one rank, as one point of a chart."""

    step: int  # first step of the group
    seconds: float  # seconds since the start of the run's first step
    steps: int  # number of steps in the group
    step_s: float  # mean wall time of the steps
    slowest_s: float  # longest wall time of the steps
    shares: Sequence[float]  # share of each of the nine phases, in the order of layout.PHASES


@dataclass(frozen=True, kw_only=True)
class GaugeSeries:
    """One gauge over time on one host, thinned for a chart."""

    host: str
    name: str  # "cpu_own", "gpu0 utilization"
    unit: str  # "%", "bytes", "W", "°C", "MHz", "bytes/s"
    seconds: Sequence[float]  # seconds since the start of the command
    values: Sequence[float | None]
    limit: float | None = None  # physical limit, if there is one


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All data that a report shows of a run. Reports only format these data."""

    run_id: str
    command: str
    exit_code: int | None
    ended: str  # how the run ended: "finished", "killed by SIGKILL (out of memory)", "still running", …
    device: str
    device_name: str
    world: int
    wall_s: float | None
    ranks: Sequence[RankBreakdown]
    shares: Mapping[str, float]  # median over ranks, normalised to sum to 1
    seconds: Mapping[str, float]  # median over ranks
    step_s: Interval | None
    p95_s: float | None
    samples_per_s: float | None  # sum over all ranks
    batch_size: float | None  # batch size of one rank
    mfu: float | None
    loader: LoaderBreakdown | None
    loss: LossCurve | None
    cost: Cost | None
    verdict: str  # the name of a finding, or "too-short", "no-steps", "balanced"
    verdict_text: str  # one sentence
    findings: Sequence[Finding]  # the finding of the verdict comes first
    unavailable: Mapping[str, str]  # reason for each measurement that is missing
    memory: Mapping[str, float | None]
    timelines: Mapping[int, Sequence[TimelinePoint]]  # by rank
    gauges: Sequence[GaugeSeries]
    problems: Sequence[str] = ()
    patched: Sequence[str] = ()  # names of the torch and Python functions that Paceline wrapped, on any rank
    top_operators: Sequence[HotFunction] = ()  # from the profiler window
    startup_s: float | None = None
    sources: Mapping[str, SourceLines] = field(default_factory=dict)  # by function, such as "augment (train.py:31)"
