"""What is changed in how ranks exchange gradients: does it take hold, and what does training make of it?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.patch import patched

# Steps of three micro-steps, clipped; the last step of an epoch has one only. A second model exchanges nothing.
TRAINS = """
import os
import time
import torch
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=world)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 4))
model = DistributedDataParallel(net)
alone = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
synced = []
net[0].register_forward_hook(lambda *_: synced.append(int(model.require_backward_grad_sync)))
torch.manual_seed(rank)
for epoch in range(3):
    for micro_steps in (3, 3, 3, 3, 1):
        for _ in range(micro_steps):
            loss = model(torch.randn(8, 16)).square().mean() / 3
            loss.backward()
            alone(torch.ones(2, 4)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item(), norm.item())
print(sum(p.double().sum().item() for p in model.parameters()))
print("exchanges", "".join(map(str, synced)))
torch.distributed.destroy_process_group()
time.sleep(0.2)  # a thread of Gloo that lets go of the last exchange after the interpreter's end aborts: torch 2.13
"""
BARE = {}  # what it prints without a recipe


def trained(ran):
    """The numbers that each rank printed, and which forwards it exchanged gradients after."""
    assert [one.code for one in ran] == [0] * len(ran), ran[0].err
    lines = [one.out.splitlines() for one in ran]
    return [[float(word) for line in out[:-1] for word in line.split()] for out in lines], lines[0][-1].split()[1]


@pytest.fixture
def bare(ran_on_ranks):
    if not BARE:
        BARE["trained"] = trained(ran_on_ranks(TRAINS))
    return BARE["trained"]


def test_buckets_and_views_change_nothing(ran_on_ranks, bare):
    """bf16 is what gloo cannot send: it is told, and gradients go as they are."""
    recipe = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True, "static_graph": True, "comm_hook": "bf16"}
    changed = ran_on_ranks(TRAINS, {"ddp": recipe})
    assert trained(changed) == bare
    assert set(changed[0].held) == {"ddp.bucket_cap_mb", "ddp.gradient_as_bucket_view", "ddp.static_graph"}
    assert "NCCL" in changed[0].refused["ddp.comm_hook"]


def test_only_the_last_backward_of_a_step_exchanges_and_in_half_precision(ran_on_ranks, bare):
    """The first two steps teach; the rest of an epoch is exchanged before it is clipped, on both ranks alike."""
    changed = ran_on_ranks(TRAINS, {"ddp": {"no_sync": True, "comm_hook": "fp16"}})
    (first, second), exchanges = trained(changed)
    assert exchanges == "111111" + "001" * 2 + "0" + 2 * ("001" * 4 + "0")
    assert set(bare[1]) == {"1"}
    assert (first[1::2], first[-1]) == (second[1::2], second[-1])  # norms and parameters
    assert first == pytest.approx(bare[0][0], rel=2e-3)
    assert first != bare[0][0]
    assert changed[0].held["ddp.no_sync"] == "of the 3 backward passes of a step, only the last one exchanges gradients"
    assert changed[0].held["ddp.comm_hook"] == (
        "DDP compresses the gradients of Sequential with the communication hook fp16"
    )


OWN_CHOICE = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
own = DistributedDataParallel(torch.nn.Linear(4, 4))
own.register_comm_hook(None, allreduce_hook)
own(torch.ones(2, 4)).sum().backward()
optimizer"""


def test_what_the_program_has_chosen_stays(ran_on_ranks):
    """PowerSGD is refused: with more than one bucket gloo fails or hangs in torch's own hook."""
    source = TRAINS.replace("(net)", "(net, bucket_cap_mb=2, static_graph=False)").replace("\noptimizer", OWN_CHOICE, 1)
    recipe = {"bucket_cap_mb": 100, "static_graph": True, "comm_hook": "powersgd", "no_sync": True}
    (changed,) = ran_on_ranks(source, {"ddp": recipe}, world=1)
    assert set(trained([changed])[1]) == {"1"}
    assert changed.refused["ddp.bucket_cap_mb"] == "the program passes bucket_cap_mb=2 itself"
    assert changed.refused["ddp.no_sync"] == "several models exchange gradients"
    assert "needs NCCL" in changed.refused["ddp.comm_hook"]
    assert "ddp.static_graph" in changed.held


def test_ddp_does_not_search_for_unused_parameters(ran_on_ranks, bare):
    recipe = {"ddp": {"find_unused_parameters": False}}
    source = TRAINS.replace("(net)", "(net, find_unused_parameters=True)").replace(
        'print("exchanges"', 'print(int(model.find_unused_parameters))\nprint("exchanges"'
    )
    changed = ran_on_ranks(source, recipe)
    numbers, exchanges = trained(changed)
    assert ([one[:-1] for one in numbers], exchanges) == bare
    assert [one[-1] for one in numbers] == [0.0, 0.0]
    assert set(changed[0].held) == {"ddp.find_unused_parameters"}
    (other,) = ran_on_ranks(TRAINS, recipe, world=1)
    assert "does not pass" in other.refused["ddp.find_unused_parameters"]


def test_a_record_tells_whether_ddp_searches_and_finds_unused_parameters(ran_on_ranks, tmp_path):
    """The second model has a layer that it does not use."""
    other = """
parts = torch.nn.ModuleList([torch.nn.Linear(16, 512), torch.nn.Linear(512, 512), torch.nn.Linear(9, 9)])
parts.forward = lambda x: parts[1](parts[0](x))
other = DistributedDataParallel(parts, find_unused_parameters=True)
for _ in range(30):
    other(torch.randn(8, 16)).sum().backward()
optimizer"""
    source = TRAINS.replace("(net)", "(net, find_unused_parameters=True)").replace("\noptimizer", other, 1)
    trained(ran_on_ranks(source, {}))
    summaries = list((tmp_path / "run" / "ranks").rglob("summary*.json"))
    assert len(summaries) == 2
    for path in summaries:
        timed = json.loads(path.read_text())["exchange_times"]
        assert {one["searches_unused"] for one in timed} == {True}
        assert {one["unused_count"] > 0 for one in timed} == {True, False}


@pytest.mark.parametrize(
    "before, after",
    [
        ("DDP(m, find_unused_parameters=True)", "DDP(m, find_unused_parameters=False)"),
        ("DDP(m)", "DDP(m)"),
        ("DDPStrategy(find_unused_parameters=True)", "DDPStrategy(find_unused_parameters=False)"),
        (
            "TrainingArguments('out', ddp_find_unused_parameters=True)",
            "TrainingArguments('out', ddp_find_unused_parameters=False)",
        ),
    ],
)
def test_the_search_is_turned_off_where_the_source_turns_it_on(before, after):
    head = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\nfrom lightning.pytorch.strategies import "
        "DDPStrategy\nfrom transformers import TrainingArguments\n"
    )
    source = SourceFile(path=Path("train.py"), text=f"{head}{before}\n", is_script=True)
    patch = patched([source], {"ddp": {"find_unused_parameters": False}})
    assert patch.after[0].text == f"{head}{after}\n"
    assert len(patch.stays) == (before == after)
