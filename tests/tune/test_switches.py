"""Settings for CUDA devices in a program on the CPU, and those that need no device: what is told, what is computed?"""

from __future__ import annotations

import json

import pytest

from paceline.core.recipe import SETTINGS
from paceline.inprocess.settings import allocator
from paceline.tune.trials.applied_settings import is_in_force, refused_settings, unapplied_settings

TRAINS = """
import os
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 4))
loader = torch.utils.data.DataLoader(torch.randn(24, 3, 8, 8), batch_size=8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print("matmul", torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
print("foreach", optimizer.defaults["foreach"])
"""
CUDA_ONLY = {
    "precision": {"tf32": True},
    "compute": {"cudnn_benchmark": True, "sdpa_backend": "efficient"},
    "loader": {"device_prefetch": True, "pin_memory": True},
    "allocator": {"expandable_segments": True},
}


def test_what_a_cpu_has_not_is_refused_and_changes_nothing(ran, monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    source = TRAINS + "print('allocator', os.environ.get('PYTORCH_ALLOC_CONF'))\n"
    bare = ran(source)
    changed = ran(source, {**CUDA_ONLY, "optimizer": {"foreach": True, "state_8bit": True}})
    assert changed.code == 0, changed.err
    assert changed.out == bare.out.replace("foreach None", "foreach True").replace(
        "allocator None", "allocator expandable_segments:True"
    )
    wanted = {f"{table}.{key}" for table, settings in CUDA_ONLY.items() for key in settings}
    assert wanted <= set(SETTINGS)
    assert set(changed.refused) == wanted | {"optimizer.state_8bit"}
    assert all("no CUDA device" in changed.refused[key] for key in wanted - {"loader.pin_memory"})
    assert "pip install bitsandbytes" in changed.refused["optimizer.state_8bit"]
    assert "optimizer.foreach" in changed.held


@pytest.mark.parametrize(
    "present, added",
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"},
        ),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, {}),
    ],
    ids=["nothing", "another option", "chosen"],
)
def test_what_the_environment_says_of_the_allocator_stays(present, added):
    assert allocator.environment({"expandable_segments": True}, present) == added
    assert allocator.environment({}, present) == {}


FREES = """
import resource, torch
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(40):
    if step == 30:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    large = torch.ones(16 << 20) * weight  # 64 MiB, which is above all thresholds of the C library
    large.sum().backward()
    optimizer.step()
    del large
print("few" if resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 150_000 else "many")
"""


def test_freed_memory_is_kept_by_the_c_library(ran, monkeypatch):
    """Ten steps with three tensors of 64 MiB have 491,520 page faults, or fewer than 150,000 if memory is kept."""
    for name in allocator.RETAINS:
        monkeypatch.delenv(name, raising=False)
    assert ran(FREES).out == "many\n"
    kept = ran(FREES, {"allocator": {"retain_host_memory": True}})
    assert (kept.out, set(kept.held), kept.refused) == ("few\n", {"allocator.retain_host_memory"}, {})
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    refused = ran(FREES, {"allocator": {"retain_host_memory": True}})
    assert refused.out == "many\n"
    assert "other settings of malloc" in refused.refused["allocator.retain_host_memory"]


@pytest.mark.parametrize("present", [{"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=3"}])
def test_what_the_environment_says_of_malloc_stays(present):
    assert allocator.environment({"retain_host_memory": True}, present) == {}
    assert allocator.environment({"retain_host_memory": True}, {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}) == dict(
        allocator.RETAINS
    )


# The backend of torch.compile is one that compiles nothing: what matters is how often it is asked.
SHAPES = """
import torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
compile = torch.nn.Module.compile
torch.nn.Module.compile = lambda self, **kwargs: compile(self, backend="eager", dynamic=False, **kwargs)
model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Tanh())
keys = list(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for length in range(2, 14):
    model(torch.ones(length, 8)).sum().backward()
    optimizer.step()
print(counters["frames"]["total"], keys == list(model.state_dict()))
"""


def test_compiling_for_ever_other_shapes_comes_to_an_end_and_is_told(ran, tmp_path):
    """A Sequential, too: torch skips a forward that is its own."""
    changed = ran(SHAPES, {"compute": {"compile": "default"}})
    assert (changed.code, changed.out.strip(), changed.err) == (0, "8 True", "")
    assert changed.held["compute.compile"] == "Sequential is compiled (default)"
    assert (
        "so the input shapes keep changing"
        in unapplied_settings({"compute": {"compile": "default"}}, tmp_path / "run")["compute.compile"]
    )


def test_a_setting_that_was_given_up_is_missing_although_it_took_hold(tmp_path):
    (tmp_path / "held").mkdir()
    told = [
        {"key": "ddp.no_sync", "held": True, "what": "of 3 backwards one exchanges"},
        {"key": "loader.num_workers", "held": True, "what": "2 workers"},
        {"key": "loader.num_workers", "held": False, "what": "the second dataset is a stream"},
        {"key": "ddp.no_sync", "held": False, "given_up": True, "what": "the program does it itself"},
    ]
    (tmp_path / "held" / "1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in told))
    recipe = {"ddp": {"no_sync": True}, "loader": {"num_workers": 2}}
    assert unapplied_settings(recipe, tmp_path) == {"ddp.no_sync": "the program does it itself"}


@pytest.mark.parametrize(
    "recipe, entry, works",
    [
        ("[loader]\nnum_workers = 2\n", '{"key": "loader.num_workers", "held": true, "what": "2 workers"}', True),
        ("[loader]\nnum_workers = 2\n", '{"key": "loader.num_workers", "held": false, "what": "a stream"}', False),
        ("[loader]\nnum_workers = 2\n", "", False),
        ('layout = "dp=2"\n', "", True),  # no settings
        (None, "", True),  # it is not there any more
    ],
)
def test_whether_a_recipe_had_an_effect_in_a_run(tmp_path, recipe, entry, works):
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "7.jsonl").write_text(f"{entry}\n" if entry else "")
    if recipe is not None:
        (tmp_path / "recipe.toml").write_text(recipe)
    assert is_in_force(tmp_path / "recipe.toml", tmp_path) is works


def test_a_cache_that_no_process_has_recorded_is_told_with_what_it_needs(tmp_path):
    (tmp_path / "held").mkdir()
    assert (
        "set loader.num_workers = 0 as well"
        in unapplied_settings({"loader": {"cache": True}}, tmp_path)["loader.cache"]
    )
    assert refused_settings({"loader": {"cache": True}}, tmp_path) == {}
