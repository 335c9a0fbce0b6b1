from __future__ import annotations

import threading
import time

from tests.monitor.gauges.written_nvml import WrittenNvml

from paceline.monitor.gauges.driver import patiently
from paceline.monitor.gauges.nvidia import GpuReader
from paceline.monitor.gauges.nvml import NvmlFault


def raising(error):
    def open_gpus():
        raise error

    return open_gpus


def test_gpus_that_are_there():
    gpus, why = patiently(lambda: GpuReader(WrittenNvml([[{}]])), threading.Event())
    assert len(gpus.facts()) == 1
    assert why == {}


def test_no_driver_says_why():
    fault = NvmlFault(12, "no NVIDIA driver (libnvidia-ml.so.1 not found)")
    assert patiently(raising(fault), threading.Event()) == (
        None,
        {"gpus": "NVML: no NVIDIA driver (libnvidia-ml.so.1 not found)"},
    )


def test_a_fault_of_the_binding_is_a_reason_too():
    assert patiently(raising(KeyError("x")), threading.Event()) == (None, {"gpus": "NVML: KeyError: 'x'"})


def test_a_driver_that_hangs_is_not_waited_for():
    hang = threading.Event()
    began = time.monotonic()
    gpus, why = patiently(lambda: hang.wait(60), threading.Event(), patience_s=0.2)
    hang.set()
    assert gpus is None
    assert why == {"gpus": "NVML: the driver has not answered"}
    assert time.monotonic() - began < 10


def test_the_end_of_the_run_is_not_waited_out():
    hang, ended = threading.Event(), threading.Event()
    ended.set()
    began = time.monotonic()
    patiently(lambda: hang.wait(60), ended)
    hang.set()
    assert time.monotonic() - began < 5
