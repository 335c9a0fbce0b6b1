"""All readings come from a simulated GPU (see written_nvml)."""

from __future__ import annotations

import pynvml
import pytest
from tests.monitor.gauges.written_nvml import (
    GIB,
    GPU_LOST,
    NO_FUNCTION,
    NO_PERMISSION,
    NOT_SUPPORTED,
    WrittenNvml,
    field_value,
    memory,
    process,
    xid,
)

from paceline.monitor.gauges import nvidia
from paceline.monitor.gauges.nvidia import FACTS, READINGS, THROTTLE_REASONS, GpuReader, throttle_names
from paceline.monitor.gauges.nvml import TIMEOUT, Nvml, NvmlFault

SECOND = 1_000_000_000


def read(reader, seconds=0, own=(), known=True):
    return reader.read(seconds * SECOND, frozenset(own), known)


def test_facts():
    (facts,) = GpuReader(WrittenNvml([[{}]])).facts()
    assert facts == {
        "index": 0,
        "driver_version": "580.65.06",
        "uuid": "GPU-0000",
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_total_bytes": 80 * GIB,
        "power_limit_default_w": 400.0,
        "power_limit_max_w": 400.0,
        "sm_clock_max_mhz": 1410,
        "memory_clock_max_mhz": 1593,
        "pcie_max_gen": 4,
        "pcie_card_max_gen": 4,
        "pcie_max_width": 16,
        "nvlink_count": 12,
    }


def test_readings_and_their_units():
    reader = GpuReader(WrittenNvml([[{}]]))
    reader.facts()
    (line,) = read(reader)
    assert reader.unavailable == {}
    assert line == {
        "index": 0,
        "utilization_gpu_percent": 97,
        "utilization_memory_percent": 61,
        "memory_used_bytes": 10 * GIB,
        "temperature_c": 58,
        "power_w": 312.4,
        "power_limit_w": 400.0,
        "sm_clock_mhz": 1395,
        "memory_clock_mhz": 1593,
        "throttle_reasons": [],
        "pcie_gen": 4,
        "pcie_width": 16,
        "pcie_replays": 0,
        "pcie_tx_bytes_per_s": 1_200_000,
        "pcie_rx_bytes_per_s": 8_400_000_000,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "nvlink_active": 12,
        "nvlink_errors": {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0},
        "nvlink_tx_bytes_per_s": None,  # a rate needs two readings
        "nvlink_rx_bytes_per_s": None,
        "xids": [],
        "processes": [],
        "own_memory_bytes": 0,
        "other_memory_bytes": 0,
    }


def test_a_series_in_which_a_card_gets_into_trouble():
    hot = {
        "nvmlDeviceGetTemperature": 91,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x48,
        ("nvmlDeviceGetClockInfo", 1): 780,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
    }
    lost = dict.fromkeys([name for each in READINGS for name in each.functions], GPU_LOST)
    nvml = WrittenNvml([[{}, {}], [{}, hot], [{}, lost]])
    reader = GpuReader(nvml)
    reader.facts()
    lines = []
    for nvml.moment in range(3):
        lines.append(read(reader, nvml.moment))
    assert [line[1]["temperature_c"] for line in lines] == [58, 91, None]
    assert lines[1][1]["throttle_reasons"] == ["hw_slowdown", "hw_thermal"]
    assert lines[1][1]["pcie_width"] == 8
    assert [line[0]["temperature_c"] for line in lines] == [58, 58, 58]
    assert reader.unavailable["gpu1.temperature_c"] == "NVML: GPU is lost"
    assert "gpu0.temperature_c" not in reader.unavailable


def test_a_lost_card_is_asked_again():
    nvml = WrittenNvml([[{"nvmlDeviceGetPowerUsage": GPU_LOST}], [{}]])
    reader = GpuReader(nvml)
    assert read(reader)[0]["power_w"] is None
    nvml.moment = 1
    assert read(reader)[0]["power_w"] == 312.4


@pytest.mark.parametrize("fault", [NOT_SUPPORTED, NO_FUNCTION, NO_PERMISSION])
def test_what_a_driver_lacks_is_missing_for_that_key_alone(fault):
    nvml = WrittenNvml([[{"nvmlDeviceGetUtilizationRates": fault}]])
    reader = GpuReader(nvml)
    for _ in range(3):
        (line,) = read(reader)
    assert (line["utilization_gpu_percent"], line["utilization_memory_percent"]) == (None, None)
    assert line["power_w"] == 312.4
    assert reader.unavailable["gpu0.utilization_gpu_percent"] == f"NVML: {fault.reason}"
    assert reader.unavailable["gpu0.utilization_memory_percent"] == f"NVML: {fault.reason}"
    assert nvml.calls.count("nvmlDeviceGetUtilizationRates") == 1


def test_an_old_driver_is_asked_the_old_way():
    answers = {
        "nvmlDeviceGetCurrentClocksEventReasons": NO_FUNCTION,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
        "nvmlDeviceGetComputeRunningProcesses": NO_FUNCTION,
        "nvmlDeviceGetComputeRunningProcesses_v2": [process(7, GIB)],
    }
    (line,) = read(GpuReader(WrittenNvml([[answers]])), own=(7,))
    assert line["throttle_reasons"] == ["power_cap"]
    assert line["own_memory_bytes"] == GIB


def test_a_binding_of_another_shape_does_no_harm():
    reader = GpuReader(WrittenNvml([[{"nvmlDeviceGetUtilizationRates": "ninety-seven"}]]))
    (line,) = read(reader)
    assert line["utilization_gpu_percent"] is None
    assert "AttributeError" in reader.unavailable["gpu0.utilization_gpu_percent"]
    assert line["temperature_c"] == 58


def test_slow_questions_are_put_seldom():
    nvml = WrittenNvml([[{}]])
    reader = GpuReader(nvml)
    lines = [read(reader, second)[0] for second in range(31)]
    assert [n for n, line in enumerate(lines) if "ecc_corrected" in line] == [0, 1, 10, 20, 30]
    assert [n for n, line in enumerate(lines) if "pcie_rx_bytes_per_s" in line] == [0, 1, 5, 10, 15, 20, 25, 30]
    assert all(line["power_w"] for line in lines)


def test_nvlink_rates_come_from_a_counter():
    nvml = WrittenNvml([[{"nvmlDeviceGetFieldValues": field_value(kib)}] for kib in (1000, 1000 + 4096, 1000 + 4096)])
    reader = GpuReader(nvml)
    reader.facts()
    rates = []
    for nvml.moment in range(3):
        rates.append(read(reader, 2 * nvml.moment)[0]["nvlink_tx_bytes_per_s"])
    assert rates == [None, 2048 * 1024.0, 0.0]


def test_a_card_without_nvlink():
    reader = GpuReader(WrittenNvml([[{"nvmlDeviceGetNvLinkState": NOT_SUPPORTED}]]))
    (facts,) = reader.facts()
    (line,) = read(reader)
    assert facts["nvlink_count"] is None
    assert (line["nvlink_active"], line["nvlink_errors"], line["nvlink_tx_bytes_per_s"]) == (None, None, None)
    assert reader.unavailable["gpu0.nvlink_count"] == "NVML: Not Supported"
    assert "no NVLink" in reader.unavailable["gpu0.nvlink_errors"]


def test_links_that_are_down_count_as_links():
    down = {("nvmlDeviceGetNvLinkState", link): 0 for link in (4, 5)}
    reader = GpuReader(WrittenNvml([[down]]))
    assert reader.facts()[0]["nvlink_count"] == 12
    assert read(reader)[0]["nvlink_active"] == 10


PROCESSES = {"nvmlDeviceGetComputeRunningProcesses": [process(100, 2 * GIB), process(200, GIB)]}


def test_processes_outside_a_container():
    (line,) = read(GpuReader(WrittenNvml([[PROCESSES]])), own=(100,))
    assert [each["own"] for each in line["processes"]] == [True, False]
    assert (line["own_memory_bytes"], line["other_memory_bytes"]) == (2 * GIB, GIB)


def test_processes_inside_a_container_are_not_blamed():
    """There the driver may give the host's numbers: one that is not ours may be ours all the same."""
    (line,) = read(GpuReader(WrittenNvml([[PROCESSES]])), own=(100,), known=False)
    assert [each["own"] for each in line["processes"]] == [True, None]
    assert (line["own_memory_bytes"], line["other_memory_bytes"]) == (2 * GIB, None)
    (line,) = read(GpuReader(WrittenNvml([[PROCESSES]])), own=(), known=False)
    assert (line["own_memory_bytes"], line["other_memory_bytes"]) == (None, None)


def test_a_process_whose_memory_the_driver_hides():
    answers = {"nvmlDeviceGetComputeRunningProcesses": [process(100, None)]}
    (line,) = read(GpuReader(WrittenNvml([[answers]])), own=(100,))
    assert line["processes"] == [{"pid": 100, "memory_bytes": None, "own": True}]
    assert line["own_memory_bytes"] is None


def test_xids_go_to_their_card_once():
    nvml = WrittenNvml([[{}, {}]], events=[xid("card 1", 79), xid("card 1", 48), xid("card 0", 31)])
    reader = GpuReader(nvml)
    assert [line["xids"] for line in read(reader)] == [[31], [79, 48]]
    assert [line["xids"] for line in read(reader)] == [[], []]


def test_events_that_are_not_permitted():
    class Strict(WrittenNvml):
        def call(self, function, *arguments):
            if function == "nvmlDeviceRegisterEvents":
                raise NO_PERMISSION
            return super().call(function, *arguments)

    reader = GpuReader(Strict([[{}]]))
    assert read(reader)[0]["xids"] is None
    assert reader.unavailable["xids"] == "NVML: events are not available (Insufficient Permissions)"


def test_a_storm_of_events_does_not_hold_us():
    class Storm(WrittenNvml):
        def _next_event(self, function):
            return xid("card 0", 31) if function == "nvmlEventSetWait_v2" else None

    assert len(read(GpuReader(Storm([[{}]])))[0]["xids"]) == 100


def test_a_card_that_cannot_be_opened():
    class OneGone(WrittenNvml):
        def call(self, function, *arguments):
            if (function, arguments) == ("nvmlDeviceGetHandleByIndex", (0,)):
                raise GPU_LOST
            return super().call(function, *arguments)

    reader = GpuReader(OneGone([[{}, {}]]))
    assert [line["index"] for line in read(reader)] == [1]
    assert reader.unavailable["gpu0"] == "NVML: GPU is lost"


def test_memory_in_use_follows_the_series():
    nvml = WrittenNvml([[{"nvmlDeviceGetMemoryInfo": memory(gib * GIB)}] for gib in (1, 70)])
    reader = GpuReader(nvml)
    used = []
    for nvml.moment in range(2):
        used.append(read(reader)[0]["memory_used_bytes"])
    assert used == [GIB, 70 * GIB]


def test_unknown_bits_are_shown_as_numbers():
    assert throttle_names(0x1) == ["gpu_idle"]
    assert throttle_names(0x8004) == ["power_cap", "0x8000"]


# The binding is here even where no driver is: what we ask for by name and number must be in it.


def test_every_function_is_in_the_binding():
    asked = {name for question in (*FACTS, *READINGS) for name in question.functions}
    asked |= {"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlSystemGetDriverVersion"}
    asked |= {"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetFieldValues"}
    asked |= {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"}
    asked |= {"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"}
    assert sorted(name for name in asked if not hasattr(pynvml, name)) == []


def test_our_numbers_are_the_bindings():
    assert (nvidia._SM, nvidia._MEMORY) == (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
    assert (nvidia._TX, nvidia._RX) == (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    assert nvidia._CORRECTED == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    assert nvidia._UNCORRECTED == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    assert nvidia._VOLATILE == pynvml.NVML_VOLATILE_ECC
    assert nvidia._MAX_LINKS == pynvml.NVML_NVLINK_MAX_LINKS
    assert TIMEOUT == pynvml.NVML_ERROR_TIMEOUT
    assert nvidia._NVLINK_DATA["nvlink_tx_bytes_per_s"] == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    assert nvidia._NVLINK_DATA["nvlink_rx_bytes_per_s"] == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
    bits = {
        pynvml.nvmlClocksEventReasonSwPowerCap: "power_cap",
        pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
        pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal",
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
    }
    assert bits.items() <= THROTTLE_REASONS.items()
    assert [NvmlFault(code, "").lasting for code in (pynvml.NVML_ERROR_NOT_SUPPORTED, 15)] == [True, False]


def test_the_driver_of_this_machine_answers_or_says_why_not():
    try:
        reader = GpuReader(Nvml())
    except NvmlFault as fault:
        assert fault.reason
    else:
        assert len(reader.facts()) == len(read(reader))
