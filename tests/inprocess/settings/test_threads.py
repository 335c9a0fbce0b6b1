"""Datasets that several threads cannot load from at the same time: found, and the samples stay the right ones."""

from __future__ import annotations

import pytest

from paceline.inprocess.settings.sample_check import SampleCheck
from paceline.inprocess.settings.threads import one_reader

READS = """
import io, os, threading, time, torch
from torch.utils.data import DataLoader, Dataset

class Records(Dataset):
    {opens}
    def __len__(self):
        return 128
    def __getitem__(self, index):
        {reads}

if __name__ == "__main__":
    with open("records.bin", "wb") as file:
        for index in range(128):
            file.write(index.to_bytes(4, "big") * 256)
    loader = DataLoader(Records(), batch_size=4)
    print([batch.tolist() for epoch in range(3) for batch in loader])
"""
FILE_IN_A_DICT = READS.format(
    opens="def __init__(self): self.files = {}",
    reads="""file = self.files.setdefault("all", None) or self.files.__setitem__("all", open("records.bin", "rb"))
        file = self.files["all"]
        file.seek(1024 * index)
        return int.from_bytes(file.read(4), "big")""",
)
SHARED_BUFFER = READS.format(
    opens="def __init__(self): self.buffer = bytearray(1024); self.fd = None",
    reads="""self.fd = self.fd or os.open("records.bin", os.O_RDONLY)
        os.preadv(self.fd, [self.buffer], 1024 * index)
        time.sleep(0.0005)
        return int.from_bytes(self.buffer[:4], "big")""",
)
SHARED_PLACE = READS.format(
    opens="def __init__(self): self.fd = None",
    reads="""self.fd = self.fd or os.open("records.bin", os.O_RDONLY)
        os.lseek(self.fd, 1024 * index, os.SEEK_SET)
        time.sleep(0.0005)
        return int.from_bytes(os.read(self.fd, 4), "big")""",
)
FINE = READS.format(
    opens="",
    reads="""with open("records.bin", "rb") as file:
            file.seek(1024 * index)
            return int.from_bytes(file.read(4), "big")""",
)
RIGHT = str([list(range(first, first + 4)) for _ in range(3) for first in range(0, 128, 4)])
THREADS = {"loader": {"num_workers": 0, "threads": 4}}


@pytest.mark.parametrize(
    "source, why",
    [
        (FILE_IN_A_DICT, "differ"),
        (SHARED_BUFFER, "differ"),
        (SHARED_PLACE, "differ"),
    ],
    ids=["a file in a dict", "a shared buffer", "a shared file descriptor"],
)
def test_samples_that_threads_mix_up_are_found_before_training(ran, monkeypatch, source, why):
    monkeypatch.setenv("PACELINE_STRESS_SAMPLES", "1")
    changed = ran(source, THREADS)
    assert (changed.code, changed.out.strip()) == (0, RIGHT), changed.err
    assert why in changed.refused["loader.threads"]


def test_samples_that_threads_mix_up_are_found_while_training_goes_on(ran):
    """Without the check before: some batches may be wrong until one of the compared samples is."""
    changed = ran(SHARED_BUFFER, THREADS)
    assert "differ" in changed.refused["loader.threads"]
    assert changed.out.strip().endswith(RIGHT[-200:])


def test_samples_that_threads_load_rightly_are_left_to_threads(ran, monkeypatch):
    monkeypatch.setenv("PACELINE_STRESS_SAMPLES", "1")
    changed = ran(FINE, THREADS)
    assert (changed.code, changed.out.strip()) == (0, RIGHT), changed.err
    assert "loader.threads" in changed.held and "loader.threads" not in changed.refused


class Reader:
    __slots__ = ("file",)

    def __init__(self, file):
        self.file = file


class Holder:
    def __init__(self, held):
        self.held = held


def test_an_open_file_is_found_wherever_a_dataset_holds_it(tmp_path):
    with open(tmp_path / "file", "w+b") as file:
        for held in (file, {"train": file}, [{"a": (file,)}], Reader(file), Holder(Holder(file))):
            assert one_reader(Holder(held)) is not None
    assert one_reader(Holder({"train": file})) is None
    assert one_reader(Holder(["path"] * 3)) is None


def test_few_samples_are_compared_at_first_and_an_epoch_that_is_left_does_not_end_that():
    check = SampleCheck(None, list(range(8)), in_batches=True)
    assert [check.is_due() for _ in range(80)].count(True) == 4  # though 80 batches are asked for ahead
    check.begin_epoch()
    assert check.is_due()
