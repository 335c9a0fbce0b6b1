from __future__ import annotations

import pytest
from tests.hardware.trees import UNLIMITED_V1, own_group, plant

from paceline.hardware.cgroup import cpu_group, memory_group

V2 = "/sys/fs/cgroup"
V1_CPU, V1_MEMORY = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"


def test_v2_quota_is_a_fraction_of_cores(tmp_path):
    files = plant(tmp_path, own_group("/job", 2) | {f"{V2}/job/cpu.max": "150000 100000\n"})
    group = cpu_group(files)
    assert (group.version, group.limit, group.limit_folder) == (2, 1.5, f"{V2}/job")


def test_v2_max_is_no_limit(tmp_path):
    tree = {f"{V2}/job/cpu.max": "max 100000\n", f"{V2}/job/memory.max": "max\n"}
    files = plant(tmp_path, own_group("/job", 2) | tree)
    assert cpu_group(files).limit is None
    assert memory_group(files).limit is None
    assert memory_group(files).folder == f"{V2}/job"


def test_the_tightest_ancestor_binds(tmp_path):
    tree = {
        f"{V2}/slice/job/task/cpu.max": "400000 100000\n",
        f"{V2}/slice/job/cpu.max": "200000 100000\n",
        f"{V2}/slice/cpu.max": "max 100000\n",
        f"{V2}/slice/job/memory.max": "4294967296\n",
        f"{V2}/slice/job/task/memory.max": "max\n",
    }
    files = plant(tmp_path, own_group("/slice/job/task", 2) | tree)
    assert (cpu_group(files).limit, cpu_group(files).limit_folder) == (2.0, f"{V2}/slice/job")
    assert (memory_group(files).limit, memory_group(files).folder) == (2.0**32, f"{V2}/slice/job/task")


def test_v1_quota_and_limit(tmp_path):
    tree = {
        f"{V1_CPU}/job/cpu.cfs_quota_us": "50000\n",
        f"{V1_CPU}/job/cpu.cfs_period_us": "100000\n",
        f"{V1_MEMORY}/job/memory.limit_in_bytes": "1073741824\n",
        f"{V1_MEMORY}/memory.limit_in_bytes": UNLIMITED_V1,
    }
    files = plant(tmp_path, own_group("/job", 1) | tree)
    assert (cpu_group(files).version, cpu_group(files).limit) == (1, 0.5)
    assert memory_group(files).limit == 2.0**30


@pytest.mark.parametrize("quota", ["-1\n", "0\n", "\n"])
def test_v1_without_a_quota(tmp_path, quota):
    tree = {f"{V1_CPU}/job/cpu.cfs_quota_us": quota, f"{V1_CPU}/job/cpu.cfs_period_us": "100000\n"}
    files = plant(tmp_path, own_group("/job", 1) | tree)
    assert cpu_group(files).limit is None
    assert cpu_group(files).folder == f"{V1_CPU}/job"


def test_a_container_that_sees_the_hosts_path(tmp_path):
    """Without a cgroup namespace the path is the host's, and the mount shows only what is below its root."""
    tree = {
        f"{V1_CPU}/cpu.cfs_quota_us": "300000\n",
        f"{V1_CPU}/cpu.cfs_period_us": "100000\n",
        f"{V1_MEMORY}/sub/memory.limit_in_bytes": "2147483648\n",
    }
    found = own_group("/docker/abc", 1, root="/docker/abc")
    found["/proc/self/cgroup"] = "4:memory:/docker/abc/sub\n2:cpu,cpuacct:/docker/abc\n"
    files = plant(tmp_path, found | tree)
    assert (cpu_group(files).limit, cpu_group(files).folder) == (3.0, V1_CPU)
    assert (memory_group(files).limit, memory_group(files).folder) == (2.0**31, f"{V1_MEMORY}/sub")


@pytest.mark.parametrize("path", ["/../../outside", "/another/tree"])
def test_a_path_outside_the_mount_means_its_top(tmp_path, path):
    files = plant(tmp_path, own_group(path, 2, root="/mine") | {f"{V2}/memory.max": "1024\n"})
    assert memory_group(files).limit == 1024


def test_v1_goes_before_an_empty_unified_hierarchy(tmp_path):
    files = plant(tmp_path, own_group("/", 1) | {f"{V1_MEMORY}/memory.limit_in_bytes": "4096\n"})
    assert memory_group(files).version == 1


def test_no_control_groups_at_all(tmp_path):
    group = cpu_group(plant(tmp_path, {}))
    assert (group.version, group.folder, group.limit) == (0, None, None)
