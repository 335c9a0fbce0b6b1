"""Real frames of real code, sampled where they stand."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

import paceline
from paceline.inprocess.recorder.stacks import sampler as stacks
from paceline.inprocess.recorder.stacks.sampler import Sampler, kind_of, label
from paceline.inprocess.recorder.steps.forward import stack
from paceline.inprocess.recorder.steps.optimizers import code_of

SITE = Path(pytest.__file__).parents[1]


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/home/ann/train.py", "user"),
        ("train.py", "user"),
        ("<stdin>", "user"),
        ("<string>", "user"),
        (f"{SITE}/accelerate/data_loader.py", "library"),
        (f"{SITE}/torch/nn/modules/module.py", "torch"),
        (f"{SITE}/torchvision/transforms.py", "library"),
        (f"{SITE}/ray/train/torch/config.py", "library"),
        ("/usr/lib/python3/dist-packages/PIL/Image.py", "library"),
        (f"{sysconfig.get_path('stdlib')}/json/decoder.py", "python"),
        ("<frozen importlib._bootstrap>", "python"),
        (f"{Path(paceline.__file__).parent}/inprocess/recorder/recorder.py", "ours"),
        (str(Path(paceline.__file__).parent.parent / "paceline_tools" / "x.py"), "user"),
    ],
)
def test_whose_code_a_file_is(path, kind):
    assert kind_of(path) == kind


def test_a_virtual_environment_inside_the_project_is_no_user_code(tmp_path):
    assert kind_of(str(tmp_path / ".venv/lib/python3.11/site-packages/lightning/trainer.py")) == "library"


def test_labels():
    def inner():
        return sys._getframe()

    frame = inner()
    line = frame.f_lineno
    assert label(frame.f_code, line) == f"test_labels.inner (test_sampler.py:{line})"


TRAIN = """
    import math

    def make_batch(step):
        look("making")
        return [step]

    def augment(rows):
        look("augmenting")
        return rows

    def log(loss):
        look("logging")

    def criterion(out):
        look("losing")
        return out

    def model(x):
        forward()
        return x

    def train_step(batch):
        out = model(batch)
        note = len(batch)
        look("in the step")
        loss = criterion(out)
        backward(loss)
        return loss

    for step in range(3):
        rows = make_batch(step)
        loss = train_step(augment(rows))
        log(loss)
        look("at the top")
    """


class Watched:
    """Runs a program, learns the stacks of its first step and samples its later ones."""

    def __init__(self, folder: Path, source: str) -> None:
        self.sampler = Sampler()
        self.sides: dict[str, list[str]] = {}
        self.slot = "gap"
        self.path = folder / "train.py"
        self.path.write_text(textwrap.dedent(source))
        module = sys.modules["train_that_is_watched"] = ModuleType("train")
        module.__file__ = str(self.path)
        module.__dict__.update(look=self.look, forward=self.forward, backward=self.backward)
        exec(compile(self.path.read_text(), str(self.path), "exec"), module.__dict__)
        del sys.modules["train_that_is_watched"]

    def forward(self) -> None:
        self.sampler.slices.learn("input", stack(sys._getframe(2)))  # as from inside Module.__call__
        self.slot = "mid"

    def backward(self, loss: object) -> None:
        self.sampler.slices.learn("loss", stack(sys._getframe(1)))
        self.slot = "gap"

    def look(self, what: str) -> None:
        frames = stack(sys._getframe(1))
        self.sides.setdefault(what, []).append(self.sampler.slices.side_of(frames, self.slot))
        self.sampler.count(frames, self.slot)


def test_sides_of_a_program(tmp_path):
    watched = Watched(tmp_path, TRAIN)
    # What was learnt in the first step holds from then on.
    assert {what: sides[-1] for what, sides in watched.sides.items()} == {
        "making": "input",
        "augmenting": "input",
        "logging": "host",
        "losing": "loss",
        "in the step": "host",
        "at the top": "host",
    }


ON_ONE_LINE = """
    def model(x):
        forward()
        return x

    for step in range(3):
        out = model([step]); backward(out); look("after the step")
    """


def test_a_line_with_several_statements_is_not_the_input_of_its_forward(tmp_path):
    assert Watched(tmp_path, ON_ONE_LINE).sides["after the step"] == ["host"] * 3


def test_source_that_cannot_be_read_is_unknown(tmp_path):
    watched = Watched(tmp_path, TRAIN)
    sampler = Sampler()
    code = compile("def f():\n    return 1\n", str(tmp_path / "gone.py"), "exec").co_consts[0]
    sampler.slices.learn("input", [(code, 2)])
    assert [sampler.slices.side_of([(code, n)], "gap") for n in (1, 2)] == ["unknown", "unknown"]
    assert watched.sampler.slices.side_of([], "gap") == "unknown"


def test_samples_are_counted_by_slot_side_and_function(tmp_path):
    watched = Watched(tmp_path, TRAIN)
    totals = {(t["slot"], t["side"]): t["count"] for t in watched.sampler.totals_json()}
    assert totals == {
        ("gap", "unknown"): 2,  # the first batch, before anything was learnt
        ("gap", "input"): 4,
        ("gap", "host"): 6,
        ("mid", "host"): 4,  # among them the first loss, before its backward was seen
        ("mid", "loss"): 2,
    }
    found = {(h["slot"], h["side"], h["function"].partition(" ")[0]): h["count"] for h in watched.sampler.as_json()}
    assert found["gap", "input", "make_batch"] == 2
    assert found["gap", "input", "augment"] == 2
    assert found["gap", "host", "log"] == 3
    assert found["gap", "host", "<module>"] == 3
    json.dumps(watched.sampler.as_json())


def test_only_uncertain_slots_have_sides(tmp_path):
    watched = Watched(tmp_path, TRAIN)
    watched.sampler.count(stack(sys._getframe()), "data_wait")
    watched.sampler.count(stack(sys._getframe()), "startup")
    assert {t["side"] for t in watched.sampler.totals_json() if t["slot"] in ("data_wait", "startup")} == {""}


def test_the_users_function_is_named_and_what_it_calls_is_its_leaf():
    sampler = Sampler()

    def user_function():
        return json.dumps([1], default=str)

    python_code = json.dumps.__code__
    frames = [(python_code, 200), (user_function.__code__, 5), (test_labels.__code__, 6)]
    for _ in range(3):
        sampler.count(frames, "other")
    (entry,) = sampler.as_json()
    assert entry["function"].startswith("test_the_users_function")
    assert entry["function"].endswith(".user_function (test_sampler.py:5)")
    assert (entry["count"], entry["leaf"]) == (3, "dumps (__init__.py:200)")


def test_a_library_is_named_where_there_is_no_user_code():
    code = compile("def advance():\n    pass\n", f"{SITE}/lightning/loops.py", "exec").co_consts[0]
    sampler = Sampler()
    sampler.count([(json.dumps.__code__, 3), (code, 1)], "other")
    sampler.count([(json.dumps.__code__, 3)], "other")
    assert [entry["function"] for entry in sampler.as_json()] == ["advance (loops.py:1)"]
    assert sum(t["count"] for t in sampler.totals_json()) == 2


def test_the_most_frequent_line_names_a_function():
    sampler = Sampler()
    for line in (4, 7, 7):
        sampler.count([(test_labels.__code__, line)], "startup")
    assert [entry["function"] for entry in sampler.as_json()] == ["test_labels (test_sampler.py:7)"]


def test_the_line_of_a_function_is_that_of_its_phase():
    sampler = Sampler()
    for slot, line in (("backward", 8), ("backward", 8), ("other", 10)):
        sampler.count([(test_labels.__code__, line)], slot)
    found = {entry["slot"]: entry["function"] for entry in sampler.as_json()}
    assert found == {"backward": "test_labels (test_sampler.py:8)", "other": "test_labels (test_sampler.py:10)"}


def test_a_call_of_a_librarys_loop_is_not_named_but_the_librarys_function():
    code = compile("def train():\n    pass\n", f"{SITE}/transformers/trainer.py", "exec").co_consts[0]
    sampler = Sampler()
    for slot in ("forward", "backward", "optimizer", "other"):
        sampler.count([(code, 1), (test_labels.__code__, 5)], slot)
    assert {(entry["function"], entry["file"]) for entry in sampler.as_json()} == {("train (trainer.py:1)", "")}


def test_a_line_of_the_program_with_all_phases_is_named_if_most_samples_are_in_the_line_itself():
    library = compile("def step():\n    pass\n", f"{SITE}/torch/optim/sgd.py", "exec").co_consts[0]
    sampler = Sampler()
    for slot in ("forward", "backward", "optimizer"):
        sampler.count([(library, 1), (test_labels.__code__, 5)], slot)
    sampler.count([(library, 1), (test_labels.__code__, 5)], "gap")
    for _ in range(9):
        sampler.count([(test_labels.__code__, 5)], "gap")
    found = {entry["slot"]: entry["function"] for entry in sampler.as_json()}
    assert found["gap"] == "test_labels (test_sampler.py:5)"


def test_at_most_so_many_functions():
    sampler = Sampler()
    for number in range(60):
        code = compile(f"def f{number}():\n    pass\n", "train.py", "exec").co_consts[0]
        sampler.count([(code, 1)], "other")
    assert len(sampler.as_json()) == 40
    assert len(sampler.as_json(most=3)) == 3


def in_another_thread(work) -> tuple[threading.Thread, threading.Event]:
    ready, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: work(ready, leave), daemon=True)
    thread.start()
    assert ready.wait(10)
    return thread, leave


def waits_here(ready, leave):
    ready.set()
    leave.wait(30)


def test_a_running_thread_is_sampled():
    thread, leave = in_another_thread(waits_here)
    sampler = Sampler()
    sampler.count(sampler.look(thread.ident).frames, "other")
    leave.set()
    thread.join()
    sampler.count(sampler.look(thread.ident).frames, "other")  # it is gone: nothing to sample, nothing raised
    (entry,) = sampler.as_json()
    assert entry["function"].startswith("waits_here (test_sampler.py:")
    assert entry["leaf"].startswith("wait (threading.py:") or entry["leaf"].startswith("Condition.wait")
    assert entry["count"] == 1


def test_code_that_does_nothing_but_update_parameters():
    sampler = Sampler()
    sampler.slices.updating = code_of(Climbing)
    frames = Climbing.climb(None)
    assert [sampler.slices.side_of(frames, slot) for slot in ("gap", "mid", "other")] == ["optimizer"] * 3
    assert code_of(torch.optim.AdamW) == set()


class Climbing(torch.optim.SGD):
    """An optimizer of a program's own."""

    @staticmethod
    def plain() -> None:
        """No method."""

    @torch.no_grad()
    def climb(self):
        """Behind a decorator of torch's; returns where it is."""
        return stack(sys._getframe())


def test_inside_one_of_our_functions_only(monkeypatch):
    """In a loader worker only what is below our `metered` counts, so that idling is not sampled."""
    source = "def metered(work, *args):\n    work(*args)\n"
    namespace: dict[str, object] = {}
    exec(compile(source, f"{Path(stacks.__file__).parent}/fetch.py", "exec"), namespace)
    inside, leave_inside = in_another_thread(lambda *events: namespace["metered"](waits_here, *events))
    outside, leave_outside = in_another_thread(waits_here)
    sampler = Sampler()
    sampler.sample_inside(inside.ident, "produce", "metered")
    sampler.sample_inside(outside.ident, "produce", "metered")
    leave_inside.set()
    leave_outside.set()
    assert [(e["slot"], e["count"]) for e in sampler.as_json()] == [("produce", 1)]


def test_an_instruction_without_a_line_has_the_line_of_its_function():
    def lineless():
        frame = sys._getframe()
        return frame.f_lineno, stack(frame)[0], Sampler().look(threading.get_ident()).frames[0]

    lineless.__code__ = lineless.__code__.replace(co_linetable=b"")
    line, called, walked = lineless()
    assert line is None
    assert called == walked == (lineless.__code__, lineless.__code__.co_firstlineno)


ROLLOUT = """
    class Env:
        def step(self, action):
            look("environment", running=False)
            return action

    def mix(out):
        look("mixing", running=True)
        return out

    env, state = Env(), 1
    for episode in range(2):
        losses = []
        for _ in range(6):
            action = mix(model(state))
            state = env.step(action)
            losses.append(action)
        backward(losses)
    """


class Rollout(Watched):
    """Forwards in the middle of which an environment answers."""

    def look(self, what: str, running: bool = False) -> None:
        self.sampler.count(stack(sys._getframe(1)), "mid", running)


def test_an_environment_is_host_code_and_what_computes_with_tensors_is_not(tmp_path):
    source = textwrap.dedent(ROLLOUT).replace("model(state)", "forward() or state")
    watched = Rollout(tmp_path, source)
    found = {h["function"].partition(" ")[0]: (h["slot"], h["side"]) for h in watched.sampler.as_json()}
    assert found["Env.step"] == ("mid", "host")
    assert found["mix"] == ("mid", "loss")
    totals = {(t["slot"], t["side"]): t["count"] for t in watched.sampler.totals_json()}
    assert totals["mid", "host"] == 12
    assert totals["mid", "loss"] + totals.get(("mid", "unknown"), 0) == 12


def test_without_a_word_of_the_kernel_nothing_is_called_host_code(tmp_path):
    class Unknown(Rollout):
        def look(self, what, running=None):
            self.sampler.count(stack(sys._getframe(1)), "mid", None)

    watched = Unknown(tmp_path, textwrap.dedent(ROLLOUT).replace("model(state)", "forward() or state"))
    assert not [h for h in watched.sampler.as_json() if h["side"] == "host" and h["function"].startswith("mix")]


@pytest.mark.parametrize(
    "places, side",
    [
        (["call"], "loss"),
        (["between", "call"], "host"),
        (["between", *["call"] * 11], "host"),
        (["between", "inside", "call"], "loss"),  # an operation without the lock: it computes
    ],
)
def test_a_function_between_operations_is_host_code_although_its_thread_seems_to_run(tmp_path, places, side):
    """On a busy machine, a thread that waits for the lock and for a core counts as running."""

    class Busy(Rollout):
        taken = 0

        def look(self, what, running=None):
            place = places[Busy.taken % len(places)] if what == "environment" else "call"
            Busy.taken += what == "environment"
            self.sampler.count(stack(sys._getframe(1)), "mid", True, place)

    watched = Busy(tmp_path, textwrap.dedent(ROLLOUT).replace("model(state)", "forward() or state"))
    found = {h["function"].partition(" ")[0]: h["side"] for h in watched.sampler.as_json()}
    assert (found["Env.step"], found["mix"]) == (side, "loss")


def plain_python(ended: threading.Event) -> None:
    while not ended.is_set():
        seen = set()
        for number in range(500):
            if number % 3 and number not in seen:
                seen.add((number, min(number, 7)))


def tensor_operations(ended: threading.Event) -> None:
    weight = torch.rand(32, 32)
    while not ended.is_set():
        found = torch.rand(8, 32)
        for _ in range(50):
            found = torch.tanh(found @ weight) + 0.1


@pytest.mark.parametrize("work, low, high", [(plain_python, 0.08, 1.0), (tensor_operations, 0.0, 0.02)])
def test_where_a_thread_stands_tells_python_code_from_tensor_operations(work, low, high):
    """This also holds beside busy processes, where the state of the thread says nothing."""
    ended, sampler, usual = threading.Event(), Sampler(), sys.getswitchinterval()
    thread = threading.Thread(target=work, args=(ended,))
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    thread.start()
    sys.setswitchinterval(0.001)
    try:
        looks = [(time.sleep(0.003), sampler.look(thread.ident))[1] for _ in range(200)]
    finally:
        sys.setswitchinterval(usual)
        ended.set()
        thread.join()
        for one in neighbours:
            one.kill()
            one.wait()
    inside = [look for look in looks if any(code is work.__code__ for code, _ in look.frames)]
    assert len(inside) > 150
    assert low <= sum(look.place == "between" for look in inside) / len(inside) <= high
    assert ("inside" in {look.place for look in inside}) == (work is tensor_operations)


ARRAYS = """
    import numpy as np
    import torch

    class Env:
        def step(self, action):
            np.sort([action])
            look("environment", running=True)
            return action

    def advantage(out):
        look("advantage", running=True)
        return torch.as_tensor(np.asarray(out))

    env, state = Env(), 1
    for episode in range(2):
        losses = []
        for _ in range(6):
            action = advantage(forward() or state)
            state = env.step(action)
            losses.append(action)
        backward(losses)
    """


def test_an_environment_that_computes_with_numpy_is_host_code_although_its_thread_runs(tmp_path):
    """NumPy lets go of the interpreter's lock as torch does."""
    watched = Rollout(tmp_path, textwrap.dedent(ARRAYS))
    found = {h["function"].partition(" ")[0]: h["side"] for h in watched.sampler.as_json()}
    assert found["Env.step"] == "host"
    assert found["advantage"] != "host"
