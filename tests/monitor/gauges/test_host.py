from __future__ import annotations

import time

import pytest
from tests.hardware.trees import UNLIMITED_V1, own_group, plant

from paceline.hardware.host import this_host
from paceline.hardware.operating_system import LocalFiles
from paceline.monitor.gauges.host import HostReader, missing, readings
from paceline.monitor.gauges.tree import ProcessTree, TreeReading

GROUP = "/sys/fs/cgroup/job"


def stat(*busy_and_idle, running=2):
    lines = [f"cpu{n} {busy} 0 0 {idle} 0 0 0 0 0 0\n" for n, (busy, idle) in enumerate(busy_and_idle)]
    return "cpu  0 0 0 0 0 0 0 0 0 0\n" + "".join(lines) + f"intr 5\nprocs_running {running}\n"


def diskstats(reads, sectors, busy_ms):
    whole = f"8 0 sda {reads} 0 {sectors} 9 0 0 0 0 0 {busy_ms} 0 0 0 0 0\n"
    return whole + whole.replace("sda", "sda1") + whole.replace("sda", "dm-0")


def net(received):
    rest = "0 0 0 0 0 0 0 10 0\n"
    return f"head\nhead\n lo: 7000000 {rest} eth0: {received} {rest} veth1: 555 {rest}"


def pressure(total_us, full=True):
    some = f"some avg10=25.00 avg60=0 avg300=0 total={total_us}\n"
    return some + ("full avg10=1.00 avg60=0 avg300=0 total=0\n" if full else "")


BASE = {
    **own_group("/job", 2),
    f"{GROUP}/cpu.max": "100000 100000\n",
    f"{GROUP}/cpu.stat": "usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 3000000\n",
    f"{GROUP}/memory.max": "1000000000\n",
    f"{GROUP}/memory.current": "700000000\n",
    f"{GROUP}/memory.stat": "anon 5\ninactive_file 300000000\n",
    f"{GROUP}/memory.events": "low 0\nmax 4\noom 1\noom_kill 5\n",
    "/proc/stat": stat((100, 100), (100, 100), (0, 500)),
    "/proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable: 2000000 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n",
    "/proc/vmstat": "pswpin 10\npswpout 20\noom_kill 99\n",
    "/proc/diskstats": diskstats(10, 2000, 100),
    "/proc/net/dev": net(1000),
    "/proc/pressure/cpu": pressure(1_000_000),
    "/proc/pressure/io": pressure(0),
    "/proc/pressure/memory": pressure(0),
    "/sys/block/sda/size": "1",
    "/sys/block/dm-0/size": "1",
    "/sys/class/net/lo/mtu": "1",
    "/sys/class/net/veth1/mtu": "1",
    "/sys/class/net/eth0/device/vendor": "1",
    "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1000\n",
    "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "500\n",
}
LATER = {
    f"{GROUP}/cpu.stat": "usage_usec 5\nnr_periods 120\nnr_throttled 15\nthrottled_usec 4000000\n",
    f"{GROUP}/memory.events": "low 0\nmax 4\noom 3\noom_kill 7\n",
    "/proc/stat": stat((175, 125), (200, 100), (0, 600), running=9),
    "/proc/vmstat": "pswpin 30\npswpout 20\noom_kill 99\n",
    "/proc/diskstats": diskstats(50, 6000, 1100),
    "/proc/net/dev": net(5000),
    "/proc/pressure/cpu": pressure(1_500_000),
    "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "3000\n",
}


def tree(cpu_s=0.0):
    return TreeReading(cpu_s=cpu_s, rss_bytes=4096, pids=frozenset({7, 8}), threads=5)


def both(tmp_path, base=BASE, later=LATER, own_cpu_s=1.5, seconds=2, cores=2):
    files = plant(tmp_path, base, cores)
    reader = HostReader(files)
    before = reader.snapshot(0, tree())
    plant(tmp_path, later)
    after = reader.snapshot(seconds * 1_000_000_000, tree(own_cpu_s))
    return readings(before, after, this_host(files)), missing(after, this_host(files), reader.oom_source)


def test_a_whole_reading(tmp_path):
    found, absent = both(tmp_path)
    assert absent == {}
    assert found == {
        "interval_s": 2.0,
        "core_busy_percent": [75, 100, 0],  # of all cores
        "cpu_busy_share": 0.875,  # of the two that we may use
        "cpu_iowait_share": 0.0,
        "cpu_steal_share": 0.0,
        "own_cpu_cores": 0.75,
        "other_cpu_cores": 1.0,
        "own_processes": 2,
        "own_threads": 5,
        "own_rss_bytes": 4096,
        "runnable_threads": 9,
        "memory_total_bytes": 1_000_000_000,
        "memory_available_bytes": 600_000_000,  # limit - (used - cache that goes first)
        "cgroup_memory_bytes": 400_000_000,
        "swap_used_bytes": 40 * 1024,
        "swap_in_pages_per_s": 10.0,
        "swap_out_pages_per_s": 0.0,
        "disk_read_bytes_per_s": 4000 * 512 / 2,  # the disk alone: no partition, no mapper
        "disk_write_bytes_per_s": 0.0,
        "disk_reads_per_s": 20.0,
        "disk_writes_per_s": 0.0,
        "disk_busy_share": 0.5,
        "network_rx_bytes_per_s": 2000.0,  # the card alone: no lo, no veth
        "network_tx_bytes_per_s": 0.0,
        "rdma_rx_bytes_per_s": 4000.0,
        "rdma_tx_bytes_per_s": 0.0,
        "pressure_cpu_some_share": 0.25,
        "pressure_cpu_some_avg10_share": 0.25,
        "pressure_cpu_full_share": 0.0,
        "pressure_cpu_full_avg10_share": 0.01,
        "pressure_io_some_share": 0.0,
        "pressure_io_some_avg10_share": 0.25,
        "pressure_io_full_share": 0.0,
        "pressure_io_full_avg10_share": 0.01,
        "pressure_memory_some_share": 0.0,
        "pressure_memory_some_avg10_share": 0.25,
        "pressure_memory_full_share": 0.0,
        "pressure_memory_full_avg10_share": 0.01,
        "cgroup_throttled_share": 0.25,
        "cgroup_throttled_s_per_s": 0.5,
        "oom_kills": 2,
    }


def test_nothing_there_is_nothing_known(tmp_path):
    """On a kernel that tells nothing all is None but what the process tree says, and each has its reason."""
    found, absent = both(tmp_path, {}, {})
    known = {key for key, value in found.items() if value is not None}
    assert known == {"interval_s", "own_cpu_cores", "own_processes", "own_threads", "own_rss_bytes"}
    assert absent.keys() == found.keys() - known
    assert all(absent.values())
    assert absent["pressure_io_some_share"].startswith("no /proc/pressure")
    assert absent["cgroup_throttled_share"] == "no CPU quota is set"
    assert absent["oom_kills"] == "/proc/vmstat does not count them"


def test_v1_control_groups(tmp_path):
    memory, cpu = "/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/cpu,cpuacct/job"
    base = {
        **{k: v for k, v in BASE.items() if not k.startswith(("/sys/fs", "/proc/self"))},
        **own_group("/job", 1),
        f"{cpu}/cpu.cfs_quota_us": "200000\n",
        f"{cpu}/cpu.cfs_period_us": "100000\n",
        f"{cpu}/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        f"{memory}/memory.limit_in_bytes": "1000000000\n",
        f"{memory}/memory.usage_in_bytes": "900000000\n",
        f"{memory}/memory.stat": "inactive_file 1\ntotal_inactive_file 100000000\n",
        f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    }
    later = {
        f"{cpu}/cpu.stat": "nr_periods 20\nnr_throttled 20\nthrottled_time 4000000000\n",
        f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    }
    found, _ = both(tmp_path, base, later)
    assert (found["cgroup_throttled_share"], found["cgroup_throttled_s_per_s"]) == (1.0, 2.0)
    assert (found["cgroup_memory_bytes"], found["memory_available_bytes"]) == (800_000_000, 200_000_000)
    assert found["oom_kills"] == 1


def test_without_a_limit_the_host_counts(tmp_path):
    base = BASE | {f"{GROUP}/memory.max": "max\n", f"{GROUP}/cpu.max": "max 100000\n", f"{GROUP}/memory.events": "x\n"}
    later = {"/proc/vmstat": "pswpin 10\npswpout 20\noom_kill 100\n"}
    found, absent = both(tmp_path, base, later)
    assert found["memory_total_bytes"] == 4_000_000 * 1024
    assert found["memory_available_bytes"] == 2_000_000 * 1024
    assert found["oom_kills"] == 1
    assert absent["cgroup_memory_bytes"] == "no memory limit is set"
    assert absent["cgroup_throttled_share"] == "no CPU quota is set"


def test_no_v1_limit_is_no_limit(tmp_path):
    base = BASE | own_group("/job", 1) | {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes": UNLIMITED_V1}
    found, _ = both(tmp_path, base, {})
    assert found["cgroup_memory_bytes"] is None


def test_a_quota_under_which_nothing_ran(tmp_path):
    found, _ = both(tmp_path, later={})
    assert found["cgroup_throttled_share"] == 0.0


def test_a_kernel_without_the_full_line_of_the_cpu(tmp_path):
    found, absent = both(tmp_path, BASE | {"/proc/pressure/cpu": pressure(5, full=False)}, {})
    assert found["pressure_cpu_some_share"] == 0.0
    assert found["pressure_cpu_full_share"] is None
    assert absent["pressure_cpu_full_share"] == "this kernel has no /proc/pressure/cpu, or no full line in it"


def test_in_a_container_every_interface_but_lo_counts(tmp_path):
    base = {k: v for k, v in BASE.items() if "eth0/device" not in k}
    found, _ = both(tmp_path, base | {"/sys/class/net/eth0/mtu": "1"})
    assert found["network_rx_bytes_per_s"] == 2000.0


def test_counters_that_fall_are_no_negative_rates(tmp_path):
    found, _ = both(tmp_path, BASE, BASE | {"/proc/net/dev": net(3), "/proc/diskstats": diskstats(0, 0, 0)})
    assert found["network_rx_bytes_per_s"] == 0.0
    assert found["disk_read_bytes_per_s"] == 0.0


def test_a_core_that_went_offline(tmp_path):
    found, _ = both(tmp_path, later=LATER | {"/proc/stat": "cpu 0\ncpu1 200 0 0 100 0 0 0 0 0 0\nintr\n"})
    assert found["core_busy_percent"] == [None, 100]
    assert found["cpu_busy_share"] == 1.0


def test_the_sum_of_our_work_and_others_is_the_hosts(tmp_path):
    found, _ = both(tmp_path, own_cpu_s=99.0)
    assert found["other_cpu_cores"] == 0.0  # ticks are coarse: never below nothing


@pytest.mark.parametrize("attempt", range(3))
def test_this_machine(attempt):
    files, host = LocalFiles(), this_host()
    reader, processes = HostReader(files), ProcessTree(files, [1])
    before = reader.snapshot(time.monotonic_ns(), processes.walk())
    time.sleep(0.3)
    found = readings(before, reader.snapshot(time.monotonic_ns(), processes.walk()), host)
    assert 0 <= found["cpu_busy_share"] <= 1
    assert len(found["core_busy_percent"]) >= len(host.affinity)
    assert 0 < found["memory_available_bytes"] <= found["memory_total_bytes"]
    assert found["own_processes"] >= 1
    assert found["oom_kills"] in (0, None)
