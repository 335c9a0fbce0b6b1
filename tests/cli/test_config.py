"""Are settings taken in the order promised, and is it shown where each is from?"""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tests.cli.conftest import call

from paceline.cli import group
from paceline.cli.base.settings import options_of, settings_file, settings_map
from paceline.core.errors import UsageError

FILE = '[run]\nprice = 2.5\ntarget_loss = 0.5\ndir = "kept"\nno_profile = true\n[compare]\ntolerance = "3%"\n'


def config(place: Path, *arguments: str, **environment: str) -> dict[str, list[str]]:
    """The settings shown, each with its value and origin."""
    done = call("config", *arguments, cwd=place, **environment)
    assert done.returncode == 0, done.stderr
    lines = [line.split("  ") for line in done.stdout.splitlines() if "." in line.split("  ")[0].split()[0]]
    return {parts[0]: [part.strip() for part in parts[1:] if part.strip()] for parts in lines}


def test_defaults(tmp_path: Path) -> None:
    found = config(tmp_path, "--all")
    assert found["run.price"] == ["not set", "default"]
    assert found["run.profile"] == ["not set", "default"]
    assert found["run.no_profile"] == ["no", "default"]
    assert found["compare.tolerance"] == ["0.05", "default"]


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "paceline.toml"
    file.write_text(FILE)
    found = config(tmp_path, "run", "--price", "4", PACELINE_RUN_PRICE="3", PACELINE_RUN_TARGET_LOSS="0.1")
    assert found["run.price"] == ["4.0", "--price"]
    assert found["run.target_loss"] == ["0.1", "PACELINE_RUN_TARGET_LOSS"]
    assert found["run.dir"] == ["kept", str(file)]
    assert found["run.no_profile"] == ["yes", str(file)]
    assert not any(name.startswith("compare") for name in found)


def test_a_misspelled_variable_is_told(tmp_path: Path) -> None:
    done = call("config", "tune", cwd=tmp_path, PACELINE_TUNE_BUGDET="3", PACELINE_TUNE_OF_ANOTHER_TOOL="1")
    assert done.stderr.splitlines() == [
        "paceline: PACELINE_TUNE_BUGDET is no setting and has no effect; did you mean PACELINE_TUNE_BUDGET?"
    ]
    assert "tune.budget          600 s  " in done.stdout


def test_project_file_from_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.paceline.compare]\ntolerance = "3%"\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert config(below)["compare.tolerance"] == ["0.03", str(tmp_path / "pyproject.toml")]


def test_own_file_goes_before_the_project_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.paceline.run]\nprice = 1\n")
    (tmp_path / "paceline.toml").write_text("[run]\nprice = 2\n")
    assert settings_file(tmp_path) == tmp_path / "paceline.toml"
    assert settings_map(tmp_path) == {"run": {"price": 2}}


def test_settings_reach_the_verb(tmp_path: Path) -> None:
    (tmp_path / "paceline.toml").write_text('[report]\ndir = "kept"\n')
    assert "no runs in kept" in call("report", cwd=tmp_path).stderr
    assert "no runs in mine" in call("report", cwd=tmp_path, PACELINE_REPORT_DIR="mine").stderr
    assert "no runs in flag" in call("report", "--dir", "flag", cwd=tmp_path, PACELINE_REPORT_DIR="mine").stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[run]\nprise = 2.5\n", "[run] has no setting 'prise'; did you mean price?"),
        ("[run]\nzzz = 2.5\n", "its settings are recipe, json, markdown"),
        ("run = 3\n", "must be a table such as [run]"),
        ("[run\n", "is not valid TOML"),
        ('[run]\nprice = "dear"\n', "--price: 'dear' is not a number (from the settings file);"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "paceline.toml").write_text(content)
    for verb in (["config"], ["run", "train.py"]):
        done = call(*verb, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_table_of_no_verb_is_told(tmp_path: Path) -> None:
    (tmp_path / "paceline.toml").write_text("[rum]\nprice = 1\n")
    done = call("config", cwd=tmp_path)
    assert done.returncode == 0
    assert "[rum] in the settings file belongs to no command and has no effect; did you mean [run]?" in done.stderr


def test_a_wrong_value_of_a_variable_names_the_variable(tmp_path: Path) -> None:
    done = call("run", "train.py", cwd=tmp_path, PACELINE_RUN_PRICE="dear")
    assert "--price: 'dear' is not a number (from the environment variable PACELINE_RUN_PRICE);" in done.stderr


def test_verb_without_settings(tmp_path: Path) -> None:
    done = call("config", "explain", cwd=tmp_path)
    assert done.returncode == 2
    assert "run, tune, trace, plan for" in done.stderr
    assert "did you mean `paceline config tune`?" in call("config", "tuen", cwd=tmp_path).stderr


def test_every_verb_with_options_has_settings(tmp_path: Path) -> None:
    (tmp_path / "paceline.toml").write_text('[tune]\nbudget = "5m"\n[data.convert]\nseed = 3\n[plan.for]\nbatch = 8\n')
    found = config(tmp_path, "tune", "--trials", "7")
    assert found["tune.budget"] == ["300 s", str(tmp_path / "paceline.toml")]
    assert found["tune.trials"] == ["7", "--trials"]
    assert config(tmp_path, "data", "convert")["data.convert.seed"] == ["3", str(tmp_path / "paceline.toml")]
    assert config(tmp_path, "plan", "for", PACELINE_PLAN_FOR_SEQ="64")["plan.for.seq"] == [
        "64",
        "PACELINE_PLAN_FOR_SEQ",
    ]
    assert config(tmp_path)["plan.for.batch"] == ["8", str(tmp_path / "paceline.toml")]
    assert "tune.trials" not in config(tmp_path)


def test_settings_reach_a_verb_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "paceline.toml").write_text('[plan.for]\ngpus = "8xNoSuchCard"\n')
    assert "nosuchcard" in call("plan", "llama-3-8b", cwd=tmp_path).stderr
    (tmp_path / "paceline.toml").write_text("[plan.for]\ngpu = 1\n")
    assert "[plan.for] has no setting 'gpu'; did you mean gpus?" in call("plan", "llama-3-8b", cwd=tmp_path).stderr


@pytest.mark.parametrize("verb", ["run", "report", "compare"])
def test_every_option_is_a_setting_named_for_its_flag(verb: str) -> None:
    with click.Context(group) as ctx:
        command = group.get_command(ctx, verb)
    assert command is not None
    for key, option in options_of(command).items():
        assert f"--{key.replace('_', '-')}" in option.opts
        assert option.envvar == f"PACELINE_{verb}_{key}".upper()


def test_bad_toml_elsewhere_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        settings_map(tmp_path)
