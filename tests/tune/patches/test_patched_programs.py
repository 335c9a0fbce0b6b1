"""Patches of programs as others write them: each setting is changed in its place, and the loss stays the recipe's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.inprocess.conftest import environment_of

from paceline.tune.equivalence.patched_source import _loader_of
from paceline.tune.patches.model import Patch, SourceFile, diff_of, write
from paceline.tune.patches.patch import patched
from paceline.tune.patches.source.configs import ConfigFile, configs_of
from paceline.tune.patches.source.sources import sources_of

PROGRAMS = Path(__file__).parent / "programs_of_others"
WORKERS = {"loader": {"num_workers": 2}}
KEPT = {"loader": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}}


@dataclass(frozen=True)
class Truth:
    """What the patch for two workers changes."""

    added: Sequence[str]
    files: Sequence[str] = ("train.py",)
    arguments: Sequence[str] = ()
    needs: Sequence[str] = ()
    stays: Sequence[str] = ()  # of KEPT


TRUTHS = {
    "accelerated": Truth(
        ['parser.add_argument("--num_workers", type=int, default=2, help="Workers of each dataloader.")'],
        needs=["accelerate"],
        stays=["loader.persistent_workers"],
    ),
    "config_class": Truth(["num_workers = 2"]),
    "dataclass_fields": Truth(["num_workers: int = 2"], files=["config.py"]),
    "hydra_groups": Truth(
        ["num_workers: 2  # in the main process"], files=["conf/data/digits.yaml"], needs=["hydra", "omegaconf"]
    ),
    "json_wrapper": Truth(
        ['"num_workers": 2'],
        files=["config.json"],
        arguments=["-c", "config.json"],
        stays=["loader.persistent_workers"],
    ),
    "lightning_module": Truth(["def __init__(self, batch_size: int = 8, num_workers: int = 2):"], needs=["lightning"]),
    "options_module": Truth(
        ['parser.add_argument("--num_threads", default=2, type=int, help="# threads for loading data")'],
        files=["options/base_options.py"],
    ),
    "partial_loader": Truth(["make_loader = partial(DataLoader, batch_size=8, drop_last=True, num_workers=2)"]),
    "trainer_json": Truth(
        ['"report_to": "none",', '"dataloader_num_workers": 2'],
        files=["args.json"],
        arguments=["args.json"],
        needs=["transformers"],
        stays=["loader.persistent_workers"],
    ),
    "update_kwargs": Truth(['train_loader = DataLoader(dataset1, shuffle=True, **{**train_kwargs, "num_workers": 2})']),
    "yaml_file": Truth(["num_workers: 2"], files=["configs/base.yaml"]),
}


def patch_of(name: str, folder: Path, recipe: dict[str, dict[str, object]], *more: str) -> Patch:
    command = ["python", "train.py", *TRUTHS[name].arguments, *more]
    sources = sources_of(command, folder, {})
    return patched(sources, recipe, command, configs_of(sources, command, folder))


def added(patch: Patch) -> list[str]:
    lines = diff_of(patch).splitlines()
    return [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_the_number_of_workers_is_changed_where_it_comes_from(name):
    truth, patch = TRUTHS[name], patch_of(name, PROGRAMS / name, WORKERS)
    assert sorted(str(before.path) for before, _ in patch.changed) == sorted(truth.files)
    assert added(patch) == list(truth.added)
    assert [one.setting for one in patch.stays] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_the_patched_program_computes_what_it_computes_under_the_recipe(name, tmp_path):
    truth = TRUTHS[name]
    if any(find_spec(module) is None for module in truth.needs):
        pytest.skip(f"{', '.join(truth.needs)} not installed")
    sides = {side: tmp_path / side / name for side in ("recipe", "patch")}
    for folder in sides.values():
        shutil.copytree(PROGRAMS / name, folder)
    patch = patch_of(name, sides["patch"], KEPT)
    assert [one.setting for one in patch.stays] == list(truth.stays)
    write(patch, sides["patch"])
    runs = [run(sides["recipe"], KEPT, truth), run(sides["patch"], {}, truth)]
    assert [done.returncode for done in runs] == [0, 0], runs[1].stderr
    losses = [[line for line in done.stdout.splitlines() if "0x" in line] for done in runs]
    assert losses[1] == losses[0]
    assert len(losses[0]) >= 3
    loader = _loader_of(sides["patch"] / "record")
    wanted = {key: value for key, value in KEPT["loader"].items() if f"loader.{key}" not in truth.stays}
    assert {key: loader[key] for key in wanted} == wanted


def run(folder: Path, recipe: dict[str, dict[str, object]], truth: Truth) -> subprocess.CompletedProcess[str]:
    environment = environment_of(folder / "record", recipe) | {"PACELINE_PROFILE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "train.py", *truth.arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def of_text(text: str, *arguments: str, **configs: str) -> Patch:
    """The patch for two workers of a script that is in no file, with its configuration files."""
    source = SourceFile(path=Path("train.py"), text=f"{HEAD}{text}", is_script=True)
    files = [ConfigFile(SourceFile(path=Path(f"{name}.yaml"), text=content)) for name, content in configs.items()]
    return patched([source], WORKERS, ["python", "train.py", *arguments], files)


HEAD = "import argparse, os, yaml\nfrom torch.utils.data import DataLoader\n"
READS = "cfg = yaml.safe_load(open('c.yaml'))\nloader = DataLoader(d, num_workers=cfg['data']['workers'])\n"
SECTION = "data:\n  workers: 0\n"


@pytest.mark.parametrize(
    "text, arguments, configs, why",
    [
        ("loader = DataLoader(d, num_workers=int(os.environ.get('N', 0)))\n", [], {}, "set N (the environment)"),
        (READS, [], {"c": SECTION, "other": SECTION}, "data.workers (c.yaml:2) and data.workers (other.yaml:2)"),
        (READS, ["data.workers=1"], {"c": SECTION}, "set data.workers (c.yaml:2)"),
        (f"{READS}pool = Pool(cfg['data']['workers'])\n", [], {"c": SECTION}, "set data.workers (c.yaml:2)"),
        (f"{READS}if cfg['data']['workers'] > 4: crop = 8\n", [], {"c": SECTION}, "set data.workers (c.yaml:2)"),
        ("def run(workers=0):\n    workers = min(workers, 8)\n    return DataLoader(d, num_workers=workers)\nrun(4)\n"
         "run(workers=args.workers)\np = argparse.ArgumentParser()\np.add_argument('--workers', default=0)\n",
         [], {}, "set --workers for 2 workers"),
        ("loader = DataLoader(d, **options())\n", [], {}, 'add "num_workers": 2 to options()'),
        ("for n in (0, 2, 4):\n    loader = DataLoader(d, num_workers=n)\n", [], {}, "not say where it comes from"),
        ("def make(d, n):\n    return DataLoader(d, num_workers=n)\nmake(*all)\n", [], {}, "n of make() (train.py:5)"),
        ("class Mine(DataLoader):\n    def __init__(self, *args, **more):\n        super().__init__(*args, **more)\n"
         "kind = Mine if args.fast else DataLoader\nworkers = min(4, args.workers)\n"
         "loader = kind(d, num_workers=workers)\n", [], {}, ""),
        (READS, [], {"c": "data:\n  workers: ${many}\nmany: 0\n"}, "set data.workers (c.yaml:2)"),
        (READS, [], {"c": f"{SECTION}threads: ${{data.workers}}\n"}, "set data.workers (c.yaml:2)"),
    ],
    ids=["environment", "two-files", "command", "pool", "branch", "computed", "unknown-mapping", "loop", "starred",
         "choice", "refers", "referred"],
)  # fmt: skip
def test_a_value_that_is_also_something_else_stays_and_its_place_is_named(text, arguments, configs, why):
    patch = of_text(text, *arguments, **configs)
    assert patch.changed == []
    assert all(why in one.why for one in patch.stays), patch.stays
    assert patch.stays


@pytest.mark.parametrize(
    "content, section, wanted",
    [
        ("a: {batch_size: 8}\nb: 1\n", "a", "a: {batch_size: 8, num_workers: 2}\nb: 1\n"),
        ("a:\n    batch_size: 8  # small\n\nb: 1\n", "a",
         "a:\n    batch_size: 8  # small\n    num_workers: 2\n\nb: 1\n"),
        ("a:\n  c:\n    - 1\n    - 2\nb: 1\n", "a", "a:\n  c:\n    - 1\n    - 2\n  num_workers: 2\nb: 1\n"),
        ('{\n  "a": {\n    "batch_size": 8\n  }\n}\n', "a",
         '{\n  "a": {\n    "batch_size": 8,\n    "num_workers": 2\n  }\n}\n'),
        ("a:\n  batch_size: 8", "a", "a:\n  batch_size: 8\n  num_workers: 2"),
    ],
    ids=["flow", "block", "list", "json", "no-end"],
)  # fmt: skip
def test_a_key_is_added_to_the_section_that_is_unpacked(content, section, wanted):
    text = f"cfg = yaml.safe_load(open('c.yaml'))\nloader = DataLoader(d, **cfg['{section}'])\n"
    patch = of_text(text, c=content)
    assert [after.text for _, after in patch.changed] == [wanted]
    assert patch.stays == []


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("N = 0\nloader = DataLoader(d, num_workers=N)\n", "N = 2\nloader = DataLoader(d, num_workers=N)\n"),
        ("N = 0\nprint(N * 2)\nloader = DataLoader(d, num_workers=N)\n",
         "N = 0\nprint(N * 2)\nloader = DataLoader(d, num_workers=2)\n"),
        ("def make(n=0):\n    return DataLoader(d, num_workers=n)\nmake()\n",
         "def make(n=2):\n    return DataLoader(d, num_workers=n)\nmake()\n"),
        ("flags.DEFINE_integer('n', 4, 'workers')\nloader = DataLoader(d, num_workers=flags.FLAGS.n)\n",
         "flags.DEFINE_integer('n', 2, 'workers')\nloader = DataLoader(d, num_workers=flags.FLAGS.n)\n"),
        ("n = min(os.cpu_count(), 8)\nloader = DataLoader(d, num_workers=n)\n",
         "n = min(os.cpu_count(), 8)\nloader = DataLoader(d, num_workers=2)\n"),
        ("def make(n):\n    return DataLoader(d, num_workers=n)\nmake(0)\n",
         "def make(n):\n    return DataLoader(d, num_workers=n)\nmake(2)\n"),
        ("def make(**more):\n    return DataLoader(d, **more)\nmake(num_workers=0)\n",
         "def make(**more):\n    return DataLoader(d, **more)\nmake(num_workers=2)\n"),
        ("class Mine(DataLoader):\n    def __init__(self, d, **more):\n        super().__init__(d, **more)\nMine(d)\n",
         "class Mine(DataLoader):\n    def __init__(self, d, **more):\n"
         "        super().__init__(d, **more, num_workers=2)\nMine(d)\n"),
        ("class D:\n    def val_dataloader(self):\n        return DataLoader(d)\nloader = DataLoader(d)\n",
         "class D:\n    def val_dataloader(self):\n        return DataLoader(d)\n"
         "loader = DataLoader(d, num_workers=2)\n"),
        ("testloader = DataLoader(testset)\ntrainloader = DataLoader(trainset)\n",
         "testloader = DataLoader(testset)\ntrainloader = DataLoader(trainset, num_workers=2)\n"),
    ],
)  # fmt: skip
def test_constants_defaults_and_arguments_are_changed_where_they_are(text, wanted):
    patch = of_text(text)
    assert patch.after[0].text == f"{HEAD}{wanted}"
    assert patch.stays == []


@pytest.mark.parametrize(
    "text, wanted, stays",
    [
        (
            "val = DataLoader(d)\ntrain = DataLoader(d)\n",
            "val = DataLoader(d, num_workers=3)\ntrain = DataLoader(d)\n",
            0,
        ),
        ("more = {}\nval = DataLoader(d, **more)\n", "more = {}\nval = DataLoader(d, **more, num_workers=3)\n", 0),
        ("n = 0\nval = DataLoader(d, num_workers=n)\nloader = DataLoader(d, num_workers=n)\n", None, 1),
    ],
)
def test_workers_of_evaluation_are_set_in_evaluation_loaders_only(text, wanted, stays):
    source = SourceFile(path=Path("train.py"), text=f"{HEAD}{text}", is_script=True)
    patch = patched([source], {"loader": {"evaluation_workers": 3}})
    assert patch.after[0].text == f"{HEAD}{wanted or text}"
    assert ["give this loader num_workers=3" in one.why for one in patch.stays] == [True] * stays


def test_the_file_that_the_command_names_is_changed(tmp_path):
    for name in ("base", "own"):
        (tmp_path / f"{name}.yaml").write_text(SECTION)
    (tmp_path / "train.py").write_text(f"{HEAD}path = 'base.yaml'\n{READS}")
    command = ["python", "train.py", "--config", "own.yaml"]
    sources = sources_of(command, tmp_path, {})
    patch = patched(sources, WORKERS, command, configs_of(sources, command, tmp_path))
    assert [str(before.path) for before, _ in patch.changed] == ["own.yaml"]


def test_a_loader_that_hydra_creates_is_changed_in_its_section():
    content = (
        "train_loader:\n  _target_: torch.utils.data.DataLoader\n  num_workers: 0\n"
        "val_loader:\n  _target_: torch.utils.data.DataLoader\n  num_workers: 0\n"
    )
    source = SourceFile(path=Path("train.py"), text="import hydra\n", is_script=True)
    files = [ConfigFile(SourceFile(path=Path("c.yaml"), text=content))]
    recipe = {"loader": {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}}
    patch = patched([source], recipe, ["python", "train.py"], files)
    ((_, after),) = patch.changed
    assert after.text == content.replace("num_workers: 0", "num_workers: 2\n  prefetch_factor: 4", 1)
    (stays,) = patch.stays
    assert stays.setting == "loader.persistent_workers"
    given = patched([source], WORKERS, ["python", "train.py", "train_loader.num_workers=1"], files)
    assert given.changed == []
    assert "the command sets train_loader.num_workers" in given.stays[0].why
