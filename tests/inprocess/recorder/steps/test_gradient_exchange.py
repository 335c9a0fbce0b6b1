"""What DistributedDataParallel timed itself is read now and then, and only from settled steps."""

from __future__ import annotations

import pytest

from paceline.inprocess.recorder.steps import gradient_exchange


class Module:
    """Times every tenth backward pass, and the first ten."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.passes = 0
        self.rate = 100
        self.read = 0

    def _set_ddp_runtime_logging_sample_rate(self, rate):
        self.rate = rate

    def _get_ddp_logging_data(self):
        self.read += 1
        timed = self.passes if self.passes <= 10 else self.passes // self.rate * self.rate
        slow = 1000 if timed < 3 else 1
        return {
            "iteration": timed,
            "backward_compute_time": 10_000_000,
            "backward_comm_time": 4_000_000 * slow,
            "backward_compute_comm_overlap_time": 1_000_000,
        }


@pytest.fixture(autouse=True)
def fresh():
    gradient_exchange.forget()
    yield
    gradient_exchange.forget()


def test_times_of_settled_steps(monkeypatch):
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    module = Module()
    for _ in range(200):
        gradient_exchange.look(module)
        module.passes += 1
    assert module.rate == 10
    assert module.read < 40
    (found,) = gradient_exchange.as_json()
    assert found["count"] == pytest.approx(26, abs=3)
    assert (found["backward_s"], found["exchange_s"], found["exposed_s"]) == pytest.approx((0.01, 0.004, 0.003))


@pytest.mark.parametrize("device, debug", [("cuda", "OFF"), ("cpu", "DETAIL")])
def test_where_timing_would_wait_or_print_it_stays_rare(monkeypatch, device, debug):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
    module = Module()
    module.device_type = device
    gradient_exchange.look(module)
    assert module.rate == 100


def test_other_modules_are_left_alone():
    module = type("Plain", (), {})()
    for _ in range(20):
        gradient_exchange.look(module)
    assert gradient_exchange.as_json() == []
