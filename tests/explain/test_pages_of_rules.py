"""Every finding has its code, its name and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.explain import rules
from paceline.explain.rules import all_rules

# The table of findings in the design, as it was agreed on.
AGREED = """
| DATA001 | loader-serial | data is produced in the training process and waits show |
| DATA002 | loader-cpu-bound | workers burn the cores there are; more workers would not help |
| DATA003 | loader-io-bound | workers are blocked on storage or network |
| DATA004 | loader-underprovisioned | workers cannot keep up, and there is room for more |
| DATA005 | loader-transport-bound | handing batches over (collate, pickling, shared memory, pin thread) is the limit |
| DATA006 | loader-restart | workers are started anew every epoch, and it shows |
| DATA007 | small-reads | many small or random reads; a sharded format would stream |
| DATA008 | loader-jitter | a few samples or batches are far slower than the rest |
| XFER001 | transfer-blocking | copies to the device from pageable memory, or not overlapped |
| COMP001 | compute-bound | the device works nearly all the time: healthy (info), with MFU where known |
| COMP002 | launch-bound | many tiny operations; the host cannot issue them fast enough |
| COMP003 | sync-stall | the host waits for the device inside the step |
| COMP004 | precision-unused | fp32 matrix work on hardware with faster formats |
| COMP005 | shapes-misaligned | dimensions that miss the tensor cores |
| COMP006 | bandwidth-bound | element-wise work dominates; fusable |
| COMP007 | device-underfilled | small batch, low occupancy, memory to spare |
| COMP008 | optimizer-unfused | the optimizer step takes a visible share and runs per tensor |
| COMP009 | device-idle | in a capture, the GPU is idle for a reason that the capture does not show (decision 0037) |
| MEM001 | memory-near-limit | little headroom, allocator retries |
| MEM002 | memory-growing | device or host memory grows step by step |
| MEM003 | memory-fragmented | reserved far above allocated |
| COMM001 | communication-exposed | collectives not hidden behind compute |
| COMM002 | rank-straggling | one rank makes the others wait; names the rank and its own cause |
| COMM003 | link-degraded | measured bandwidth far below what the link should give |
| COMM004 | sync-each-microstep | gradients reduced on every micro-step of an accumulation |
| RUN001 | checkpoint-stall | saving blocks training |
| RUN002 | evaluation-heavy | evaluation takes a large share |
| RUN003 | startup-slow | long before the first step |
| RUN004 | step-jitter | step times scatter, and not for the loader's sake |
| RUN005 | throughput-drift | steps get slower as the run goes on |
| RUN006 | host-code-heavy | the user's own Python between phases takes a large share; names the function |
| RUN007 | debug-mode-on | a debug setting that slows training down is on (decision 0034) |
| HOST001 | cpu-oversubscribed | more compute threads than cores |
| HOST002 | memory-swapping | the host pages |
| HOST003 | cpu-contended | other processes or a cgroup quota take the cores |
| HOST004 | thread-blocked | the training thread waits inside of the phases that compute |
| HOST005 | page-faults | the program takes memory from the operating system anew in each step (28.9) |
| GPU001 | thermal-throttling | clocks cut for heat |
| GPU002 | power-capped | clocks cut for power |
| GPU003 | pcie-degraded | fewer lanes or an older generation than the card supports |
| GPU004 | gpu-errors | ECC or Xid errors |
| GPU005 | gpu-shared | another process uses the device |
| CONV001 | loss-not-finite | first step at which the loss is NaN or infinite |
| CONV002 | loss-diverging | the loss rises far above where it began |
| CONV003 | loss-plateau | the loss has stopped improving |
"""

NAMES = {cells[1]: cells[2] for line in AGREED.strip().splitlines() if (cells := [c.strip() for c in line.split("|")])}
HEADINGS = ["What it means", "How it is detected", "What helps"]


def test_the_table_is_whole():
    assert len(NAMES) == 45


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_rule_has_the_name_that_was_agreed_on(rule):
    assert NAMES[rule.code] == rule.name


def test_no_code_is_used_twice():
    codes = [rule.code for rule in all_rules()]
    assert len(codes) == len(set(codes))


def test_every_file_holds_a_rule_of_its_name():
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {f"{rule.code.lower()}_{rule.name.replace('-', '_')}" for rule in all_rules()}


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_page_says_what_it_means_how_it_is_decided_and_what_helps(rule):
    headings = re.findall(r"^## (.+)$", rule.page, flags=re.MULTILINE)
    wanted = HEADINGS[:2] if rule.code == "COMP001" else HEADINGS  # of what is healthy nothing needs to be mended
    assert headings[: len(wanted)] == wanted
    sections = re.split(r"^## .+$", rule.page, flags=re.MULTILINE)[1:]
    assert all(len(section.split()) >= 8 for section in sections)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_page_names_the_numbers_that_decide(rule):
    decided = rule.page.partition("## How it is detected")[2].partition("##")[0]
    by_a_number = re.search(
        r"\d|\b(one|two|three|four|five|half|third|quarter|fifth|sixth|tenth|twice|first|longer|exceed)", decided
    )
    assert by_a_number, decided
