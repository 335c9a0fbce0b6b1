"""A model of the loader: the step time for each number of workers. The loader findings use this model.

For one step, let c be the seconds of compute that no loader can hide, b and u the wall and CPU seconds for making the
batches of the step, k the CPU seconds of everything else, and C the number of available cores. With w workers, a step
takes

    max(c, b / w, (k + u) / C)

The bound by the cores separates samples that *wait* (b large, u small: more workers help) from samples that *compute*
(u = b: more workers than cores do not help).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.core.statistics import Floats
from paceline.explain.analysis.breakdown import cpu_wait_share
from paceline.explain.analysis.loader import loaders_made, made_behind
from paceline.explain.analysis.run_analysis import TELLABLE_S, RankAnalysis, RunAnalysis
from paceline.explain.model import Gain
from paceline.record import layout

WORTH = 0.05  # least share of step time spent waiting for data that makes a finding
_STARVED = 0.1  # a rank is starved if its median wait for batches takes this share of the median step
_MOST_WORKERS = 64
_LEAST_FREE = 0.1  # least number of cores that are assumed free
_IN_FEW = 0.7  # share of the waiting above the median wait that falls on a sixth of the steps
_OF_WAIT = 0.5  # share of all waiting that is above the median wait
# least and most seconds to start and end a worker process; 40 ms were measured on a busy machine
_START_S = (0.005, 0.04)
# least and most CPU seconds of the training process and of a worker for a batch that the worker sends; 0.4 and 1.0 ms
# were measured for two small tensors
_RECEIVE_S, _SEND_S = (0.0002, 0.0005), (0.0003, 0.0012)
_BY_A_CORE = 0.5  # share of the long waits that waiting for a CPU core may explain
_WITHOUT_WORKERS = 5.0  # largest speed-up of compute if no workers run at the same time
_WARM = 0.5  # a program that waited 74% of its time computed 1.5 times as fast without this wait
_LEAST_POOL = 3  # least number of further threads of a worker that count as a compute pool
_PLAIN_WORKER_THREADS = 4  # threads of a worker without compute threads: main, feeder, watcher, and Paceline's ticker


@dataclass(frozen=True, kw_only=True)
class LoaderModel:
    """One rank's need for batches, and the cost of making them. All times are seconds per step."""

    step_s: float
    wait_s: float  # all waiting for data
    restart_s: float  # part of wait_s: additional time of the first fetch after a loader was started
    compute_s: float  # all time except waiting for data
    make_s: float  # wall time in which one worker makes the batches of a step
    make_cpu_s: float  # CPU time for making the batches of a step
    hand_over_s: float  # CPU time for sending and receiving the batches
    other_cpu_s: float  # CPU time of everything else in the training process
    workers: int  # number of workers, or of threads that make batches instead of workers
    cores: float  # cores that this rank can use
    free_cores: float | None = None  # cores that other programs leave for this rank; None if not measured
    to_send: float = 0.0  # batches per step that workers would send; 0 if workers send them already
    starts: float = 0.0  # loaders without workers started per step: with workers, each of them would start its workers
    # part of restart_s without making the first batches, which persistent workers also have to make
    start_s: float = 0.0

    @property
    def wait_share(self) -> float:
        """Share of step time spent waiting for data."""
        return self.wait_s / self.step_s if self.step_s > 0 else 0.0

    @property
    def steady_share(self) -> float:
        """Share of step time spent waiting for data, without restarts of the loader."""
        return (self.wait_s - self.restart_s) / self.step_s if self.step_s > 0 else 0.0

    @property
    def warmer(self) -> float:
        """Largest factor by which compute can speed up without waiting for data: caches and clocks stay warm."""
        return 1.0 + _WARM * self.wait_share

    @property
    def cpu_demand(self) -> float:
        """CPU seconds that a step needs, as a share of the CPU seconds that the cores have."""
        return self._cpu_s / self.step_s

    def step_with(self, workers: int, receive_s: float = 0.0, send_s: float = 0.0) -> float:
        """Return the predicted seconds of a step with this number of workers.

        Args:
            workers: Number of workers.
            receive_s: Further seconds of a step for receiving batches from workers.
            send_s: Further seconds of a step for sending batches from workers.
        """
        cpu_s = self._cpu_s + (receive_s + send_s) / self.cores
        return max(self.compute_s + receive_s, (self.make_s + send_s) / max(workers, 1), cpu_s)

    @property
    def _cpu_s(self) -> float:
        """Seconds of a step if its CPU work kept all cores busy."""
        return (self.other_cpu_s + self.make_cpu_s + self.hand_over_s) / self.cores

    def best_workers(self) -> int:
        """Return the smallest number of workers whose step time is within 3% of the best."""
        best = self.step_with(_MOST_WORKERS)
        return next(w for w in range(1, _MOST_WORKERS + 1) if self.step_with(w) <= 1.03 * best)

    @property
    def unexplained_s(self) -> float:
        """Seconds of a step that the model does not explain, such as batches of uneven cost; without restarts."""
        if not self.workers:
            return 0.0
        return max(0.0, self.step_s - self.restart_s - self.step_with(self.workers))

    def gain_with(self, workers: int) -> Gain:
        """Return the speed-up of a step with this number of workers.

        For the lower end, each batch takes a third longer for coordination, and another quarter if all cores are busy,
        because two cores may be two hardware threads of one core. The time that the model does not explain stays as it
        is; for the upper end, half of it stays. For the lower end, other programs keep their cores. Loaders that are
        made in each epoch start their workers again. The first workers also have to send their batches.
        """
        quick, slow = (self.starts * workers * start_s for start_s in _START_S)
        best, worst = (max(self.step_with(workers, *more), 1e-9) for more in self._hand_over_s())
        longer = 1.33 + 0.25 * min(1.0, self._cpu_s / worst)
        high = self.step_s / (best + 0.5 * self.unexplained_s + quick)
        coordinated = max(self.compute_s + 0.1 * self.make_s / max(workers, 1), worst * longer)
        if self.free_cores is not None:
            coordinated = max(coordinated, self._cpu_s * self.cores / self.free_cores)
        low = self.step_s / (coordinated + self.unexplained_s + slow)
        return Gain(low=max(1.0, min(low, high)), high=max(1.0, high))

    def _hand_over_s(self) -> list[tuple[float, float]]:
        """Return the least and the most seconds per step for receiving and for sending batches of new workers."""
        return [(self.to_send * r, self.to_send * s) for r, s in zip(_RECEIVE_S, _SEND_S, strict=True)]

    def gain_of_cached_samples(self) -> Gain:
        """Return the speed-up of a step if samples come from memory: only the work of the training process is left.

        No workers are started. Compute that does not share cores and CPU caches with workers was up to five times as
        fast (benchmarks/tune_programs/repeats.py).
        """
        own_cpu_s = max(0.0, self.other_cpu_s - self.restart_s)
        left = max(own_cpu_s / self.cores / self.warmer, self.compute_s / _WITHOUT_WORKERS, 1e-9)
        high = max(1.05, self.step_s / left)
        return Gain(low=1 + 0.3 * (min(high, 1 / max(1 - self.wait_share, 0.01)) - 1), high=high)


def loader_model_of(analysis: RunAnalysis, rank: RankAnalysis) -> LoaderModel:
    """Return the loader model of one rank."""
    steps = len(rank.rows)
    step_s = rank.total_s / steps
    wait = rank.phases["data_wait"]
    loader = rank.loader
    fetches = max(1.0, float(rank.rows["fetches"].mean()))
    fetch_cpu = receiving_s(rank)
    wait_s = float(wait.mean())
    behind = made_by_own_threads(rank)
    in_process = loader is None or loader.workers == 0
    make_s = (step_s if behind else wait_s) if loader is None else fetches * loader.produce_s / loader.batches
    make_cpu = fetch_cpu if loader is None else fetches * loader.cpu_per_batch_s
    sent = 0.0 if loader is None else loader.hand_over * make_s
    own = _own_cpu_s(rank) * step_s
    return LoaderModel(
        step_s=step_s,
        wait_s=wait_s,
        restart_s=_restart_s(rank, 0.0),
        start_s=_restart_s(rank, 0.0 if loader is None else loader.produce_s / loader.batches),
        compute_s=max(0.0, step_s - wait_s),
        make_s=make_s,
        make_cpu_s=make_cpu,
        hand_over_s=sent,
        other_cpu_s=max(0.0, own - (make_cpu if in_process else 0.0)),
        to_send=0.0 if loader is None or not in_process else fetches,
        starts=0.0 if loader is None or not in_process else loaders_made(rank.record) / max(1, rank.record.count),
        workers=int(behind) if loader is None else loader.makers,
        cores=_cores(analysis) / _ranks_on_host(analysis, rank),
        free_cores=_free_cores(analysis, rank),
    )


def made_by_own_threads(rank: RankAnalysis) -> bool:
    """Return whether the program makes its batches without a loader, in a thread or process of its own."""
    return rank.loader is None and made_behind(rank.record)


def is_starved(rank: RankAnalysis) -> bool:
    """Return whether a rank gets background batches too late in most steps, so that the loader limits its speed.

    The data wait then shows when batches arrive, not how long it takes to make a batch. The time in which the rank
    waits for other ranks is also time in which batches are made.
    """
    behind = rank.loader.makers > 0 if rank.loader is not None else made_by_own_threads(rank)
    waits = rank.phases["data_wait"] - receiving_s(rank)
    return behind and len(waits) > 0 and float(np.median(waits)) >= _STARVED * float(np.median(rank.walls))


def receiving_s(rank: RankAnalysis) -> float:
    """Return the CPU seconds that the training thread spends fetching batches, as the mean over measured steps."""
    spent = rank.rows["fetch_cpu_s"]
    return float(np.nanmean(spent)) if np.isfinite(spent).any() else 0.0


def _own_cpu_s(rank: RankAnalysis) -> float:
    """Return the CPU seconds that the training process, without workers, uses per second while it makes steps."""
    ticks = rank.record.ticks
    ticks = ticks[ticks["step"] > 0]
    if len(ticks) < 2 or ticks["time_ns"][-1] <= ticks["time_ns"][0]:
        return 1.0
    return float(ticks["cpu_s"][-1] - ticks["cpu_s"][0]) / (float(ticks["time_ns"][-1] - ticks["time_ns"][0]) / 1e9)


def _cores(analysis: RunAnalysis) -> float:
    import os

    return analysis.host.allowed_cores or float(os.cpu_count() or 1)


def _free_cores(analysis: RunAnalysis, rank: RankAnalysis) -> float | None:
    """Return the cores that other programs leave for this rank, at least those that it uses now, or None if unknown."""
    host = analysis.host
    if host.others_share <= 0 or host.allowed_cores is None or host.own_cores is None:
        return None
    left = max(host.allowed_cores - (host.other_cores or 0.0), host.own_cores, _LEAST_FREE)
    return min(left, host.allowed_cores) / _ranks_on_host(analysis, rank)


def _ranks_on_host(analysis: RunAnalysis, rank: RankAnalysis) -> int:
    return max(1, sum(r.record.host == rank.record.host for r in analysis.ranks))


def _restart_s(rank: RankAnalysis, batch_s: float) -> float:
    """Return the additional time of the first fetches after loader starts, in seconds per step.

    Args:
        rank: The rank.
        batch_s: Seconds for making one batch, which a first fetch takes in any case.
    """
    more = restarts_s(rank, batch_s)
    return float(more.sum()) / len(rank.rows) if len(more) else 0.0


def restarts_s(rank: RankAnalysis, batch_s: float) -> Floats:
    """Return, for each first fetch, by how many seconds it takes longer than a later fetch and than making a batch."""
    starts = (rank.rows["flags"] & layout.FLAG_EPOCH) != 0
    wait = rank.phases["data_wait"]
    if starts.all() and not (rank.loader and rank.loader.workers):
        return np.zeros(0)
    usual = float(np.median(wait[~starts])) if not starts.all() else 0.0
    more: Floats = np.maximum(wait[starts] - max(usual, batch_s), 0.0)
    return more


def waiting_rank(analysis: RunAnalysis) -> tuple[RankAnalysis, LoaderModel] | None:
    """Return the rank that waits most for data, with its loader model, or None if no rank waits noticeably."""
    rank = max(analysis.ranks, key=lambda one: float(one.phases["data_wait"].sum()) / max(one.total_s, 1e-9))
    loader_model = loader_model_of(analysis, rank)
    return (rank, loader_model) if loader_model.wait_share >= WORTH and loader_model.wait_s >= TELLABLE_S else None


def bound_by_cpu(analysis: RunAnalysis, rank: RankAnalysis, loader_model: LoaderModel) -> bool:
    """Return whether the CPU cores limit the loader, instead of the number of workers."""
    loader = rank.loader
    busy = loader_model.cpu_demand >= 0.8
    if loader is not None and (loader.workers or loader.threads):
        starved = loader.runnable / max(loader.on_cpu + loader.runnable, 1e-9)
        return busy or starved >= 0.25
    return busy


def worker_threads(analysis: RunAnalysis, rank: RankAnalysis) -> int:
    """Return the number of compute threads of all workers of the training loader together.

    Threads that every worker has do not count. A worker with fewer than `_LEAST_POOL` further threads has no compute
    threads, because libraries start helper threads that do not compute.
    """
    if rank.loader is None or not rank.loader.workers:
        return 0
    pids = {row.pid for row in rank.loader.per_worker}
    most = max((int(w.last.get("threads") or 0) for w in analysis.run.workers if w.pid in pids), default=0)
    further = most - _PLAIN_WORKER_THREADS
    return further * rank.loader.workers if further >= _LEAST_POOL else 0


def is_blocked(rank: RankAnalysis) -> bool:
    """Return whether making samples mostly waits (storage, network, sleep) instead of computing."""
    return rank.loader is not None and rank.loader.blocked >= 0.5


def is_transport(rank: RankAnalysis, loader_model: LoaderModel) -> bool:
    """Return whether collating and sending batches takes more time than making samples."""
    loader = rank.loader
    if loader is None or not loader.workers:
        return False
    receive = receiving_s(rank)
    make = loader_model.make_s * (1 - loader.collate)
    return loader.collate * loader_model.make_s + loader_model.hand_over_s + receive > 1.2 * make


def is_jitter(rank: RankAnalysis) -> bool:
    """Return whether most of the waiting is a few long waits for slow batches, instead of a steady wait.

    The median wait is subtracted, because steps would also have it without the slow batches. Whether compute hides the
    usual batch depends on the machine, and does not change the cost of the slow batches.
    """
    starts = (rank.rows["flags"] & layout.FLAG_EPOCH) != 0
    wait = rank.phases["data_wait"][~starts]
    if len(wait) < 20 or wait.sum() <= 0:
        return False
    few = max(1, len(wait) // 6)
    more = np.sort(np.maximum(wait - np.median(wait), 0.0))[::-1]
    concentrated = bool(more[:few].sum() >= _IN_FEW * more.sum() and more.sum() >= _OF_WAIT * wait.sum())
    slow_batches = rank.loader is None or rank.loader.slow_share >= 0.4
    return concentrated and slow_batches and not _waits_for_a_core(rank, float(more.sum()))


def _waits_for_a_core(rank: RankAnalysis, more_s: float) -> bool:
    """Return whether the makers of the batches may have waited for a CPU core for at least half of `more_s`."""
    if rank.loader is not None and rank.loader.makers:
        return rank.loader.runnable >= _BY_A_CORE * rank.loader.slow_share
    return cpu_wait_share(rank.record) * rank.total_s >= _BY_A_CORE * more_s
