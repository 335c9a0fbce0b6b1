from __future__ import annotations

import json

import pytest

from paceline.cli import main


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *args])
    return ended.value.code


def test_a_plan_is_told_and_written(tmp_path, capsys):
    record, recipe = tmp_path / "plan.json", tmp_path / "recipe.toml"
    page = tmp_path / "plan.html"
    args = ("--batch", "256", "--target-tokens", "10b", "--json", str(record), "--recipe", str(recipe))
    args += ("--html", str(page))
    assert run("llama-3-8b", "--gpus", "2xp5.48xlarge", *args) == 0
    out = capsys.readouterr().out
    assert "best: layout" in out
    assert "2026-07-20" in out  # each price with its date
    written = json.loads(record.read_text(encoding="utf-8"))
    assert written["schema"] == "paceline.plan/1"
    assert sum(written["best"]["step_parts_s"].values()) == pytest.approx(written["best"]["step_s"])
    assert f'layout = "{written["best"]["layout"]}"' in recipe.read_text(encoding="utf-8")
    assert "8 B per weight (adamw)" in recipe.read_text(encoding="utf-8")
    assert written["states"]["optimizer_bytes"] == 8
    assert 0 < written["best"]["flops"]["mfu_causal"] < written["best"]["flops"]["mfu_full"] < 1
    assert "Llama-3-8B on 2 x aws/p5.48xlarge" in page.read_text(encoding="utf-8")


def test_a_pipeline_says_how_its_stages_take_turns(tmp_path, capsys):
    record, recipe = tmp_path / "plan.json", tmp_path / "recipe.toml"
    args = ("--layout", "dp=4,pp=4", "--schedule", "interleaved", "--batch", "256")
    out = ("--json", str(record), "--recipe", str(recipe))
    assert run("llama-3-8b", "--gpus", "16xH100-SXM", *args, *out) == 0
    assert "interleaved with 2 stages per rank" in capsys.readouterr().out
    pipeline = json.loads(record.read_text(encoding="utf-8"))["best"]["pipeline"]
    assert (pipeline["schedule"], sum(pipeline["stage_blocks"])) == ("interleaved", 32)
    assert len(pipeline["rank_memory_bytes"]) == 4
    assert 0 < pipeline["idle"] < 0.2
    assert 'schedule = "interleaved"' in recipe.read_text(encoding="utf-8")


def test_numbers_do_for_a_model(capsys):
    numbers = ("--params", "1.3b", "--layers", "24", "--hidden", "2048", "--heads", "16", "--seq", "2048")
    assert run("for", *numbers, "--gpus", "8xA100-80GB-SXM", "--batch", "64", "--layout", "shard=8") == 0
    assert "best: layout shard=8" in capsys.readouterr().out


def test_what_fits_nowhere_ends_with_1(tmp_path, capsys):
    one = ("llama-3-70b", "--gpus", "1xT4", "--precision", "fp16", "--batch", "1")
    assert run(*one, "--recipe", str(tmp_path / "never.toml")) == 1
    told = capsys.readouterr()
    assert "no layout fits in memory with a probability of at least 0.9" in told.out
    assert "never.toml was not written" in told.err
    assert not (tmp_path / "never.toml").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("llama-3-8b",), "give either --gpus"),
        (("llama-3-8b", "--gpus", "8xH100-SXM", "--catalogue"), "give either --gpus"),
        (("llama-3-8b", "--catalogue"), "--target-tokens"),
        (("nonsense", "--gpus", "8xH100-SXM"), "neither a config.json"),
        (("llama-3-8b", "--gpus", "8xA100-80GB-SXM", "--precision", "fp8"), "does not support fp8"),
        (("llama-3-8b", "--gpus", "8xH100-SXM", "--layout", "dp=3"), "needs 3 GPUs"),
        (("llama-3-8b", "--gpus", "7xH100-SXM", "--layout", "tp=7"), "tp=7 does not divide the 32 attention heads"),
        (("mixtral-8x7b", "--gpus", "8xH100-SXM", "--layout", "dp=8,ep=3"), "ep=3 does not divide the 8 experts"),
        (("llama-3-8b", "--gpus", "8xH100-SXM", "--deadline", "3"), "--catalogue"),
        (
            ("llama-3-8b", "--gpus", "8xB200-SXM", "--precision", "fp4", "--recipe", "never.toml"),
            "does not support fp4",
        ),
        (
            ("llama-3-8b", "--gpus", "8xH100-SXM", "--target-tokens", "1t", "--target-samples", "5"),
            "exclude each other",
        ),
        (("validate", "missing.csv"), "cannot read"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_2(args, message, capsys):
    assert run(*args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_prices_of_ones_own_take_the_place_of_the_table(tmp_path, capsys):
    prices = tmp_path / "prices.csv"
    columns = "provider,instance_type,region,gpu,gpu_count,vram_mib_per_gpu,vcpus,mem_gib,on_demand_usd_h,spot_usd_h"
    columns += ",interruption_band_2025_06,price_source,spot_source"
    row = "ours,rack-1,cellar,H100,8,81920,128,2048,12.5,,,our contract 2026-11-01,"
    prices.write_text(f"{columns}\n{row}\n", encoding="utf-8")
    assert (
        run("llama-3-8b", "--gpus", "1xrack-1", "--prices", str(prices), "--target-tokens", "1b", "--batch", "64") == 0
    )
    assert "12.50 USD/h; our contract 2026-11-01" in capsys.readouterr().out
    prices.write_text("provider\nours\n", encoding="utf-8")
    assert run("llama-3-8b", "--gpus", "1xrack-1", "--prices", str(prices)) == 2
    assert "has no column" in capsys.readouterr().err


def test_a_card_without_bf16_is_planned_in_fp16(capsys):
    assert run("llama-3.2-1b", "--gpus", "8xV100-32GB-SXM2", "--batch", "64", "--seq", "2048") == 0
    assert "dense fp16" in capsys.readouterr().out


def test_an_optimizer_keeps_what_it_keeps(tmp_path):
    from paceline.cli.plan.for_ import _OPTIMIZERS
    from paceline.plan.search.wish import OPTIMIZER_BYTES

    assert set(_OPTIMIZERS.choices) == set(OPTIMIZER_BYTES)
    record = tmp_path / "plan.json"
    one = ("llama-3.2-1b", "--gpus", "1xH100-SXM", "--batch", "8", "--micro-batch", "1", "--json", str(record))
    held = {}
    for name in ("adamw", "sgd-momentum"):
        assert run(*one, "--optimizer", name) == 0
        held[name] = json.loads(record.read_text(encoding="utf-8"))["best"]["memory_parts_bytes"]["optimizer"]
    assert held["adamw"] == 2 * held["sgd-momentum"] > 0


TARGET = ("--target-tokens", "1b", "--batch", "64")


def test_a_short_table_of_prices_will_do_and_offers_have_intervals(tmp_path, capsys):
    prices, record = tmp_path / "prices.csv", tmp_path / "offers.json"
    prices.write_text(
        "instance_type,gpu,gpu_count,on_demand_usd_h\nbox,H100-SXM,8,12.5\nold,T4,4,1\n", encoding="utf-8"
    )
    assert run("llama-3-8b", "--catalogue", "--prices", str(prices), *TARGET, "--json", str(record)) == 0
    out = capsys.readouterr().out
    assert " x own/box " in out
    assert "your own price table, which names no source" in out
    assert "GPU without bf16" in out
    offer = json.loads(record.read_text(encoding="utf-8"))["offers"][0]
    assert offer["usd_low"] < offer["usd"] < offer["usd_high"]
    assert offer["hours"] / offer["hours_low"] == pytest.approx(offer["usd_high"] / offer["usd"])


@pytest.mark.parametrize(
    ("row", "said"), [("box,H100-SXM,8,-5", "'-5'"), ("box,H100-SXM,eight,5", "'eight'"), ("box,H100-SXM,8,nan", "nan")]
)
def test_a_price_that_is_none_is_refused_with_its_line(tmp_path, capsys, row, said):
    prices = tmp_path / "prices.csv"
    prices.write_text(f"instance_type,gpu,gpu_count,on_demand_usd_h\n{row}\n", encoding="utf-8")
    assert run("llama-3-8b", "--catalogue", "--prices", str(prices), *TARGET) == 2
    error = capsys.readouterr().err
    assert "line 2" in error
    assert said in error
