"""Batches in pinned memory, in loops that begin after the program used CUDA. Pinning itself needs a GPU."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from paceline.inprocess.settings import confirmation
from paceline.inprocess.settings.pin_memory import patch_iterator


class Cuda:
    """A program's use of CUDA."""

    def __init__(self) -> None:
        self.is_used = False

    def is_initialized(self) -> bool:
        return self.is_used


class Loader:
    def __init__(self, pin_memory: bool) -> None:
        self.pin_memory = pin_memory


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_WATCH_DIR", str(tmp_path))
    monkeypatch.setattr(confirmation, "_told", set())

    def lines() -> list[tuple[bool, str]]:
        entries = [json.loads(line) for p in (tmp_path / "held").glob("*") for line in p.read_text().splitlines()]
        return [(entry["held"], entry["what"]) for entry in entries]

    return lines


def iterator_beside(cuda: Cuda):
    class Iterator:
        def __init__(self, loader: Loader) -> None:
            self.pins = loader.pin_memory

    patch_iterator(SimpleNamespace(cuda=cuda), Iterator)
    return Iterator


def test_a_loop_pins_if_the_program_used_cuda_before_it(told):
    cuda, loader = Cuda(), Loader(False)
    iterator = iterator_beside(cuda)
    assert iterator(loader).pins is False
    assert [is_held for is_held, _ in told()] == [False]
    cuda.is_used = True
    assert iterator(loader).pins is True
    assert [is_held for is_held, _ in told()] == [False, True]
    cuda.is_used = False  # a forked child
    assert iterator(loader).pins is False


def test_a_loader_that_the_program_pins_stays_pinned(told):
    loader = Loader(True)
    assert iterator_beside(Cuda())(loader).pins is True
    assert told() == [(True, "batches are in pinned memory; the program passed pin_memory=True")]
