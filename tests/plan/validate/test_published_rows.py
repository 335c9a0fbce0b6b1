from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.cases import PUBLISHED

from paceline.core.errors import UsageError
from paceline.plan.cost.constants import fitted
from paceline.plan.validate.accuracy import validate
from paceline.plan.validate.prediction import predict_rows
from paceline.plan.validate.published_rows import parse_number, parse_row, read_rows

BASE = {
    "id": "1",
    "source": "somewhere",
    "framework": "Megatron-LM",
    "model": "GPT-7.5B",
    "arch": "gpt",
    "params_b": "7.5",
    "layers": "36",
    "hidden": "4096",
    "heads": "32",
    "seq_len": "2048",
    "gpu": "A100-80GB-SXM",
    "n_gpus": "128",
    "gpus_per_node": "8",
    "tp": "4",
    "micro_batch": "16",
    "global_batch": "512",
    "precision": "fp16",
    "act_ckpt": "full",
    "year": "2021",
    "iter_time_s": "3.7",
}


def test_a_row_becomes_a_case():
    row = parse_row(BASE)
    (case,) = row.cases
    assert (case.layout.tp, case.layout.dp, case.training.micro_steps) == (4, 32, 1)
    assert (case.training.recompute, case.training.attention, case.training.overlap_reduce) == ("full", "plain", False)
    assert row.step_s == 3.7


def test_what_was_measured_is_never_read():
    measured = (
        "iter_time_s",
        "tflops_per_gpu",
        "mfu_pct",
        "hfu_pct",
        "tokens_per_s_per_gpu",
        "samples_per_s",
        "peak_mem_gib",
    )
    other = {**BASE, **dict.fromkeys(measured, "123"), "status": "OOM"}
    bare = {**BASE, **dict.fromkeys(measured, ""), "status": ""}
    assert parse_row(other).cases == parse_row(bare).cases == parse_row(BASE).cases
    known = fitted().constants
    assert predict_rows([parse_row(other)], known)[0].step_s == predict_rows([parse_row(bare)], known)[0].step_s


@pytest.mark.parametrize(
    ("column", "figure", "seconds"),
    [("tokens_per_s_per_gpu", "2000", 512 * 2048 / 2000 / 128), ("samples_per_s", "64", 8.0)],
)
def test_any_published_rate_gives_the_step(column, figure, seconds):
    assert parse_row({**BASE, "iter_time_s": "", column: figure}).step_s == pytest.approx(seconds)


def test_an_open_micro_batch_leaves_every_size_that_fits_the_batch():
    row = parse_row({**BASE, "micro_batch": ""})
    assert [case.training.micro_batch for case in row.cases] == [1, 2, 4, 8, 16]
    chosen = predict_rows([row], fitted().constants)[0]
    assert "micro-batch" in chosen.assumed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "Voodoo 2"}, "no GPU is called"),
        ({"gpu": ""}, "the row does not name the GPU"),
        ({"n_gpus": "-8"}, "n_gpus is '-8'"),
        ({"n_gpus": "12.5"}, "must be a whole number"),
        ({"n_gpus": "130"}, "cannot be split evenly by tp=4"),
        ({"layers": "many"}, "layers is 'many'"),
        ({"layers": "", "hidden": "", "params_b": ""}, "give --layers --hidden"),
        ({"micro_batch": "", "global_batch": ""}, "neither a micro-batch"),
        ({"micro_batch": "nonsense"}, "micro_batch"),
        (
            {"tp": "", "n_gpus": "128", "params_b": "52", "layers": "64", "hidden": "8192"},
            "contains no parallel layout",
        ),
        ({"model": "Mystery", "arch": "moe"}, "is unknown"),
        ({"gpu": "T4", "precision": "fp8"}, "T4 does not support fp8"),
        ({"iter_time_s": "inf"}, "iter_time_s"),
    ],
)
def test_a_row_that_makes_no_sense_has_its_reason(changes, reason):
    row = parse_row({**BASE, **changes})
    assert reason in row.reason
    (found,) = predict_rows([row], fitted().constants)
    assert (found.step_s, found.reason) == (None, row.reason)


@pytest.mark.parametrize(
    ("name", "memory", "card"),
    [
        ("V100-SXM2", "16", "V100-16GB-SXM2"),
        ("V100", "", "V100-32GB-SXM2"),
        ("A100", "40", "A100-40GB-SXM"),
        ("A100-40GB", "", "A100-40GB-SXM"),
        ("A100 80GB PCIe", "", "A100-80GB-PCIe"),
        ("H100", "80", "H100-SXM"),
        ("H100-96GB-HBM2e", "95", "H100-96GB-HBM2e-500W"),
        ("GB200 NVL72", "", "GB200"),
        ("B200", "", "B200-SXM"),
        ("MI300X", "", "MI300X"),
    ],
)
def test_cards_are_understood(name, memory, card):
    (case,) = parse_row({**BASE, "gpu": name, "gpu_mem_gib": memory}).cases
    assert case.cluster.gpu.name == card


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [
        ("1600Gbps/node RoCE", 200),
        ("8x HDR IB/node (Selene)", 200),
        ("8x HDR200 IB/node (Selene)", 200),
        ("4x Omni-Path 100Gb/s per node", 50),
        ("400Gb/s RDMA per GPU", 400),
        ("", None),
        ("carrier pigeons", None),
    ],
)
def test_networks_are_understood(text, gigabytes):
    found = parse_row({**BASE, "network": text}).cases[0].cluster.network_bytes_per_s
    assert found == (None if gigabytes is None else gigabytes * 1e9)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(BASE)), st.text(max_size=12) | st.integers().map(str) | st.floats().map(str))
)
def test_no_text_breaks_a_row(changes):
    row = parse_row({**BASE, **changes})
    assert bool(row.cases) != bool(row.reason)


def test_a_file_that_is_none_of_ours_is_refused(tmp_path):
    for name, content in (("a.csv", b"x,y\n1,2\n"), ("b.csv", b""), ("c.csv", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError):
            read_rows(tmp_path / name)
    with pytest.raises(UsageError):
        read_rows(tmp_path / "missing.csv")


def test_short_and_long_lines_are_rows_too(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("source,gpu,n_gpus\na\nb,H100,8,9,10\n", encoding="utf-8")
    assert [row.reason != "" for row in read_rows(path)] == [True, True]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_spreadsheets_have_delimiters_marks_and_capitals_of_their_own(tmp_path, delimiter):
    path = tmp_path / "rows.csv"
    lines = ["GPU,n_gpus , Model,seq_len,micro_batch,mine", "H100-SXM,8,Llama-3.1-8B,8192,1,x"]
    path.write_text("\n".join(lines).replace(",", delimiter), encoding="utf-8-sig")
    (row,) = read_rows(path)
    assert (row.reason, row.cases[0].model.seq) == ("", 8192)


def test_a_comma_is_of_thousands_and_never_of_decimals():
    assert parse_number({"seconds": "1,234,567.5"}, "seconds") == 1234567.5
    for text in ("6,0", "12,3456", "1,23"):
        with pytest.raises(UsageError, match="must be a number above zero; use a point for decimals"):
            parse_number({"seconds": text}, "seconds")


def test_the_published_rows_are_read():
    rows = read_rows(PUBLISHED)
    assert len(rows) == 508
    assert sum(bool(row.reason) for row in rows) < 20


def test_networks_have_memory_in_the_kind_of_their_source_and_may_run_out():
    row = {"source": "s", "framework": "PyTorch DDP", "model": "ResNet-50", "gpu": "V100-16GB-SXM2", "n_gpus": "8"}
    small, large = (
        parse_row(
            {**row, "micro_batch": str(size), "global_batch": str(8 * size), "precision": "fp32", "status": status}
        )
        for size, status in ((64, "ok"), (256, "OOM"))
    )
    report = validate([small, large], fitted())
    assert (report.oom.right, report.oom.wrong_fits, report.oom.wrong_ooms) == (2, 0, 0)
    first = report.predictions[0]
    assert first.memory_bytes == pytest.approx(first.needed_bytes - fitted().constants.context)  # reserved
    unsaid = parse_row({**row, "precision": "fp32"})  # as many pictures as fit
    assert 64 <= unsaid.cases[0].training.micro_batch < 256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"precision": "int3"}, "unknown precision"),
        ({"tp": "8", "pp": "2", "dp": "32"}, "take more than 128"),
        ({"n_gpus": "", "tp": ""}, "neither n_gpus nor an axis"),
        (dict.fromkeys(("model", "arch", "params_b", "layers", "hidden"), ""), "unknown model"),
    ],
)
def test_nonsense_has_its_reason(change, said):
    assert said in parse_row({**BASE, **change}).reason


def test_what_a_row_leaves_out_is_taken_from_the_rest():
    assert parse_row({**BASE, "source": ""}).source == "unnamed"
    assert parse_row({**BASE, "n_gpus": "", "dp": "32"}).cases[0].cluster.count == 128
    old = parse_row({**BASE, "gpu": "V100-32GB-SXM2", "precision": ""})
    assert old.cases[0].training.precision == "fp16"
