"""The nouns of an explanation: breakdown, evidence, remedy, finding, diagnosis. Frozen, in SI units."""

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
    """Speed-up of the whole step to expect, as a factor: 1.5 means steps take two thirds of the time.

    Attributes:
        low: The least to expect.
        high: The most to expect.
        basis: Where the interval comes from: a measurement, a model of measured times, or a bound that is assumed.
    """

    low: float
    high: float
    basis: Basis = field(default="model", compare=False)

    @property
    def confidence(self) -> Confidence:
        """How sure the interval is: an assumed one has low confidence."""
        return _SURE[self.basis]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One number that speaks for a finding, and the sentence that carries it."""

    text: str
    value: float | None
    unit: str


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A remedy that a finding proposes, with the value to set and the gain to expect.

    Attributes:
        id: An id from the table of remedies, such as ``loader.workers``.
        safety: Its safety class in this run.
        change: The change in words, with the value to set.
        gain: The expected speed-up of a step; None if it is not estimated.

    Raises:
        ValueError: The table of remedies has no such id.
    """

    id: str
    safety: Safety
    change: str
    gain: Gain | None = None

    def __post_init__(self) -> None:
        """Check the id."""
        remedy_info(self.id)

    @property
    def info(self) -> RemedyInfo:
        """The row of the table: title, safety classes, settings."""
        return remedy_info(self.id)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cause of lost time, or of a wrong result."""

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    time_share: float | None  # of step wall time; None where time is not what it costs
    gain: Gain | None
    ranks: Sequence[int]
    evidence: Sequence[Evidence]
    remedies: Sequence[Remedy]
    summary: str  # one sentence: what is wrong, with its main number


@dataclass(frozen=True, kw_only=True)
class HotFunction:
    """A function of the user's in which samples of the stack were taken."""

    function: str  # "augment (train.py:31)"
    share: float  # of the samples of its kind
    count: int


@dataclass(frozen=True, kw_only=True)
class SourceLines:
    """The lines of source around one line that a report names."""

    file: str  # its path when the program ran
    marked: int  # the number of the named line
    first: int  # the number of the first of `lines`
    lines: Sequence[str]  # without common indentation; empty where the file changed after the run started
    changed: bool = False  # whether the file changed after the run started


@dataclass(frozen=True, kw_only=True)
class LoaderBreakdown:
    """Where the time of the workers of one rank's training loader goes (of the training process, with no workers).

    on_cpu, blocked and runnable are shares of the time spent producing batches and sum to 1.
    """

    workers: int
    loader: str  # "DataLoader over Photos (batch_size 64, 2 workers)"
    batches: int
    samples: int
    produce_s: float  # worker time spent producing, over all workers
    idle_s: float  # worker time spent waiting for orders
    on_cpu: float
    blocked: float
    runnable: float
    collate: float  # share of produce_s
    hand_over: float  # CPU time of handing batches over, as a share of produce_s
    batch_s: Interval  # time a worker takes for one batch
    cpu_per_batch_s: float
    slow_share: float  # share of the time of making batches that fell on batches at least four times the median
    read_bytes_per_s: float | None
    hot: Sequence[HotFunction]
    draws_random: bool | None = None  # whether making samples drew from a random generator; None: not looked at
    own_generator: bool | None = None  # whether the dataset keeps a random generator of its own, which workers copy
    settings: Mapping[str, object] = field(default_factory=dict)  # batch_size, pin_memory, prefetch_factor …
    per_worker: Sequence[WorkerRow] = ()
    threads: int = 0  # of the training process, that make batches behind the training thread in place of workers
    batch_times: Sequence[tuple[int, float]] = ()  # how many batches took about so many seconds

    @property
    def makers(self) -> int:
        """How many workers or threads make batches behind the training thread; 0: it makes them itself."""
        return self.workers or self.threads


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """One worker in the report's table; seconds over its life."""

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
    """One rank's steady steps: how long, and on what."""

    rank: int
    host: str
    pid: int
    device: str
    steps: int  # all applied updates
    micro_steps: int
    warmup: int  # steps at the start that are left out of every statistic
    step_s: Interval  # median of steady steps
    p95_s: float
    seconds: Mapping[str, float]  # of the nine phases, over the steady steps
    shares: Mapping[str, float]  # of the nine phases; sum to 1
    samples_per_s: float | None
    batch_size: float | None
    peak_rss_bytes: float | None
    peak_device_bytes: float | None
    startup_s: float | None
    host_functions: Sequence[HotFunction]  # in phase `other`


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The loss over a rank's steps, thinned to at most some thousand points."""

    steps: Sequence[int]
    values: Sequence[float]
    seconds: Sequence[float]  # since the first step began
    samples: Sequence[float]
    first: float | None  # median of the first steps
    last: float | None  # median of the last steps
    finite: bool
    first_bad_step: int | None
    averaged: int = 1  # how many steps at each end `first` and `last` are the medians of
    target: float | None = None
    target_reached: Mapping[str, float] | None = None  # {"step", "seconds", "samples"} of reaching the target


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Money, where a price is known."""

    price_per_hour: float
    price_source: str
    run: float
    idle: float  # part of it spent while the device waited
    idle_share: float


@dataclass(frozen=True, kw_only=True)
class TimelinePoint:
    """A bucket of consecutive steps of one rank, for drawing."""

    step: int  # first step of the bucket
    seconds: float  # since the first step of the run began
    steps: int  # how many steps are in the bucket
    step_s: float  # mean wall time of a step in it
    slowest_s: float  # the slowest step in it
    shares: Sequence[float]  # of the nine phases, in the order of layout.PHASES


@dataclass(frozen=True, kw_only=True)
class GaugeSeries:
    """One reading over time on one host, thinned for drawing."""

    host: str
    name: str  # "cpu_own", "gpu0 utilization"
    unit: str  # "%", "bytes", "W", "°C", "MHz", "bytes/s"
    seconds: Sequence[float]  # since the command started
    values: Sequence[float | None]
    limit: float | None = None  # the physical limit, where there is one


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that a report shows of a run. Reports format this; they compute nothing."""

    run_id: str
    command: str
    exit_code: int | None
    ended: str  # in words: "finished", "killed by SIGKILL (out of memory)", "still running", …
    device: str
    device_name: str
    world: int
    wall_s: float | None
    ranks: Sequence[RankBreakdown]
    shares: Mapping[str, float]  # the ranks' median, normalised to sum to 1
    seconds: Mapping[str, float]  # the ranks' median
    step_s: Interval | None
    p95_s: float | None
    samples_per_s: float | None  # over all ranks
    batch_size: float | None  # of one rank
    mfu: float | None
    loader: LoaderBreakdown | None
    loss: LossCurve | None
    cost: Cost | None
    verdict: str  # a finding's name; "too-short", "no-steps"
    verdict_text: str  # one sentence
    findings: Sequence[Finding]  # the verdict's first
    unavailable: Mapping[str, str]  # what could not be measured: why
    memory: Mapping[str, float | None]
    timelines: Mapping[int, Sequence[TimelinePoint]]  # by rank
    gauges: Sequence[GaugeSeries]
    problems: Sequence[str] = ()
    patched: Sequence[str] = ()  # names of torch and Python that stood for functions of Paceline, on any rank
    top_operators: Sequence[HotFunction] = ()  # from the profiler window
    startup_s: float | None = None
    sources: Mapping[str, SourceLines] = field(default_factory=dict)  # by function: "augment (train.py:31)"
