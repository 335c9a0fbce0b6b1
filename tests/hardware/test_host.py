from __future__ import annotations

import os
import platform

import pytest
from tests.hardware.trees import own_group, plant

from paceline.hardware.host import cpu_flags, this_host

MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1000 kB\n"
TOTAL = 16384000 * 1024


def test_this_machine():
    host = this_host()
    assert host.name == platform.node()
    assert host.kernel == platform.release()
    assert host.cores >= len(host.affinity) == len(os.sched_getaffinity(0))
    assert 0 < host.allowed_cores <= len(host.affinity)
    assert 0 < host.memory_limit_bytes <= host.memory_total_bytes


def test_affinity_bounds_the_allowed_cores(tmp_path):
    files = plant(tmp_path, {"/proc/meminfo": MEMINFO, "/sys/devices/system/cpu/online": "0-63\n"}, cores=8)
    host = this_host(files)
    assert (host.cores, host.allowed_cores, host.cpu_quota_cores) == (64, 8.0, None)


@pytest.mark.parametrize(("quota", "allowed"), [("250000 100000", 2.5), ("1600000 100000", 4.0)])
def test_the_quota_bounds_the_allowed_cores(tmp_path, quota, allowed):
    files = plant(tmp_path, own_group("/", 2) | {"/sys/fs/cgroup/cpu.max": quota})
    assert this_host(files).allowed_cores == allowed


@pytest.mark.parametrize(("limit", "expected"), [("1073741824", 2**30), ("99999999999999", TOTAL), ("max", TOTAL)])
def test_the_memory_limit(tmp_path, limit, expected):
    files = plant(tmp_path, own_group("/", 2) | {"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": limit})
    host = this_host(files)
    assert (host.memory_limit_bytes, host.memory_total_bytes) == (expected, TOTAL)


def test_an_arm_host_without_a_model_says_so(tmp_path):
    host = this_host(plant(tmp_path, {"/proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50\n"}))
    assert host.cpu_model is None
    assert host.unavailable["cpu_model"] == "/proc/cpuinfo does not name the CPU model"
    assert host.memory_limit_bytes is None
    assert "memory_limit_bytes" in host.unavailable


def test_cores_online_with_gaps(tmp_path):
    assert this_host(plant(tmp_path, {"/sys/devices/system/cpu/online": "0-3,8,10-11\n"})).cores == 7


@pytest.mark.parametrize("line", ["flags\t\t: fpu avx512_bf16 fma", "Features\t: fp asimd bf16"])
def test_instruction_sets_are_read_as_the_kernel_names_them(tmp_path, line):
    files = plant(tmp_path, {"/proc/cpuinfo": f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n"})
    assert cpu_flags(files) == frozenset(line.partition(": ")[2].split())


def test_no_instruction_sets_are_known_without_a_list_of_them(tmp_path):
    assert cpu_flags(plant(tmp_path, {"/proc/cpuinfo": "processor\t: 0\n"})) == frozenset()
