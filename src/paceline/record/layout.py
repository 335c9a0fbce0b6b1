"""The files of a run on disk.

A run is a folder ``.paceline/runs/<id>/``. Every file has exactly one writer, so no locks are needed. Every file is
appended to or replaced as a whole, so a reader can see all but the most recent data at any time, even after SIGKILL.
This module is loaded inside the watched program and imports only the standard library.

    launch-<host>-<pid>.json     how the command was started: schema, argv, times, price
    end-<host>-<pid>.json        how the command ended: exit code, signal, wall time
    ranks/<host>-<pid>/          one folder per training process
        meta.json                rank, world size, device, versions, clocks
        steps.bin                STEP rows, one per optimizer step
        ticks.bin                TICK rows, about one a second
        notes.jsonl              rare events: loaders, epochs, faults, how the process ended
        summary.json             counts so far: hot functions, loaders, optimizers
    workers/<host>-<pid>.jsonl   one file per loader worker: identity, then cumulative counters, about two a second
    profile-asked                empty; whenever its time changes, training processes record another profiler window
    warned                       empty; exists once a process has reported on stderr that recording stopped
    gauges/<host>.jsonl          readings of the host and its GPUs, about one a second

Fields with names like ``*_ns`` are CLOCK_MONOTONIC times of their host; ``epoch_offset_ns`` in the meta file converts
them to wall-clock time. Durations are seconds in 32-bit floats.
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

# Time that cannot be assigned to one of the nine phases for certain has its own slot in the row. The reader assigns it
# with the help of the stack samples:
#   gap   between the end of a step and its first forward (may prepare the input of that forward)
#   mid   between a forward and its backward (may compute the loss)
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
    "backward_blocked_s",  # the same in backward, where a rank also waits for the other ranks
    "samples",  # f32  samples trained on in this step; NaN: unknown
    "loss",  # NaN without FLAG_LOSS: no loss was seen; NaN with FLAG_LOSS: the loss is NaN
    "device_bytes",  # f32  device memory allocated at the step's end; NaN: no device
)
STEP = struct.Struct("<IHHHHQ" + "f" * (1 + len(SLOTS) + 6))

FLAG_LOSS = 1  # a loss was seen in this step
FLAG_DEVICE_TIMED = 2  # phases were timed by device events
FLAG_FRESH = 4  # the input of the first forward was not that of the previous step
FLAG_BY_BACKWARD = 8  # there is no optimizer object: a step is a cycle of backward passes
FLAG_PROFILED = 16  # the profiler was on: the step's time is not representative
FLAG_EPOCH = 32  # an iterator of a loader was started in this step
FLAG_TAIL = 64  # not a step: the time after the last step

TICK_FIELDS = (
    "time_ns",  # u64
    "step",  # u32  steps finished so far
    "threads",  # u32  native threads of the process
    "rss_bytes",  # f64  resident memory of the process
    "cpu_s",  # f64  user + system time of the process
    "main_on_cpu_s",  # f64  training thread: on a CPU
    "main_runnable_s",  # f64  training thread: ready, but waiting for a CPU
    "read_bytes",  # bytes that the process has read from storage
    "pin_cpu_s",  # f64  CPU time of the pin-memory thread; NaN: none
    "device_allocated_bytes",  # f64  NaN: no device
    "device_reserved_bytes",  # f64
    "device_peak_bytes",  # f64
    "device_retries",  # f64  allocations that had to free cached memory first
    "unshared_bytes",  # f64  anonymous and shared memory of the process, without pages of files; NaN: not measured
    "system_s",  # f64  part of cpu_s in the operating system
    "minor_faults",  # f64  page faults without a read from a disk; NaN: not measured
)
TICK = struct.Struct("<QII" + "d" * 13)
FIRST_TICK_BYTES = struct.calcsize("<QII" + "d" * 10)  # for records whose meta file has no `tick_bytes`

META_FILE = "meta.json"
STEPS_FILE = "steps.bin"
TICKS_FILE = "ticks.bin"
NOTES_FILE = "notes.jsonl"
SUMMARY_FILE = "summary.json"
PROFILE_FILE = "profile-asked"
CAPTURES_DIR = "captures"  # traces of torch's profiler, if steps were selected for capture
WARNED_FILE = "warned"
RANKS_DIR = "ranks"
WORKERS_DIR = "workers"
GAUGES_DIR = "gauges"

# Upper bounds of the histogram of batch times in a loader worker, in seconds.
BATCH_BOUNDS_S = tuple(1e-4 * 2**i for i in range(20))
