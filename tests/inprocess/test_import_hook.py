"""The way into a process: real interpreters, with the injected folder on their path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import paceline

SRC = Path(paceline.__file__).parents[1]
INJECT = SRC / "paceline" / "inprocess" / "inject"


def python(
    code: str, folder: Path, *, path: tuple[Path, ...] = (SRC,), **environment: str
) -> subprocess.CompletedProcess:
    """Run code in a folder, with an environment and a search path of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PACELINE"))}
    search = os.pathsep.join(str(p) for p in path)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**kept, "PYTHONPATH": search, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def out_of(code: str, folder: Path, **more) -> object:
    result = python(code, folder, **more)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture
def modules(tmp_path) -> Path:
    """A folder with a package that counts how often it is loaded, and one that fails the first time."""
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").write_text("import sys\nsys.loads = getattr(sys, 'loads', 0) + 1\nVALUE = 5\n")
    (tmp_path / "heavy" / "inner.py").write_text("from heavy import VALUE\n")
    (tmp_path / "heavy" / "data.txt").write_text("read me")
    (tmp_path / "broken.py").write_text("def fail():\n    raise OSError('no such card')\n\nfail()\n")
    (tmp_path / "once.py").write_text(
        "import sys\nsys.tries = getattr(sys, 'tries', 0) + 1\nif sys.tries == 1:\n    raise ImportError('later')\n"
    )
    return tmp_path


BEGIN = """
    import importlib.util, json, sys, traceback
    from paceline.inprocess import hooks, import_hook
    seen = []
    """


def test_a_module_is_loaded_once_and_acted_on_after_it(modules):
    code = """
    wanted = {"heavy": lambda m: seen.append((m.__name__, m.VALUE)), "heavy.inner": lambda m: seen.append(m.VALUE)}
    import_hook.install(wanted)
    import heavy.inner
    import heavy
    print(json.dumps([seen, sys.loads]))
    """
    assert out_of(BEGIN + code, modules) == [[["heavy", 5], 5], 1]


def test_the_loader_is_the_modules_own_again(modules):
    code = """
    import_hook.install({"heavy": seen.append})
    waiting = len(sys.meta_path)
    import heavy
    import importlib.resources, inspect
    print(json.dumps([
        type(heavy.__loader__).__name__,
        heavy.__spec__.loader is heavy.__loader__,
        heavy.__spec__.origin == heavy.__file__,
        importlib.resources.files(heavy).joinpath("data.txt").read_text(), inspect.getsource(heavy).count("VALUE"),
        waiting - len(sys.meta_path),
    ]))
    """
    assert out_of(BEGIN + code, modules) == ["SourceFileLoader", True, True, "read me", 1, 1]


def test_asking_where_a_module_is_does_not_use_the_action_up(modules):
    """As transformers and others do before they import torch."""
    code = """
    import_hook.install({"heavy": lambda m: seen.append(m.__name__)})
    specs = [importlib.util.find_spec("heavy"), importlib.util.find_spec("heavy")]
    before = list(seen)
    reader = specs[0].loader.get_resource_reader("heavy") is not None
    import heavy
    print(json.dumps([before, seen, sys.loads, specs[0].origin == heavy.__file__, reader]))
    """
    assert out_of(BEGIN + code, modules) == [[], ["heavy"], 1, True, True]


def test_a_module_that_is_not_there(modules):
    code = """
    import_hook.install({"absent": seen.append, "heavy.absent": seen.append})
    for name in ("absent", "heavy.absent"):
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            seen.append(str(error))
    print(json.dumps([seen, importlib.util.find_spec("absent")]))
    """
    assert out_of(BEGIN + code, modules) == [["No module named 'absent'", "No module named 'heavy.absent'"], None]


def test_an_import_error_keeps_its_traceback(modules):
    failing = "import broken\n"
    plain = python(failing, modules)
    watched = python(
        "from paceline.inprocess import import_hook\nimport_hook.install({'broken': print})\n" + failing, modules
    )
    assert plain.returncode == watched.returncode == 1
    assert watched.stdout == ""
    assert watched.stderr.replace("line 3, in <module>", "line 1, in <module>") == plain.stderr
    assert "paceline" not in watched.stderr


def test_an_import_that_fails_first_is_acted_on_later(modules):
    code = """
    import_hook.install({"once": lambda m: seen.append(m.__name__)})
    for _ in range(2):
        try:
            import once
        except ImportError:
            seen.append("failed")
    print(json.dumps([seen, sys.tries]))
    """
    assert out_of(BEGIN + code, modules) == [["failed", "once"], 2]


def test_a_module_that_another_finder_finds(modules):
    """As editable installs and import hooks of other tools do."""
    code = """
    from importlib.machinery import ModuleSpec, SourceFileLoader
    class Other:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == "elsewhere":
                return importlib.util.spec_from_file_location(name, "heavy/__init__.py")
    sys.meta_path.append(Other)
    import_hook.install({"elsewhere": lambda m: seen.append(m.VALUE)})
    import elsewhere
    print(json.dumps(seen))
    """
    assert out_of(BEGIN + code, modules) == [5]


def test_a_module_that_is_there_already_is_acted_on_now(modules):
    code = """
    import heavy
    import_hook.install({"heavy": lambda m: seen.append(m.VALUE)})
    print(json.dumps([seen, any(isinstance(f, import_hook.Finder) for f in sys.meta_path)]))
    """
    assert out_of(BEGIN + code, modules) == [[5], False]


def test_a_fault_of_ours_does_not_break_the_import(modules):
    code = """
    import_hook.install({"heavy": lambda m: 1 / 0})
    import heavy
    print(heavy.VALUE)
    """
    result = python(BEGIN + code, modules)
    assert (result.returncode, result.stdout) == (0, "5\n")
    line = "paceline: watching stopped (import of heavy: ZeroDivisionError: division by zero); the program goes on\n"
    assert result.stderr == line


# -- the injected folder ------------------------------------------------------------------------------

LOADED = """
    import json, sys
    ours = sorted(name for name in sys.modules if name.partition(".")[0] == "paceline")
    finders = [type(finder).__module__ for finder in sys.meta_path]
    print(json.dumps({"ours": ours, "path": sys.path, "finders": finders, "all": sorted(sys.modules)}))
    """


def test_a_process_without_torch_loads_next_to_nothing(tmp_path):
    plain = out_of(LOADED, tmp_path, path=())
    watched = out_of(LOADED, tmp_path, path=(INJECT,), PACELINE_WATCH_DIR=str(tmp_path / "run"))
    assert "paceline.inprocess.import_hook" in watched["finders"]
    assert "paceline.inprocess.recorder.steps.state_machine" not in watched["ours"]
    assert "paceline.inprocess.recorder.recorder" not in watched["ours"]
    extra = {name.partition(".")[0] for name in set(watched["all"]) - set(plain["all"])} - {"paceline", "sitecustomize"}
    assert extra <= set(sys.stdlib_module_names)
    assert not extra & {"torch", "numpy", "ast", "asyncio", "multiprocessing", "socket", "subprocess", "logging"}
    assert watched["path"] == plain["path"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PACELINE_DISABLE": "1", "PACELINE_WATCH_DIR": "run"},
        {"PACELINE_DISABLE": "true", "PACELINE_WATCH_DIR": "run"},
    ],
    ids=["no run", "disabled", "disabled in words"],
)
def test_switched_off_it_loads_nothing_at_all(tmp_path, environment):
    found = out_of(LOADED, tmp_path, path=(INJECT,), **environment)
    assert found["ours"] == []
    assert "paceline.inprocess.import_hook" not in found["finders"]


def test_disable_0_is_not_disabled(tmp_path):
    found = out_of(LOADED, tmp_path, path=(INJECT,), PACELINE_WATCH_DIR=str(tmp_path / "r"), PACELINE_DISABLE="0")
    assert "paceline.inprocess.import_hook" in found["finders"]


def test_the_users_own_sitecustomize_still_runs(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = (__name__, __file__)\n")
    code = """
    import json, sys, sitecustomize
    print(json.dumps([*sys.theirs, sitecustomize.__file__, [p for p in sys.path if "inject" in p]]))
    """
    watched = {"PACELINE_WATCH_DIR": str(tmp_path / "run")}
    file = str(theirs / "sitecustomize.py")
    for more in (watched, {}):
        assert out_of(code, tmp_path, path=(INJECT, theirs), **more) == ["sitecustomize", file, file, []]


def test_a_users_sitecustomize_that_fails_says_so_as_always(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    plain = python("print(1)", tmp_path, path=(theirs,))
    watched = python("print(1)", tmp_path, path=(INJECT, theirs), PACELINE_WATCH_DIR=str(tmp_path / "run"))
    assert (watched.returncode, watched.stdout, watched.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_package_that_is_not_there_costs_one_line(tmp_path):
    """The environment outlived the checkout that set it."""
    lost = tmp_path / "gone" / "inprocess" / "inject"
    lost.mkdir(parents=True)
    shutil.copy(INJECT / "sitecustomize.py", lost)
    result = python("print('going on')", tmp_path, path=(lost,), PACELINE_WATCH_DIR=str(tmp_path / "run"))
    assert (result.returncode, result.stdout) == (0, "going on\n")
    assert result.stderr.startswith("paceline: not watching this process (")
    assert result.stderr.count("\n") == 1


def test_torch_that_was_only_asked_for_before_is_watched(tmp_path):
    code = """
    import importlib.util, json
    assert importlib.util.find_spec("torch") is not None
    import torch
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
    print(json.dumps(type(torch.__spec__.loader).__name__))
    """
    run = tmp_path / "run"
    assert (
        out_of(code, tmp_path, path=(INJECT,), PACELINE_WATCH_DIR=str(run), OMP_NUM_THREADS="1") == "SourceFileLoader"
    )
    (rank,) = (run / "ranks").iterdir()
    assert json.loads((rank / "summary.json").read_text())["steps"] == 3


IMPORTING = """
    import sys, time
    from paceline.inprocess import import_hook
    import_hook.install({"never.imported": print})
    import first
    before = import_hook.imports.spent_ns
    import second, third
    time.sleep(0.6)
    import fourth
    print(import_hook.imports.spent_ns - before)
"""


def test_how_long_imports_take_is_told(tmp_path):
    """Two modules of 50 ms each count in full; what the program does between imports counts with 0.1 s at most."""
    for name in ("first", "second", "third", "fourth"):
        (tmp_path / f"{name}.py").write_text("import time; time.sleep(0.05)\n")
    spent_ns = out_of(IMPORTING, tmp_path, path=(SRC, tmp_path))
    assert 0.15e9 <= spent_ns <= 0.3e9


TWO_WAIT = """
    import json
    from paceline.inprocess import import_hook
    told = []
    for name in ("one", "other"):
        import_hook.install({"wanted": lambda module, name=name: told.append(name)})
    import wanted
    print(json.dumps([sorted(told), wanted.VALUE]))
"""


def test_two_may_wait_for_one_module(tmp_path):
    (tmp_path / "wanted.py").write_text("VALUE = 5\n")
    assert out_of(TWO_WAIT, tmp_path, path=(SRC, tmp_path)) == [["one", "other"], 5]
