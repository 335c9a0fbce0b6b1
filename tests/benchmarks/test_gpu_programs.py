"""The programs of the GPU proof run on a CPU at a small size, and their records pass the checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import _watched  # noqa: E402
from _truth import compared, phases_of, shares  # noqa: E402

PROGRAMS = {
    "transformer.py": ["--trace", "TRACE", "--steps", "30"],
    "cnn.py": ["--trace", "TRACE", "--steps", "30"],
    "sync_stall.py": ["--steps", "3"],
    "launch_bound.py": ["--steps", "3"],
    "precision_unused.py": ["--steps", "3"],
    "transfer_blocking.py": ["--steps", "3"],
    "slow_data.py": ["--steps", "3"],
    "memory.py": ["full", "--steps", "3"],
    "five_ms.py": ["--layers", "2", "--steps", "30"],
}

# All in one process: importing torch eight times would take longer than the rest.
RUN = """
import json, runpy, sys
for name, arguments in json.loads(sys.argv[2]).items():
    sys.argv[:] = [name, *arguments, "--device", "cpu", "--small"]
    sys.path[0] = FOLDER
    runpy.run_path(f"{FOLDER}/{name}", run_name="__main__")
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The last line of every program, and the traces."""
    place = tmp_path_factory.mktemp("traces")
    told = {
        name: [str(place / f"{name}.json") if a == "TRACE" else a for a in arguments]
        for name, arguments in PROGRAMS.items()
    }
    code = f"FOLDER = {str(BENCHMARKS / 'gpu_programs')!r}\n{RUN}"
    run = subprocess.run([sys.executable, "-c", code, "-", json.dumps(told)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return dict(zip(PROGRAMS, lines)), place


def test_every_program_is_here():
    files = {file.name for file in (BENCHMARKS / "gpu_programs").glob("*.py")}
    assert files == {*PROGRAMS, "options.py", "marks.py", "resnet50.py", "llama.py"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(played, name):
    told = played[0][name]
    assert told["steps"] == int(PROGRAMS[name][-1])
    assert told["seconds"] > 0


@pytest.mark.parametrize("name", ["transformer.py", "cnn.py"])
def test_the_trace_names_the_phases(played, name):
    """On a CPU nothing is launched: the device comes to each moment with the host."""
    found = phases_of(played[1] / f"{name}.json")
    assert found["steps"] == 23
    assert found["kernels"] == 0
    assert {"forward", "mid", "backward", "optimizer", "tidy"} <= found["shares"].keys()
    assert sum(found["shares"].values()) == pytest.approx(1.0, abs=0.25)


def test_a_program_that_is_watched_leaves_a_record_that_can_be_judged():
    arguments = ("--device", "cpu", "--small", "--steps", "60")
    with _watched.watched("launch_bound.py", *arguments) as found:
        assert found.code == 0
        assert len(found.rows) == 60
        assert found.timed == []
        assert "the device is recorded as cpu" in _watched.basics(found, 60)
        answer = {"failed": [], "expected": "COMP999", "record": _watched.packed(found.folder)}
        here = _watched.judge_record(answer, found.folder)
    elsewhere = _watched.judge_record(answer)
    assert here == elsewhere
    assert here["failed"][0].startswith("finding COMP999 was not made")
    assert here["not_done"] == []
    assert isinstance(here["findings"], list)


def test_a_program_that_fails_is_told():
    with _watched.watched("memory.py", "full", "--device", "nonsense") as found:
        assert found.code == 1
    assert "the program ended with 1" in _watched.basics(found, 10)[0]


def test_a_recipe_is_applied_and_what_a_cpu_has_not_is_told():
    """The check of the remedies asks for what is refused here; that it says so is what can be seen without a GPU."""
    sys.path.insert(0, str(BENCHMARKS / "gpu_checks"))
    from remedies import CASES, wrong

    program, recipe = CASES["convolutions"]
    recipe = {**recipe, "precision": {"autocast": "fp16"}}
    arguments = (program, "--device", "cpu", "--small", "--steps", "4")
    with _watched.watched(*arguments, recipe={}) as bare, _watched.watched(*arguments, recipe=recipe) as changed:
        assert (bare.code, changed.code, bare.held) == (0, 0, {})
        assert list(changed.held) == ["precision.autocast"]
        assert wrong(bare, changed, recipe) == [
            "compute.cudnn_benchmark had no effect: there is no CUDA device",
            "allocator.expandable_segments had no effect: there is no CUDA device",
        ]


def test_what_feeds_the_network_and_how_overlap_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS / "gpu_checks"), *sys.path])
    import loader
    import resnet50

    from paceline.data import ShardedDataset

    assert sum(each.numel() for each in resnet50.resnet50().parameters()) == 25_557_032  # as published
    assert loader.shared([(2, 5.5)], loader.united([(0, 2), (1, 3), (5, 6)])) == 1.5
    monkeypatch.setattr(loader, "PICTURES", 8)
    assert len(ShardedDataset(loader.made(tmp_path))) == 8
    assert loader.Folder(tmp_path / "pictures")[3][0].shape == (3, 224, 224)


# -- the profiler's word -----------------------------------------------------------------------------


def span(name, begin, end, cat="user_annotation", **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "args": args}


def work(number, launched, begin, end):
    """A kernel and the call that launched it."""
    return [
        span("cudaLaunchKernel", launched, launched + 1, "cuda_runtime", correlation=number),
        span("kernel", begin, end, "kernel", correlation=number),
    ]


def step(at):
    """100 µs a step on the device: forward 30, backward 60, optimizer 10; the host issues each in 5 µs."""
    return [
        span("phase:forward", at, at + 5),
        *work(at, at + 1, at + 2, at + 30),
        span("phase:backward", at + 5, at + 10),
        *work(at + 0.5, at + 6, at + 30, at + 90),
        span("phase:optimizer", at + 10, at + 15),
        *work(at + 0.7, at + 11, at + 90, at + 100),
    ]


def test_shares_are_the_devices_and_not_the_hosts():
    found = shares([event for n in range(4) for event in step(100.0 * n)])
    assert found["steps"] == 3
    assert found["step_s"] == pytest.approx(100e-6)
    assert found["shares"] == pytest.approx({"forward": 0.3, "backward": 0.6, "optimizer": 0.1})
    assert found["busy"] == pytest.approx(1.0, abs=0.03)


def test_a_device_that_waits_for_the_host():
    """The host takes 40 µs to make a batch; the device is done long before."""
    events = []
    for n in range(3):
        at = 60.0 * n
        events += [span("phase:data_wait", at, at + 40), span("phase:forward", at + 40, at + 50)]
        events += [*work(n, at + 41, at + 42, at + 45), span("phase:optimizer", at + 50, at + 60)]
    found = shares(events)
    assert found["shares"] == pytest.approx({"data_wait": 40 / 60, "forward": 10 / 60, "optimizer": 10 / 60})
    assert found["busy"] == pytest.approx(3 / 60)


def test_rows_are_compared_with_it():
    slots = ("data_wait", "transfer", "forward", "backward", "optimizer", "mid")
    row = {f"{name}_s": 0.0 for name in slots} | {
        "wall_s": 0.1,
        "forward_s": 0.031,
        "backward_s": 0.059,
        "optimizer_s": 0.01,
    }
    truth = {"shares": {"forward": 0.3, "backward": 0.6, "optimizer": 0.08, "tidy": 0.02}}
    found = compared(truth, [row] * 9)
    assert found["largest_error"] == pytest.approx(0.01)
    assert found["largest_relative_error"] == pytest.approx(0.01 / 0.3)
    assert found["errors"]["optimizer"] == pytest.approx(0.0)
