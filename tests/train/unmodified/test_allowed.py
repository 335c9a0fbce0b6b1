"""GPUs that a layout may use: those of the machine whose device file this process may open."""

from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.unmodified import allowed


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Four GPUs, of which the device file of 1 is missing, as in a container, and that of 2 may not be opened."""
    monkeypatch.setattr(allowed, "_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(allowed, "_DEVICES", tmp_path / "dev", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for number in range(4):
        place = tmp_path / "gpus" / f"0000:0{number}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {number}\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    (tmp_path / "dev" / "nvidia2").mkdir()
    (tmp_path / "dev" / "nvidia3").touch()


def test_hidden_gpus_do_not_count(machine):
    with pytest.raises(UsageError, match="takes 4 GPUs, and there are 2; give dp=2"):
        allowed.check_goes_with(Layout(dp=4), {}, any_command=False)
    allowed.check_goes_with(Layout(dp=2), {}, any_command=False)


def test_an_old_driver_that_gives_no_device_file_counts_all(machine, tmp_path):
    for each in (tmp_path / "gpus").iterdir():
        (each / "information").write_text("Model: NVIDIA H200\n")
    allowed.check_goes_with(Layout(dp=4), {}, any_command=False)
