"""Models that a layout cannot train, and copies of split models, raise an error that names an alternative."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import copy, json, sys
from pathlib import Path
import torch
from torch import nn
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT, LAYOUT = Path(sys.argv[1]), sys.argv[2]


def limited(kind):
    return lambda: nn.Sequential(kind(8, 4, max_norm=1.0), nn.Linear(4, 2))


def plain():
    return nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 2))


class Adapter(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear, self.down, self.up = linear, nn.Linear(16, 2), nn.Linear(2, 16)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def language_model(adapted=False):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 8}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    if adapted:
        attention = model.model.layers[0].self_attn
        attention.q_proj = Adapter(attention.q_proj)
    return model


class FixedHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).view(len(x), 4, 4, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj((q * k * v).flatten(2))


CASES = {
    "adapter": (lambda: language_model(adapted=True), lambda model: None),
    "heads": (FixedHeads, lambda model: model(torch.ones(4, 4, 8))),
    "Embedding": (limited(nn.Embedding), lambda model: None),
    "EmbeddingBag": (limited(nn.EmbeddingBag), lambda model: None),
    "deepcopy": (plain, copy.deepcopy),
    "part": (plain, lambda model: model[1](torch.ones(2, 4))),
}


def error_of(make, use):
    engine = Engine({"layout": LAYOUT})
    try:
        model, _ = engine.setup(make(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
        with engine.micro_step():
            use(model)
    except UsageError as error:
        return str(error)
    return ""


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
wanted = {"shard=2": ("deepcopy", "part"), "tp=2": ("adapter", "heads")}.get(LAYOUT, ())
found = {name: error_of(*case) for name, case in CASES.items() if name in wanted or "Embedding" in name}
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module", params=["dp=2", "shard=2", "pp=2", "tp=2"])
def errors(request, tmp_path_factory):
    return request.param, results_of(PROGRAM, 2, tmp_path_factory.mktemp("refused"), request.param)


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_embeddings_that_change_in_the_forward_pass_need_ranks_with_the_same_samples(errors, kind):
    layout, found = errors
    assert ("0 has max_norm" in found[kind]) == (layout in ("dp=2", "shard=2"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("adapter", "splits model.layers.0.self_attn.q_proj, which is a Adapter"),
        ("heads", "FixedHeads fails when it is split (RuntimeError: "),
    ],
)
def test_what_tp_cannot_split_is_named(errors, case, words):
    layout, found = errors
    if layout == "tp=2":
        assert words in found[case]


@pytest.mark.parametrize(
    ("use", "words"),
    [("deepcopy", "copy the model before setup()"), ("part", "called outside of the forward pass of the model")],
)
def test_uses_of_a_split_model(errors, use, words):
    layout, found = errors
    if layout == "shard=2":
        assert words in found[use]
