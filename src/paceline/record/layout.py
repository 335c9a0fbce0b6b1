"""The files of a run on disk.

A run is a folder ``.paceline/runs/<id>/``. Every file has exactly one writer, so nothing is locked;
every file is appended to or replaced whole, so a reader at any moment (or after ``kill -9``) sees all
but the last moments. Standard library only: this module is loaded inside the watched program.

    launch-<host>-<pid>.json     how the command was started: schema, argv, times, price
    end-<host>-<pid>.json        how it ended: exit code, signal, wall time
    ranks/<host>-<pid>/          one folder per training process
        meta.json                rank, world size, device, versions, clocks
        steps.bin                STEP rows, one per applied optimizer update
        ticks.bin                TICK rows, about one a second
        notes.jsonl              rare events: loaders, epochs, faults, how the process ended
        summary.json             what has been counted so far: hot functions, loaders, optimizers
    workers/<host>-<pid>.jsonl   one file per loader worker: identity, then cumulative counters, about two a second
    profile-asked                empty; each time it is touched, training processes take another profiler window
    warned                       empty; there once a process has said on stderr that its watching stopped
    gauges/<host>.jsonl          readings of the host and its GPUs, about one a second

Times called ``*_ns`` are CLOCK_MONOTONIC of their host; ``epoch_offset_ns`` in a meta file turns them
into wall-clock time. Durations are seconds in 32-bit floats.
"""

from __future__ import annotations

import struct

SCHEMA_VERSION = 1

PHASES = (
    "data_wait",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "evaluation",
    "other",
)

# A moment that belongs to none of the nine phases for sure is kept apart in the row, and the reader
# decides with the help of the stack samples:
#   gap   between the end of a step and its first forward (is it making that forward's input?)
#   mid   between a forward and its backward (is it computing the loss?)
SLOTS = (*PHASES, "gap", "mid")

STEP_FIELDS = (
    "index",  # u32  number of the step in its process, from 0
    "flags",  # u16  FLAG_* below
    "micro_steps",  # u16  backward passes in this step
    "synced",  # u16  backward passes between two optimizer steps that reduced one module's gradients over ranks
    "fetches",  # u16  batches taken from loaders for training
    "end_ns",  # u64  monotonic time at which the step ended
    "wall_s",  # f32  time since the previous step ended
    *(f"{slot}_s" for slot in SLOTS),  # 11 x f32
    "fetch_cpu_s",  # f32  CPU time of the training thread while it waited for data; NaN: not measured
    "forward_blocked_s",  # f32  off-CPU time of the training thread in forward; NaN: not measured
    "backward_blocked_s",  # f32  the same in backward; with several ranks it waits for the others there
    "samples",  # f32  samples trained on in this step; NaN: unknown
    "loss",  # f32  NaN without FLAG_LOSS: not seen; with it: the loss is NaN
    "device_bytes",  # f32  device memory allocated at the step's end; NaN: no device
)
STEP = struct.Struct("<IHHHHQ" + "f" * (1 + len(SLOTS) + 6))

FLAG_LOSS = 1  # a loss was seen in this step
FLAG_DEVICE_TIMED = 2  # phases were timed by device events
FLAG_FRESH = 4  # the first forward's input was not the previous step's
FLAG_BY_BACKWARD = 8  # no optimizer object: the step is a cycle of backward passes
FLAG_PROFILED = 16  # the profiler was on: not a fair sample of time
FLAG_EPOCH = 32  # a loader was started anew in this step
FLAG_TAIL = 64  # not a step: what came after the last one

TICK_FIELDS = (
    "time_ns",  # u64
    "step",  # u32  steps finished so far
    "threads",  # u32  native threads of the process
    "rss_bytes",  # f64  resident memory of the process
    "cpu_s",  # f64  user + system time of the process
    "main_on_cpu_s",  # f64  training thread: on a CPU
    "main_runnable_s",  # f64  training thread: ready, but waiting for a CPU
    "read_bytes",  # f64  bytes the process had fetched from storage
    "pin_cpu_s",  # f64  CPU time of the pin-memory thread; NaN: none
    "device_allocated_bytes",  # f64  NaN: no device
    "device_reserved_bytes",  # f64
    "device_peak_bytes",  # f64
    "device_retries",  # f64  allocations that had to free cached memory first
    "unshared_bytes",  # f64  anonymous and shared memory of the process, without pages of files; NaN: not measured
)
TICK = struct.Struct("<QII" + "d" * 11)
FIRST_TICK_BYTES = struct.calcsize("<QII" + "d" * 10)  # of records whose meta file has no `tick_bytes`

META_FILE = "meta.json"
STEPS_FILE = "steps.bin"
TICKS_FILE = "ticks.bin"
NOTES_FILE = "notes.jsonl"
SUMMARY_FILE = "summary.json"
PROFILE_FILE = "profile-asked"
CAPTURES_DIR = "captures"  # of torch's profiler, where steps were chosen to be captured
WARNED_FILE = "warned"
RANKS_DIR = "ranks"
WORKERS_DIR = "workers"
GAUGES_DIR = "gauges"

# Upper bounds, in seconds, of the histogram of batch times in a loader worker.
BATCH_BOUNDS_S = tuple(1e-4 * 2**i for i in range(20))
