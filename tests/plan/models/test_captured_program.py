from __future__ import annotations

import json

import pytest

from paceline.cli import main

pytest.importorskip("torch")

PROGRAM = """
import torch
from pathlib import Path
from tests_models import Model

model = Model(layers=4, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocab=32000, gated=False).to("cuda")
model.forward = lambda ids: model.head(model.embedding(ids))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
try:
    for _ in range(3):
        ids = torch.randint(0, 32000, (8, 512), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(ids).float().mean().backward()
    torch.save(model.state_dict(), "checkpoint.pt")
    optimizer.step()
finally:
    Path("ended").touch()
"""


def planned(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *args])
    return ended.value.code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    from tests.plan.models.test_factory import MODELS

    (tmp_path / "tests_models.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_program_is_caught_at_its_first_step_and_left_without_harm(folder, capsys):
    assert planned("--gpus", "8xH100-SXM", "--json", "plan.json", "train.py", "--its", "flag") == 0
    assert "captured: Model, SGD (4 B per weight), batch [8, 512] x 3" in capsys.readouterr().out
    written = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert (written["model"]["layers"], written["model"]["hidden"], written["model"]["seq"]) == (4, 2048, 512)
    assert (written["global_batch"], written["best"]["precision"]) == (8 * 3 * 8, "bf16")
    assert not (folder / "checkpoint.pt").exists()
    assert not (folder / "ended").exists()


def test_a_program_that_does_not_train_is_quoted(folder, capsys):
    (folder / "train.py").write_text("raise RuntimeError('no data')", encoding="utf-8")
    assert planned("--gpus", "8xH100-SXM", "train.py") == 2
    assert "RuntimeError: no data" in capsys.readouterr().err


CLASSES = """
import torch
from torch import nn

class Classes(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(30000, 128), nn.Linear(128, 2)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 4)

    def forward(self, ids):
        return {"scores": self.out(self.encoder(self.embedding(ids)).mean(1))}

net = Classes()
optimizer = torch.optim.AdamW(net.parameters())
net(torch.randint(0, 30000, (8, 128)))["scores"].mean().backward()
optimizer.step()
"""


def test_a_program_that_tells_classes_has_no_logits_of_its_vocabulary(folder):
    (folder / "train.py").write_text(CLASSES, encoding="utf-8")
    assert planned("--gpus", "8xH100-SXM", "--json", "plan.json", "train.py") == 0
    written = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert written["model"]["vocab"] == 30000
    assert written["model"]["head_share"] == pytest.approx(1 / 128)
    assert not written["model"]["causal"]


def test_weights_that_are_tied_later_stay_one(folder):
    change = PROGRAM.replace("model.forward", "model.head.weight = model.embedding.weight\nmodel.forward")
    (folder / "train.py").write_text(change, encoding="utf-8")
    assert planned("--gpus", "8xH100-SXM", "--json", "plan.json", "train.py") == 0
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8"))["model"]["tied"]
