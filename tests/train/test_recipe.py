"""Do settings come together from a file, the command line and arguments, and is the whole checked at once?"""

from __future__ import annotations

import argparse

import pytest

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.recipe import Recipe, add_arguments, from_arguments, made, read


def from_line(*words: str) -> Recipe:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(words))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('layout = "pp=2"\n[precision]\nautocast = "bf16"\n[memory]\nmicro_batches = 4\nselective = true\n')
    return path


def test_a_file_has_tables_of_the_parts(file):
    recipe = read(file)
    assert recipe.layout == Layout(pp=2)
    assert (recipe.precision.autocast, recipe.memory.micro_batches, recipe.memory.selective) == ("bf16", 4, True)
    assert recipe.optimizer.clip_norm is None


def test_flags_go_before_the_file(file):
    recipe = from_line("--recipe", str(file), "--precision", "tf32", "--accumulate", "8", "--clip-norm", "0.5")
    assert (recipe.precision.autocast, recipe.precision.tf32) == (None, True)
    assert (recipe.memory.micro_batches, recipe.memory.selective) == (8, True)
    assert (recipe.optimizer.clip_norm, recipe.layout) == (0.5, Layout(pp=2))
    assert from_line("--checkpoint-activations", "0.25").memory.activation_budget == 0.25
    assert from_line("--compile").compute.compile == "default"
    assert from_line("--compile", "max-autotune").compute.compile == "max-autotune"
    assert from_line("--ema", "0.999").ema.decay == 0.999
    assert from_line("--timeout-s", "90").process_group.timeout_s == 90
    assert from_line() == Recipe()


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize(("layout", "parts"), [("pp=2", 4), ("dp=2,pp=4", 8), ("tp=2,shard=2", 1)])
def test_a_pipeline_takes_enough_micro_batches_by_default(layout, parts, schedule):
    assert from_line("--layout", layout, "--schedule", schedule).micro_batches == parts
    assert from_line("--layout", layout, "--schedule", schedule, "--accumulate", "16").micro_batches == 16


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"loader": {"num_workers": 2}}, r"no table \[loader\]; it has layout"),
        ({"memory": {"nonsense": 2}}, r"no setting memory\.nonsense; \[memory\] has micro_batches"),
        ({"precision": {"autocast": "fp8"}}, "precision.autocast = 'fp8' is not allowed; it takes 'bf16' or 'fp16'"),
        ({"precision": {"fp8": True}}, "set precision.autocast = 'bf16' for all other operations"),
        (
            {"layout": "tp=2", "precision": {"autocast": "bf16", "fp8": True}},
            "precision fp8 with layout tp=2: fp8 supports only dp and shard",
        ),
        ({"pipeline": {"balance": "guessed"}}, "it takes counted, measured"),
        ({"layers": {"devices": "cuda:0"}}, "it takes a list such as"),
        ({"layers": {"devices": ["cuda:0"]}}, "give at least two devices"),
        ({"layout": "dp=2", "layers": {"devices": ["cpu", "cpu"]}}, r"\[layers\] is for one process; set pp=2"),
        ({"memory": {"micro_batches": 0}}, "whole number from 1 on"),
        ({"memory": {"selective": True, "checkpoint_every": 1}}, "exclude each other; set only one"),
        ({"memory": {"activation_budget": 2}}, "share from 0 to 1"),
        ({"optimizer": {"clip_norm": 0}}, "a number above 0"),
        (
            {"compute": {"compile": "fast"}},
            "compute.compile = 'fast' is not allowed; it takes default,",
        ),
        ({"compute": {"num_threads": 2}}, r"no setting compute.num_threads; \[compute\] has compile"),
        (
            {"compute": {"compile": "default"}, "layout": "tp=2"},
            "combined with layout tp=2; use dp and shard",
        ),
        (
            {"compute": {"compile": "reduce-overhead"}, "layout": "shard=2"},
            "with layout shard=2; use compute.compile = 'default'",
        ),
        (
            {"compute": {"compile": "default"}, "memory": {"activation_budget": 0.5}},
            "with memory.activation_budget; use memory.checkpoint_every",
        ),
        ({"compute": {"compile": "default"}, "layers": {"devices": ["cpu", "cpu"]}}, r"with \[layers\]"),
        (
            {"process_group": {"timeout_s": 0}},
            "process_group.timeout_s = 0 is not allowed; it takes a number",
        ),
        ({"pipeline": {"schedule": "zb"}}, "it takes gpipe, 1f1b, interleaved, zero-bubble"),
        (
            {"layout": "pp=4", "memory": {"micro_batches": 1}},
            r"pp=4 with 1 micro-batches: 1f1b takes at least 4; .*--accumulate\) to 8",
        ),
        (
            {"layout": "pp=2", "memory": {"micro_batches": 3}, "pipeline": {"schedule": "interleaved"}},
            "a multiple of 2",
        ),
    ],
)
def test_what_is_wrong_is_named(content, says):
    with pytest.raises(UsageError, match=says):
        made(content)


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ("optimizer", "clip_norm"),
        ("memory", "activation_budget"),
        ("local", "outer_lr"),
        ("ddp", "find_unused_parameters"),
        ("process_group", "timeout_s"),
    ],
)
def test_a_text_where_a_number_belongs_is_named(table, setting):
    with pytest.raises(UsageError, match=f"{table}.{setting} = 'half'"):
        made({table: {setting: "half"}})


def test_words_of_the_command_line_are_named():
    with pytest.raises(UsageError, match="choose one of fp32, tf32, bf16, fp16, fp8"):
        from_line("--precision", "half")
    with pytest.raises(UsageError, match="none, full, selective, or a share"):
        from_line("--checkpoint-activations", "some")
