"""What a trial does to files, shared memory and the network, by whatever means, is undone or not done at all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from contextlib import closing
from pathlib import Path

import pytest

from paceline.core.recipe import BASELINE
from paceline.inprocess.sandbox.namespaces import command_of, own_addresses
from paceline.tune.comparison.model import GOALS
from paceline.tune.search.budget import Budget
from paceline.tune.search.runner import TrialRunner, watch_baseline
from paceline.tune.trials.blocks import TrialFailed
from paceline.tune.trials.isolation import Isolation, isolation_for, network_peers
from paceline.tune.trials.process import TrialProcess

PROGRAM = """
import ctypes, os, socket, subprocess, sys
os.system("rm -rf runs/exp1")
libc = ctypes.CDLL(None)
libc.write(libc.open(b"tokenizer.json", 0o1101, 0o644), b"bad", 3)
subprocess.run(["sh", "-c", "echo more >> {home}/cache"])
shared = open("/dev/shm/{name}", "w")
shared.write("x")
shared.flush()
print("listening", flush=True)
door = socket.create_server(("127.0.0.1", {fixed_port}))
for address in {addresses}:
    try:
        socket.create_connection((address, {port}), timeout=5).sendall(b"training started")
        print("connected", flush=True)
    except OSError as error:
        print(error, flush=True)
import torch
print(os.path.exists("runs/exp1/ckpt.pt"), open("tokenizer.json").read(), flush=True)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


class Service:
    """A service of this machine that counts who connects."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.visits = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                link, _ = self.socket.accept()
            except OSError:
                return
            self.visits += 1
            link.close()


@pytest.fixture(scope="module")
def service():
    found = Service()
    with closing(found.socket):
        yield found


@pytest.fixture
def folder(tmp_path, service):
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").write_text("cached\n")
    place = tmp_path / "project"
    (place / "runs/exp1").mkdir(parents=True)
    (place / "runs/exp1/ckpt.pt").write_text("precious")
    (place / "tokenizer.json").write_text("tokens")
    with socket.create_server(("127.0.0.1", 0)) as free:
        fixed_port = free.getsockname()[1]
    values = {"home": home, "name": f"paceline-test-{os.getpid()}", "fixed_port": fixed_port, "port": service.port}
    source = textwrap.dedent(PROGRAM).format(addresses=["127.0.0.1", "192.0.2.77"], **values)
    (place / "train.py").write_text(source)
    return place


def kernel_isolation(folder: Path) -> Isolation:
    found = isolation_for(folder / "trials", folder, allows_network=False)
    if not found.by_kernel:
        pytest.skip(found.why_not)
    return found


def player(folder: Path, isolation: Isolation, name: str = "one") -> TrialProcess:
    return TrialProcess([sys.executable, "train.py"], BASELINE, folder / "trials" / name, {}, folder, isolation)


def untouched(folder: Path) -> bool:
    files = folder / "runs/exp1/ckpt.pt", folder / "tokenizer.json", folder.parent / "home" / "cache"
    return [path.read_text() for path in files] == ["precious", "tokens", "cached\n"]


def left_in_shared_memory() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name == f"paceline-test-{os.getpid()}"]


def test_the_kernel_holds_what_subprocesses_and_c_code_do(folder, service):
    isolation = kernel_isolation(folder)
    visits = service.visits
    with player(folder, isolation) as one, player(folder, isolation, "two") as two:  # the same port twice
        one.begin()
        two.begin()
        one.run_steps(3, 30.0)
        assert not left_in_shared_memory()
        said = (one.folder / "output.txt").read_text()
        peers = network_peers(one.folder)
    assert "connected" not in said
    assert "False bad" in said  # what it did is there for itself
    assert untouched(folder) and service.visits == visits
    assert peers == sorted([f"127.0.0.1:{service.port}", f"192.0.2.77:{service.port}"])
    assert not (folder / "trials" / "one" / "scratch").exists()


def test_a_program_that_speaks_to_a_service_is_not_tried_and_the_service_is_named(folder, service):
    isolation = kernel_isolation(folder)
    command = [sys.executable, "train.py"]
    runner = TrialRunner(command, folder / "trials", folder, GOALS["time"], Budget(total_s=30.0), isolation)
    with pytest.raises(TrialFailed, match=rf"127\.0\.0\.1:{service.port}, .*--allow-network"):
        watch_baseline(runner, lambda text: None)


def test_a_program_with_an_error_of_its_own_is_not_run_again_without_isolation(folder):
    isolation, said = kernel_isolation(folder), []
    (folder / "train.py").write_text("import os\nos.system('rm -rf runs/exp1')\nraise RuntimeError('my own bug')\n")
    command = [sys.executable, "train.py"]
    runner = TrialRunner(command, folder / "trials", folder, GOALS["time"], Budget(total_s=30.0), isolation)
    with pytest.raises(TrialFailed, match=r"code 1: RuntimeError: my own bug .*; if .* use --python-sandbox"):
        watch_baseline(runner, said.append)
    assert said == [isolation.in_words(), "measuring the unchanged program"] and untouched(folder)


def test_without_the_kernel_connections_of_python_are_refused_and_shared_memory_is_cleaned(folder, service):
    visits = service.visits
    (folder / "train.py").write_text((folder / "train.py").read_text().replace('os.system("rm -rf runs/exp1")', ""))
    in_python = Isolation(by_kernel=False, why_not="it is a test", services=frozenset([service.port]))
    assert "os.system" in in_python.in_words()
    with player(folder, in_python) as one:
        one.begin()
        peers = network_peers(one.folder)
        assert left_in_shared_memory()
    assert not left_in_shared_memory()
    assert service.visits == visits
    assert len(peers) == 2


def test_what_a_trial_may_do_with_the_network_if_it_is_allowed(folder, service):
    allowed = isolation_for(folder / "trials", folder, allows_network=True)
    visits = service.visits
    source = (folder / "train.py").read_text().replace(", '192.0.2.77'", "")
    (folder / "train.py").write_text(source)
    with player(folder, allowed) as one:
        one.begin()
        assert "connected" in (one.folder / "output.txt").read_text()
    assert service.visits == visits + 1 and (not allowed.by_kernel or untouched(folder))


def test_the_user_can_choose_the_sandbox_in_python(folder):
    chosen = isolation_for(folder / "trials", folder, allows_network=False, not_by_kernel="--python-sandbox was given")
    assert not chosen.by_kernel
    assert chosen.in_words().startswith("trials run in a sandbox in Python, because --python-sandbox was given; it ")


CHURN = """
import os, sys
while True:
    for number in range(40):
        os.makedirs(f"{sys.argv[1]}/temporary-{number}/inner", exist_ok=True)
    for number in range(40):
        os.removedirs(f"{sys.argv[1]}/temporary-{number}/inner")
"""


def test_other_programs_may_remove_their_folders_while_a_trial_starts(tmp_path):
    """Isolation mounts an overlay on each folder next to the trial, while another program removes such folders."""
    kernel_isolation(tmp_path)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # /tmp has thousands of folders of other tests
        (Path(place) / "scratch").mkdir()
        spec = {"uppers": [f"{place}/scratch"], "free": [], "replace": {}, "network": False}
        with subprocess.Popen([sys.executable, "-c", CHURN, place]) as other:
            try:
                ends = [subprocess.run(command_of(spec, ["true"]), capture_output=True, text=True) for _ in range(8)]
            finally:
                other.kill()
    assert {(one.returncode, one.stderr) for one in ends} == {(0, "")}


def test_a_machine_knows_its_addresses():
    assert not any(address.startswith("127.") for address in own_addresses())


def test_trackers_are_off_where_the_program_asks_for_them_in_code(ran, tmp_path, monkeypatch):
    """Stand-ins for the packages, with the functions that programs call."""
    (tmp_path / "wandb.py").write_text("def init(**kwargs): return kwargs\ndef login(key=None): raise OSError\n")
    (tmp_path / "neptune.py").write_text("def init_run(**kwargs): return kwargs\n")
    (tmp_path / "comet_ml.py").write_text("class Experiment:\n    def __init__(self, **given): self.given = given\n")
    (tmp_path / "mlflow.py").write_text("used = []\ndef set_tracking_uri(uri): used.append(uri)\n")
    hub = tmp_path / "huggingface_hub"
    hub.mkdir()
    (hub / "__init__.py").write_text("from .hf_api import HfApi, create_repo\n")
    (hub / "hf_api.py").write_text(
        "class HfApi:\n    def upload_file(self, **given): raise OSError\ndef create_repo(name): raise OSError\n"
    )
    monkeypatch.setenv("PACELINE_TRACKERS_OFF", "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
    done = ran(
        """
        import comet_ml, huggingface_hub, mlflow, neptune, wandb
        print(wandb.login(key="x"), wandb.init(project="p", mode="online"))
        print(neptune.init_run(mode="async"), comet_ml.Experiment(project="p").given)
        mlflow.set_tracking_uri("http://tracker")
        print(mlflow.used)
        huggingface_hub.HfApi().upload_file(path="x")
        print(repr(str(huggingface_hub.create_repo("mine").repo_id)))
        import torch
        """,
        {},
    )
    assert done.out.splitlines() == [
        "True {'project': 'p', 'mode': 'disabled'}",
        "{'mode': 'debug'} {'project': 'p', 'disabled': True}",
        "['file:///nowhere', 'file:///nowhere']",
        "''",
    ], done.err
