from __future__ import annotations

import dataclasses

import pytest

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import find_instance, gpus, instances, match_gpu


def test_every_row_is_read():
    assert len(gpus()) == 33
    assert len(instances()) == 87
    assert len({gpu.name for gpu in gpus()}) == 33


def test_quantities_are_in_base_units():
    gpu = match_gpu("NVIDIA H100 80GB HBM3")
    assert gpu.peak_flops["bf16"] == 989e12
    assert gpu.memory_bytes_per_s == 3350e9
    assert gpu.nvlink_bytes_per_s == 900e9
    assert (gpu.pcie_generation, gpu.power_w) == (5, 700.0)


def test_a_format_that_a_card_lacks_is_absent():
    assert "bf16" not in match_gpu("Tesla T4").peak_flops


def test_rows_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpus()[0].name = "other"


@pytest.mark.parametrize(
    ("nvml_name", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("A100-SXM4-40GB", "A100-40GB-SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-16GB-SXM2"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA B200", "B200-SXM"),
        ("NVIDIA B300 SXM6 AC", "B300-SXM"),
    ],
)
def test_product_names(nvml_name, row):
    assert match_gpu(nvml_name).name == row


@pytest.mark.parametrize(
    "nvml_name",
    [
        "NVIDIA H100 NVL",  # 94 GB, other clocks
        "NVIDIA H200 NVL",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "GRID T4-8Q",
        "Tesla V100-PCIE-16GB",
        "NVIDIA T4G",
        "NVIDIA L40",
        "AMD Instinct MI250X",  # a device is one of its two halves
        "AMD Instinct MI300A",
        "",
    ],
)
def test_namesakes_are_not_guessed(nvml_name):
    assert match_gpu(nvml_name) is None


@pytest.mark.parametrize("name", ["AMD Instinct MI300X", "AMD Instinct MI300X OAM", "AMD Instinct MI300X VF"])
def test_amds_names_as_torch_gives_them(name):
    found = match_gpu(name)
    assert found is not None
    assert found.name == "MI300X"


def test_an_instance_by_either_name():
    assert find_instance("p5.48xlarge") is find_instance(" AWS/P5.48XLARGE ")
    assert find_instance("p5.48xlarge").gpu_count == 8
    assert "2026-07-20" in find_instance("p5.48xlarge").price_source


def test_instances_have_dated_prices():
    assert all(each.price_source for each in instances())
    assert all(each.on_demand_usd_h is None or each.on_demand_usd_h > 0 for each in instances())
    assert all(each.spot_usd_h is None or each.spot_source for each in instances())


def test_a_typo_names_the_nearest_and_the_way_out():
    with pytest.raises(UsageError) as caught:
        find_instance("p5.48large")
    message = str(caught.value)
    assert "'p5.48large'" in message
    assert "aws/p5.48xlarge (55.04 USD/h" in message
    assert "2026-07-20" in message
    assert "--price USD" in message


def test_nonsense_still_shows_a_name_to_type():
    with pytest.raises(UsageError, match=r"87 instances are known, such as aws/p5\.48xlarge"):
        find_instance("zzz")
