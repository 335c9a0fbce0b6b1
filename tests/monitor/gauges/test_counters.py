from __future__ import annotations

from pathlib import Path

import pytest

from paceline.monitor.gauges import counters

STAT = """\
cpu  300 10 50 1000 20 1 4 15 0 0
cpu0 200 10 30 500 10 1 2 7 0 0
cpu2 100 0 20 500 10 0 2 8 0 0
intr 123 0 0
procs_running 3
"""


def test_cores_by_number():
    found = counters.cores(STAT)
    assert list(found) == [0, 2]  # core 1 is offline
    assert (found[0].busy, found[0].iowait, found[0].steal, found[0].total) == (243, 10, 7, 760)


def test_this_machines_cores():
    found = counters.cores(Path("/proc/stat").read_text())
    assert found
    assert all(core.total > 0 for core in found.values())


def test_keyed_numbers_and_kilobytes():
    text = "MemTotal:  16 kB\nHugePages_Total:  2\nnr_throttled 5\nname with words\n\noom_kill 0\n"
    assert counters.keyed(text) == {"MemTotal": 16384, "HugePages_Total": 2, "nr_throttled": 5, "oom_kill": 0}
    assert counters.keyed(None) == {}


def test_whole_disks_only():
    names = ["sda", "nvme0n1", "dm-0", "md127", "loop3", "zram0", "ram0", "sr0", "vda"]
    assert counters.whole_disks(names) == {"sda", "nvme0n1", "vda"}


def test_disks_without_their_partitions():
    text = (
        "   8  0 sda 100 5 800 40 50 6 1600 30 0 250 70 0 0 0 0\n"
        "   8  1 sda1 90 5 700 40 40 6 1500 30 0 200 70 0 0 0 0\n"
        "   8  0 short 1 2\n"
    )
    (found,) = counters.disks(text, {"sda"}).values()
    assert (found.reads, found.read_bytes, found.writes, found.written_bytes) == (100, 409600, 50, 819200)
    assert found.busy_ms == 250


NET_DEV = """\
Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs
    lo: 9999 5 0 0 0 0 0 0 9999 5 0 0 0 0 0 0
  eth0: 1000 4 0 0 0 0 0 0 200 2 0 0 0 0 0 0
ib0:50 4 0 0 0 0 0 0 7 2 0 0 0 0 0 0
"""


def test_network_of_the_interfaces_named():
    both = counters.network(NET_DEV, {"eth0", "ib0"})
    assert (both.received_bytes, both.sent_bytes) == (1050, 207)
    assert counters.network(NET_DEV, {"wlan0"}) is None


def test_pressure():
    text = "some avg10=16.52 avg60=8.84 avg300=2.69 total=14609596\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    found = counters.pressures(text)
    assert found["some"].avg10_share == pytest.approx(0.1652)
    assert (found["some"].total_us, found["full"].total_us) == (14609596, 7)
    assert counters.pressures(None) == {}
