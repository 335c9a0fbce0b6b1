from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from paceline.monitor.first_step import catch
from paceline.plan.models.captured_program import CapturedProgram, read_program
from paceline.plan.models.operators import FREE, kind_of

torch = pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.num_heads = heads

    def forward(self, x):
        shape = (*x.shape[:2], self.num_heads, -1)
        parts = [each(x).view(shape).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)]
        out = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(x.shape))

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.norm2, self.attn = Norm(width), Norm(width), Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(self.norm2(x))

class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(1000, 64), Norm(64)
        self.blocks = nn.ModuleList([Block(64, 2) for _ in range(3)])
        self.head = nn.Linear(64, 1000, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), ids.flatten())
"""
PROGRAM = """
from pathlib import Path

import torch
from gpt_model import Gpt

net = Gpt().to("cuda")
optimizer = torch.optim.AdamW(net.parameters(), **OPTIONS)
ids = torch.randint(0, 1000, (4, 96)).to("cuda")
try:
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=AUTOCAST):
            loss = net(ids)
        loss.backward()
    optimizer.step()
finally:
    Path("ended").touch()
"""
LAYERS, TOKENS, VOCAB, WIDTH = 3, 4 * 96, 1000, 64


def captured(
    folder: Path, options: str = "", autocast: bool = True, steps: int = 1, **replaced: str
) -> CapturedProgram:
    (folder / "gpt_model.py").write_text(MODEL, encoding="utf-8")
    text = PROGRAM.replace("**OPTIONS", options).replace("AUTOCAST", str(autocast)).replace("STEPS", str(steps))
    for old, new in replaced.items():
        text = text.replace(old, new)
    program = folder / "train.py"
    program.write_text(text, encoding="utf-8")
    note = catch([sys.executable, str(program)], {**os.environ, "PACELINE_CATCH_STEP": "gpu"}).note
    return read_program(note, {})


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Iterator[dict[str, Any]]:
    """The same model, with values and torch's own autocast, on the CPU."""
    from paceline.inprocess.first_step.operator_counter import Tally

    space: dict[str, Any] = {}
    exec(MODEL, space)
    net, ids = space["Gpt"](), torch.randint(0, 1000, (4, 96))
    own = {each.untyped_storage().data_ptr() for each in net.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tally = Tally()
    tally.enter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(ids)
        held = sum(size for address, size in saved.items() if address not in own)
        loss.backward()
    tally.leave()
    kernels = dict.fromkeys((False, True), 0)
    for each in tally.described()["operators"]:
        kernels[each["backward"]] += each["count"] * (kind_of(each).family != FREE)
    yield {"kernels": kernels, "saved": held, "weights": sum(each.numel() for each in net.parameters())}


def test_as_many_kernels_are_counted_as_torch_launches_with_autocast(tmp_path, monkeypatch, measured):
    monkeypatch.chdir(tmp_path)
    found = captured(tmp_path).counted
    assert found is not None
    assert not (tmp_path / "ended").exists()
    assert found.forward_kernels * LAYERS == pytest.approx(measured["kernels"][False], abs=1)
    assert found.backward_kernels * LAYERS == pytest.approx(measured["kernels"][True], abs=1)


def test_as_many_bytes_are_counted_as_torch_saves_for_the_backward_pass(tmp_path, monkeypatch, measured):
    monkeypatch.chdir(tmp_path)
    found = captured(tmp_path).counted
    assert found is not None
    logits = 4 * TOKENS * VOCAB  # the result of the softmax
    counted = found.saved * LAYERS * TOKENS + found.weight_saved * measured["weights"] + logits
    assert counted == pytest.approx(measured["saved"], rel=0.01)


def test_the_loss_and_adam_move_the_bytes_that_their_operators_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = captured(tmp_path).counted
    assert found is not None
    # bf16 to fp32, softmax, its values at the targets; both gradients, and back to bf16
    assert found.logit_moved == pytest.approx(6 + 8 + 4 + (4 + 4) + (4 + 4 + 4) + 6, rel=0.01)
    assert found.logit_peak == pytest.approx(12, rel=0.01)  # the softmax, its gradient, and that of the logits
    assert (found.optimizer_moved, found.optimizer_peak) == (pytest.approx(20 * 4, rel=0.01), 4.0)
    embedding, blocks = VOCAB * WIDTH, LAYERS * 12 * WIDTH**2  # all but the embedding are converted to 2 bytes
    assert found.weight_saved == pytest.approx(2 * (embedding + blocks) / (2 * embedding + blocks), rel=0.02)


def test_one_fused_kernel_moves_less_and_needs_no_temporary_tensors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = captured(tmp_path, options="fused=True").counted
    assert found is not None
    assert (found.optimizer_moved, found.optimizer_peak) == (pytest.approx(7 * 4, rel=0.01), 0.0)


def test_without_autocast_no_weight_is_converted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_casts, without = captured(tmp_path).counted, captured(tmp_path, autocast=False).counted
    assert with_casts is not None and without is not None
    assert without.weight_saved == 0.0
    assert without.forward_kernels < with_casts.forward_kernels


def test_micro_steps_do_not_add_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, three = captured(tmp_path).counted, captured(tmp_path, steps=3).counted
    assert one is not None and three is not None
    for name in ("forward_kernels", "forward_moved", "backward_moved", "saved", "weight_saved"):
        assert asdict(three)[name] == pytest.approx(asdict(one)[name], rel=0.02)


def test_programs_that_recompute_or_compile_are_left_to_the_formulas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpointed = "from torch.utils.checkpoint import checkpoint\nnet = Gpt()\nfor block in net.blocks:\n"
    checkpointed += (
        "    block.forward = (lambda own: lambda x: checkpoint(own, x, use_reentrant=False))(block.forward)\n"
    )
    assert captured(tmp_path, **{'net = Gpt().to("cuda")\n': checkpointed}).counted is None
    compiled = captured(tmp_path, **{'net = Gpt().to("cuda")\n': "net = torch.compile(Gpt())\n"})
    assert (compiled.kernels, compiled.counted) == ("fused", None)
