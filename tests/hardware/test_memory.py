"""What of the memory may be used: by the host, and by the groups we are in."""

from __future__ import annotations

from tests.hardware.trees import own_group, plant

from paceline.hardware.files import LocalFiles
from paceline.hardware.memory import available_bytes

MEMINFO = {"/proc/meminfo": "MemTotal: 8000000 kB\nMemFree: 100 kB\nMemAvailable: 4000000 kB\n"}
V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"


def test_without_a_group_it_is_what_the_host_has(tmp_path):
    assert available_bytes(plant(tmp_path, MEMINFO)) == 4_000_000 * 1024


def test_a_group_leaves_its_limit_less_what_it_uses_and_cannot_drop(tmp_path):
    group = {
        f"{V2}/job/memory.max": "1000000000\n",
        f"{V2}/job/memory.current": "700000000\n",
        f"{V2}/job/memory.stat": "anon 500000000\ninactive_file 200000000\n",
    }
    assert available_bytes(plant(tmp_path, MEMINFO | own_group("/job", 2) | group)) == 500_000_000


def test_groups_of_the_first_version(tmp_path):
    group = {f"{V1}/job/memory.limit_in_bytes": "1000000000\n", f"{V1}/job/memory.usage_in_bytes": "900000000\n"}
    assert available_bytes(plant(tmp_path, MEMINFO | own_group("/job", 1) | group)) == 100_000_000


def test_a_group_over_its_limit_leaves_nothing_and_one_without_figures_says_nothing(tmp_path):
    tree = own_group("/job", 2) | {f"{V2}/job/memory.max": "1000\n", f"{V2}/job/memory.current": "2000\n"}
    assert available_bytes(plant(tmp_path / "a", MEMINFO | tree)) == 0
    del tree[f"{V2}/job/memory.current"]
    assert available_bytes(plant(tmp_path / "b", MEMINFO | tree)) == 4_000_000 * 1024


def test_where_nobody_tells(tmp_path):
    assert available_bytes(plant(tmp_path, {})) is None


def test_this_machine_has_some():
    assert 0 < (available_bytes(LocalFiles()) or 0) < 1 << 50
