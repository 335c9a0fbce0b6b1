from __future__ import annotations

import os
import platform

import pytest
from tests.hardware.trees import own_group, plant

from paceline.hardware.host import available_bytes, cpu_flags, this_host
from paceline.hardware.operating_system import LocalFiles

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


# ---------------------------------------------------------------------------------------------------------- free memory


FREE_MEMINFO = {"/proc/meminfo": "MemTotal: 8000000 kB\nMemFree: 100 kB\nMemAvailable: 4000000 kB\n"}
V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"


def test_without_a_group_it_is_what_the_host_has(tmp_path):
    assert available_bytes(plant(tmp_path, FREE_MEMINFO)) == 4_000_000 * 1024


def test_a_group_leaves_its_limit_less_what_it_uses_and_cannot_drop(tmp_path):
    group = {
        f"{V2}/job/memory.max": "1000000000\n",
        f"{V2}/job/memory.current": "700000000\n",
        f"{V2}/job/memory.stat": "anon 500000000\ninactive_file 200000000\n",
    }
    assert available_bytes(plant(tmp_path, FREE_MEMINFO | own_group("/job", 2) | group)) == 500_000_000


def test_groups_of_the_first_version(tmp_path):
    group = {f"{V1}/job/memory.limit_in_bytes": "1000000000\n", f"{V1}/job/memory.usage_in_bytes": "900000000\n"}
    assert available_bytes(plant(tmp_path, FREE_MEMINFO | own_group("/job", 1) | group)) == 100_000_000


def test_a_group_over_its_limit_leaves_nothing_and_one_without_figures_says_nothing(tmp_path):
    tree = own_group("/job", 2) | {f"{V2}/job/memory.max": "1000\n", f"{V2}/job/memory.current": "2000\n"}
    assert available_bytes(plant(tmp_path / "a", FREE_MEMINFO | tree)) == 0
    del tree[f"{V2}/job/memory.current"]
    assert available_bytes(plant(tmp_path / "b", FREE_MEMINFO | tree)) == 4_000_000 * 1024


def test_where_nobody_tells(tmp_path):
    assert available_bytes(plant(tmp_path, {})) is None


def test_this_machine_has_some():
    assert 0 < (available_bytes(LocalFiles()) or 0) < 1 << 50
