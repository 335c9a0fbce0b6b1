from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.hardware.trees import plant
from tests.monitor.gauges.test_host import BASE
from tests.monitor.gauges.written_nvml import GPU_LOST, NOT_SUPPORTED, WrittenNvml

from paceline.hardware.operating_system import LocalFiles
from paceline.monitor.gauges.nvidia import GpuReader
from paceline.monitor.gauges.nvml import NvmlFault
from paceline.monitor.gauges.sampler import GaugeSampler, interval_s
from paceline.record import layout

SECOND = 1_000_000_000
NO_DRIVER = NvmlFault(12, "no NVIDIA driver (libnvidia-ml.so.1 not found)")


class SetClock:
    def __init__(self):
        self.seconds = 1000.0

    def monotonic_ns(self):
        return round(self.seconds * SECOND)

    def unix_s(self):
        return time.time() - 1000 + self.seconds

    def own_cpu_s(self):
        return 0.25


def no_gpus():
    raise NO_DRIVER


def lines(run_dir):
    (file,) = (run_dir / layout.GAUGES_DIR).glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def host(tmp_path):
    return plant(tmp_path / "host", {**BASE, "/proc/sys/kernel/hostname": "node-7\n"})


@pytest.fixture
def sampler(tmp_path, clock, host):
    return GaugeSampler(tmp_path / "run", [1], files=host, clock=clock, open_gpus=no_gpus)


def test_a_header_then_a_line_a_sample(tmp_path, sampler, clock):
    assert sampler.sample_once() is None
    for _ in range(2):
        clock.seconds += 1
        assert sampler.sample_once()["interval_s"] == 1.0
    header, first, second = lines(tmp_path / "run")
    assert (header["schema"], header["kind"], header["host"]) == (1, "header", "node-7")
    assert (header["cores"], header["affinity"], header["allowed_cores"]) == (4, [0, 1, 2, 3], 1.0)
    assert header["memory_limit_bytes"] == 1_000_000_000
    assert header["gpus"] is None
    assert header["unavailable"]["gpus"] == "NVML: no NVIDIA driver (libnvidia-ml.so.1 not found)"
    assert [each["kind"] for each in (first, second)] == ["host", "host"]
    assert [each["time_ns"] for each in (first, second)] == [1001 * SECOND, 1002 * SECOND]
    assert first["gpus"] is None
    assert first["sampler_cpu_s"] == 0.25
    assert (tmp_path / "run" / "gauges" / "node-7.jsonl").exists()


def test_every_none_has_its_reason_in_the_header(tmp_path):
    sampler = GaugeSampler(tmp_path, [os.getpid()])
    sampler.sample_once()
    time.sleep(0.2)
    line = sampler.sample_once()
    header = lines(tmp_path)[0]
    silent = {key for key, value in line.items() if value is None} - header["unavailable"].keys()
    assert sampler.problem is None
    assert silent == set()
    assert header["host"] == platform.node()


def test_a_sample_right_after_the_last_one_is_left_out(tmp_path, sampler, clock):
    sampler.sample_once()
    clock.seconds += 0.01
    assert sampler.sample_once() is None
    assert len(lines(tmp_path / "run")) == 1


def test_gpus_in_header_and_lines(tmp_path, clock, host):
    nvml = WrittenNvml([[{"nvmlDeviceGetNvLinkState": NOT_SUPPORTED}]])
    sampler = GaugeSampler(tmp_path / "run", [1], files=host, clock=clock, open_gpus=lambda: GpuReader(nvml))
    sampler.sample_once()
    clock.seconds += 1
    line = sampler.sample_once()
    header = lines(tmp_path / "run")[0]
    assert header["gpus"][0]["name"] == "NVIDIA A100-SXM4-80GB"
    assert header["unavailable"]["gpu0.nvlink_count"] == "NVML: Not Supported"
    assert line["gpus"][0]["power_w"] == 312.4
    json.dumps(line, allow_nan=False)


def test_what_breaks_later_is_written_down_once(tmp_path, clock, host):
    nvml = WrittenNvml([[{}], [{"nvmlDeviceGetPowerUsage": GPU_LOST}]])
    sampler = GaugeSampler(tmp_path / "run", [1], files=host, clock=clock, open_gpus=lambda: GpuReader(nvml))
    for nvml.moment in (0, 0, 1, 1):
        sampler.sample_once()
        clock.seconds += 1
    written = lines(tmp_path / "run")
    assert [each["kind"] for each in written] == ["header", "host", "host", "unavailable", "host"]
    assert written[3]["unavailable"] == {"gpu0.power_w": "NVML: GPU is lost"}


def test_the_interval_grows():
    assert [interval_s(s) for s in (0, 599, 600, 86400)] == [1.0, 1.0, 5.0, 5.0]


def test_files_that_vanish_do_no_harm(tmp_path, clock):
    class Vanishing(LocalFiles):
        gone = False

        def read(self, path):
            return None if self.gone else super().read(path)

        def names(self, folder):
            return () if self.gone else super().names(folder)

    files = Vanishing()
    sampler = GaugeSampler(tmp_path, [os.getpid()], files=files, clock=clock, open_gpus=no_gpus)
    sampler.sample_once()
    files.gone = True
    clock.seconds += 1
    line = sampler.sample_once()
    assert sampler.problem is None
    assert line["cpu_busy_share"] is None
    assert line["own_processes"] == 0


def test_a_file_of_nonsense_switches_off_and_does_not_raise(tmp_path, clock):
    class Mad(LocalFiles):
        mad = False

        def read(self, path):
            return "cpu0 a b c\n" if self.mad and path == "/proc/stat" else super().read(path)

    files = Mad()
    sampler = GaugeSampler(tmp_path, [os.getpid()], files=files, clock=clock, open_gpus=no_gpus)
    sampler.sample_once()
    files.mad = True
    clock.seconds += 1
    assert sampler.sample_once() is None
    assert sampler.problem.startswith("gauges are off: ValueError")
    assert sampler.sample_once() is None


def test_a_full_disk_switches_the_sampler_off(tmp_path, sampler):
    (tmp_path / "run" / "gauges").mkdir(parents=True)
    (tmp_path / "run" / "gauges" / "node-7.jsonl").symlink_to("/dev/full")
    assert sampler.sample_once() is None
    assert sampler.problem == f"gauges are off: cannot write to {tmp_path / 'run'}: No space left on device"
    (tmp_path / "run" / "gauges" / "node-7.jsonl").unlink()
    sampler.start()
    sampler.stop()
    assert list((tmp_path / "run" / "gauges").iterdir()) == []


def test_a_session_that_fails_to_begin_lets_the_file_go(tmp_path, sampler, host, clock):
    def mad():
        raise SystemError("the driver's memory is gone")

    class Mad(GpuReader):
        def facts(self):
            mad()

    first = GaugeSampler(tmp_path / "run", [1], files=host, clock=clock, open_gpus=lambda: Mad(WrittenNvml([[{}]])))
    first.sample_once()
    assert "SystemError" in first.problem
    sampler.sample_once()
    assert sampler.problem is None


@pytest.mark.parametrize("folder", ["/proc/1/gauges-of-a-run", "/sys/run"])
def test_a_folder_that_cannot_be_written(folder, host, clock):
    sampler = GaugeSampler(Path(folder), [1], files=host, clock=clock, open_gpus=no_gpus)
    assert sampler.sample_once() is None
    assert sampler.problem.startswith(f"gauges are off: cannot write to {folder}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path, sampler):
    (tmp_path / "run").mkdir(mode=0o555)
    sampler.sample_once()
    assert "Permission denied" in sampler.problem


def test_two_samplers_of_a_host_do_not_mix(tmp_path, sampler, clock, host):
    sampler.sample_once()
    second = GaugeSampler(tmp_path / "run", [1], files=host, clock=clock, open_gpus=no_gpus)
    second.sample_once()
    assert second.in_use
    assert "another sampler writes this file" in second.problem


def test_taking_over_begins_with_a_header(tmp_path, sampler, clock, host):
    sampler.start()
    sampler.stop()
    second = GaugeSampler(tmp_path / "run", [1], files=host, clock=clock, open_gpus=no_gpus)
    second.sample_once()
    assert [each["kind"] for each in lines(tmp_path / "run")] == ["header", "header"]


def test_a_thread_beside_a_short_program(tmp_path):
    burn = (
        "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\nprint('x', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", burn + "input()"], stdin=-1, stdout=-1, text=True)
    sampler = GaugeSampler(tmp_path, [child.pid])
    sampler.start()
    child.stdout.readline()
    time.sleep(0.3)
    sampler.stop(10)
    child.communicate("\n")
    readings = [each for each in lines(tmp_path) if each["kind"] == "host"]
    assert sampler.problem is None
    assert readings, "the last sample is taken at the end, however short the run"
    assert sum(each["own_cpu_cores"] * each["interval_s"] for each in readings) > 0.3
    assert readings[-1]["own_processes"] == 1


def test_work_until_the_very_end_is_ours(tmp_path):
    burn = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\n"
    child = subprocess.Popen([sys.executable, "-c", "input()\n" + burn], stdin=subprocess.PIPE)
    sampler = GaugeSampler(tmp_path, [child.pid])
    sampler.sample_once()
    child.communicate(b"\n")
    line = sampler.sample_once()
    assert line["own_cpu_cores"] * line["interval_s"] >= 0.45
    assert line["own_processes"] == 0


def test_a_rank_that_a_daemon_started_is_ours(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, start_new_session=True)
    sampler = GaugeSampler(tmp_path, [])
    sampler.sample_once()
    (tmp_path / layout.RANKS_DIR / f"{platform.node()}-{child.pid}").mkdir(parents=True)
    time.sleep(0.1)
    line = sampler.sample_once()
    child.communicate(b"\n")
    assert line["own_processes"] == 1


def test_the_cost_of_a_sample_is_small(tmp_path):
    """Aim: 5 ms of CPU. A shared CI machine gets four times that."""
    sampler = GaugeSampler(tmp_path, [os.getpid()])
    sampler.sample_once()
    costs = []
    for _ in range(15):
        time.sleep(0.06)
        began = time.thread_time()
        sampler.sample_once()
        costs.append(time.thread_time() - began)
    assert sorted(costs)[len(costs) // 2] < 0.020
