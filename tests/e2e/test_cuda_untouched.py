"""Does a program stay the first that uses CUDA? A program that forks must, for its children cannot use CUDA otherwise.

A fake stands in for `torch.cuda`: torch seems to be built for CUDA, a driver seems to be there, and each call that would
start the CUDA runtime is written down with the place it comes from.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import environment

from paceline.core.recipe import SETTINGS
from paceline.core.remedies import REMEDIES

SRC = Path(__file__).parents[2] / "src"

FAKE = '''
import functools, importlib.abc, importlib.machinery, json, os, sys, traceback

OPTIMIZER = os.path.join("torch", "optim", "optimizer.py")  # its steps ask for an accelerator by themselves

def started(name, answer=None):
    """A stand-in for a function that starts the CUDA runtime."""
    def call(*args, **kwargs):
        if any(frame.filename.endswith(OPTIMIZER) for frame in traceback.extract_stack()[-3:-1]):
            return None
        line = json.dumps({"name": name, "pid": os.getpid(), "stack": traceback.format_stack()[-9:-1]}) + "\\n"
        with open(os.environ["CUDA_CALLS"], "a") as file:
            file.write(line)
        if answer is None:
            raise RuntimeError(f"the fake CUDA has no {name}")
        return answer
    return call

STARTS = """_lazy_init init current_device set_device device get_device_properties get_device_name get_device_capability
    mem_get_info memory_allocated max_memory_allocated memory_reserved memory_stats memory_snapshot synchronize
    reset_peak_memory_stats current_stream default_stream stream set_stream Stream Event get_rng_state get_rng_state_all
    set_rng_state set_rng_state_all empty_cache ipc_collect is_bf16_supported""".split()

def cuda(module):
    for name in STARTS:
        setattr(module, name, started(f"cuda.{name}"))
    module.is_available = started("cuda.is_available", True)
    module.device_count = started("cuda.device_count", 1)

def accelerator(module):
    asks = started("accelerator.current_accelerator")
    module.current_accelerator = lambda check_available=False: asks() if check_available else None
    for name in ("current_device_index", "current_stream", "synchronize", "device_count"):
        setattr(module, name, started(f"accelerator.{name}"))
    module.is_available = started("accelerator.is_available", True)

def version(module):
    module.cuda = "13.0"

def presence(module):
    module._DRIVERS = ("/",)

CHANGED = {
    "torch.cuda": cuda,
    "torch.accelerator": accelerator,
    "torch.version": version,
    "paceline.inprocess.gpu_detection": presence,
}

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in CHANGED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        original = spec.loader.exec_module
        def exec_module(module):
            original(module)
            CHANGED[name](module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
if "paceline.inprocess.gpu_detection" in sys.modules:
    presence(sys.modules["paceline.inprocess.gpu_detection"])
'''

TRAINS = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index)), index % 3

if __name__ == "__main__":
    torch.manual_seed(7)
    block = lambda: torch.nn.Sequential(torch.nn.Linear(192, 192), torch.nn.ReLU())
    blocks = [block() for _ in range(4)]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.Flatten(), *blocks, torch.nn.Linear(192, 3))
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), "last.pt")
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    print("trained", torch.cuda.is_initialized())
"""

OURS = """
import numpy, os, sys
import paceline.data, paceline.train, paceline.train.engine
data = paceline.data.Loader(list(range(40)), 4, threads=2)
print([len(batch) for batch in data][:1])
to_device = paceline.data.Loader(list(range(40)), 4, device="cuda", threads=2)
pid = os.fork()
if pid == 0:
    os._exit(5)
os.waitpid(pid, 0)
print("trained", "torch" in sys.modules)
"""

RECIPES = {
    "processes": {
        "loader": {
            "num_workers": 1,
            "evaluation_workers": 1,
            "prefetch_factor": 4,
            "persistent_workers": True,
            "pin_memory": True,
            "device_prefetch": True,
            "batch_size": 16,
        },
        "compute": {"num_threads": 1, "channels_last": True, "cudnn_benchmark": True, "sdpa_backend": "efficient"},
        "precision": {"tf32": True, "autocast": "bf16"},
        "optimizer": {"fused": True, "lr_factor": 0.5, "state_8bit": True},
        "memory": {"checkpoint_every": 2, "micro_batches": 2},
        "allocator": {"expandable_segments": True, "retain_host_memory": True},
        "ddp": {"bucket_cap_mb": 8, "static_graph": True, "gradient_as_bucket_view": True, "comm_hook": "fp16"},
    },
    "threads": {
        "loader": {"num_workers": 0, "threads": 2, "cache": True, "pin_memory": True, "device_prefetch": True},
        "precision": {"autocast": "fp16"},
        "optimizer": {"foreach": True},
        "memory": {"activation_budget": 0.5},
        "ddp": {"no_sync": True, "find_unused_parameters": False},
        "debug": {
            "anomaly_detection": False,
            "deterministic_algorithms": False,
            "distributed_debug": False,
            "launch_blocking": False,
        },
    },
}


def toml(recipe) -> str:
    lines: list[str] = []
    for table, settings in recipe.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture
def calls_of(tmp_path):
    """Run a command beside the fake; return what started CUDA, and its output."""

    def run(*command: str, timeout: float = 200):
        (tmp_path / "fake").mkdir(exist_ok=True)
        (tmp_path / "fake" / "sitecustomize.py").write_text(FAKE)
        (tmp_path / "train.py").write_text(TRAINS)
        calls = tmp_path / "calls.jsonl"
        calls.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment(
                PYTHONPATH=f"{tmp_path / 'fake'}:{SRC}",
                CUDA_CALLS=str(calls),
                PACELINE_HISTORY="off",
            ),
        )
        assert done.returncode == 0, done.stderr
        return calls.read_text() if calls.exists() else "", done.stdout

    return run


def test_the_fake_sees_who_starts_cuda(calls_of):
    program = "import torch; torch.cuda.is_available(); print(torch.version.cuda)"
    calls, out = calls_of("-c", program)
    assert ("cuda.is_available" in calls, out) == (True, "13.0\n")


def test_each_setting_of_a_remedy_is_tried_here():
    tried = {f"{t}.{key}" for recipe in RECIPES.values() for t, settings in recipe.items() for key in settings}
    assert tried | {"compute.compile"} == {key for row in REMEDIES.values() for key in row.settings} == set(SETTINGS)


def test_the_program_alone_starts_nothing(calls_of):
    assert calls_of("train.py") == ("", "trained False\n")


@pytest.mark.parametrize("options", [(), ("--profile", "1:2")])
def test_run_starts_nothing(calls_of, options):
    calls, out = calls_of("-m", "paceline", "run", *options, "train.py")
    assert (calls, out) == ("", "trained False\n")


@pytest.mark.parametrize("name", RECIPES)
def test_no_remedy_starts_anything(calls_of, tmp_path, name):
    (tmp_path / "recipe.toml").write_text(toml(RECIPES[name]))
    calls, out = calls_of("-m", "paceline", "run", "--recipe", "recipe.toml", "train.py")
    told = "".join(one.read_text() for one in (tmp_path / ".paceline" / "runs").glob("*/held/*.jsonl"))
    assert "the program begins to load batches before it uses CUDA" in told
    assert "there is no CUDA device" not in told
    assert (calls, out) == ("", "trained False\n")


def test_tune_starts_nothing(calls_of):
    calls, _ = calls_of("-m", "paceline", "tune", "--budget", "30s", "--trials", "1", "train.py", "40")
    assert calls == ""


def test_our_loader_and_the_engine_start_nothing_before_their_first_loop(calls_of):
    calls, out = calls_of("-c", OURS)
    assert (calls, out.splitlines()[-1]) == ("", "trained True")


def test_commands_on_data_start_nothing(calls_of, tmp_path):
    (tmp_path / "corpus.txt").write_text("one two three\n" * 400)
    calls, _ = calls_of("-m", "paceline", "data", "convert", "corpus.txt", "shards", "--tokenizer", "bytes")
    for verb in ("inspect", "verify"):
        calls += calls_of("-m", "paceline", "data", verb, "shards")[0]
    assert calls == ""
