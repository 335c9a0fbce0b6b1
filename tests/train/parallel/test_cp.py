"""Is a model that would take a part of a sequence for the whole refused under `cp`, and no other?"""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
from paceline.core.errors import UsageError
from paceline.train import Engine, positions

OUT = Path(sys.argv[1])
LENGTH, WIDTH, TOKENS = 16, 8, 11
DRAWN = torch.Generator().manual_seed(0)
INPUTS = torch.randint(0, TOKENS, (4, LENGTH), generator=DRAWN)


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = dropout
        nn.init.zeros_(self.out.weight)  # as residual branches often begin

    def turned(self, x):
        return x

    def forward(self, x):
        q, k, v = (part[:, None] for part in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = self.turned(q), self.turned(k)
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop if self.training else 0.0, is_causal=True)
        return x + F.dropout(self.out(found[:, 0]), self.drop, self.training)


class Net(nn.Module):
    kind = Block

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed, self.at = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(self.kind(dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def place(self, x):
        return x + self.at(positions(x.shape[1]))

    def forward(self, tokens):
        x = self.place(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Counts(Net):
    def place(self, x):
        return x + self.at(torch.arange(x.shape[1]))


class Learned(Net):
    '''Positions that are learned from zero: nothing of them shows at first.'''

    def __init__(self):
        super().__init__()
        self.learned = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))

    def place(self, x):
        return x + self.learned[:, : x.shape[1]]


class Turned(Block):
    '''Rotary positions from a buffer.'''

    def __init__(self, dropout):
        super().__init__(dropout)
        angles = torch.arange(LENGTH)[:, None] * 0.1 ** (torch.arange(WIDTH // 2) / WIDTH)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turned(self, x):
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        one, other = x.chunk(2, -1)
        return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Rotary(Net):
    kind = Turned


class Convolved(Net):
    def __init__(self):
        super().__init__()
        self.mixes = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def place(self, x):
        return super().place(x) + self.mixes(x.mT).mT


class Pooled(Net):
    def forward(self, tokens):
        return super().forward(tokens).mean(1)


class Shifted(Net):
    '''Its loss leaves the last position of each part out.'''

    def forward(self, tokens):
        output = super().forward(tokens)
        return {"loss": F.cross_entropy(output[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()), "logits": output}


class Loss(Net):
    def forward(self, tokens, target):
        output = super().forward(tokens)
        return {"loss": F.cross_entropy(output.flatten(0, 1), target.flatten()), "logits": output}


class Warming(Net):
    calls = 0  # an attribute of the class, until the first call sets one of the model

    def place(self, x):
        self.calls += 1
        return super().place(x) * min(1.0, self.calls / 10)


class Given(Net):
    def forward(self, tokens, place):
        return self.head(self.embed(tokens) + self.at(place))


class Noisy(Net):
    def place(self, x):
        return super().place(x) + torch.randn_like(x)


def part(engine):
    return INPUTS.chunk(2, 1)[engine.world.position("cp")]


def said(model, layout="cp=2", call=None, training=True, **recipe):
    torch.manual_seed(0)
    engine = Engine({"layout": layout, **recipe})
    net = model()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trained, _ = engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    drawn = torch.get_rng_state()
    trained.train(training)
    try:
        found = call(trained, part(engine)) if call else trained(part(engine))
    except UsageError as error:
        return str(error)
    whole = lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value
    same = all(torch.equal(whole(value), before[name]) for name, value in net.state_dict().items())
    same = same and getattr(net, "calls", 1) == 1
    return "trains" if same and torch.equal(drawn, torch.get_rng_state()) else "changed something"


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {
    model.__name__: said(model)
    for model in (Net, Warming, Counts, Learned, Rotary, Convolved, Pooled, Shifted, Noisy)
}
found["Counts by keyword"] = said(Counts, call=lambda model, tokens: model(tokens=tokens))
found["Learned bf16"] = said(Learned, precision={"autocast": "bf16"})
found["evaluated"] = said(Counts, training=False)
found["Warming evaluated"] = said(Warming, training=False)
found["Loss"] = said(Loss, call=lambda model, tokens: model(tokens, target=tokens))
found["dropout"] = said(lambda: Net(0.5), memory={"activation_budget": 0.5})
found["outside"] = said(Given, call=lambda model, tokens: model(tokens, positions(LENGTH // 2)))
found["dp outside"] = said(Given, "dp=2", lambda model, tokens: model(tokens, positions(LENGTH // 2)))
found["bf16"] = said(Net, precision={"autocast": "bf16"})
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("cp"), timeout_s=120)


@pytest.mark.parametrize("name", ["Net", "Loss", "dropout", "bf16", "Warming", "Warming evaluated"])
def test_a_model_that_asks_for_its_positions_trains(found, name):
    """The comparison leaves parameters, buffers, counters of calls and random numbers as they were."""
    assert found[name] == "trains"


@pytest.mark.parametrize(
    "name",
    ["Counts", "Counts by keyword", "Learned", "Learned bf16", "Rotary", "Convolved", "Pooled", "Shifted"],
)
def test_a_model_that_takes_its_part_for_the_whole_is_refused(found, name):
    assert "computes different values on 2 ranks than on one" in found[name]
    assert "paceline.train.positions(length, device)" in found[name]


def test_it_is_refused_in_evaluation_too(found):
    assert "computes different values from the parts of a sequence than from the whole" in found["evaluated"]


def test_a_model_that_draws_in_its_forward_is_refused(found):
    assert "draws random numbers outside dropout in its forward pass" in found["Noisy"]


def test_positions_are_known_in_the_forward_pass_only(found):
    assert "positions() is called outside of the forward pass" in found["outside"]
    assert "positions()" not in found["dp outside"]


LOOPS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine, positions

TOKENS = torch.randint(1, 11, (8, 16), generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.at, self.head = nn.Embedding(12, 8), nn.Embedding(16, 8), nn.Linear(8, 12)

    def forward(self, tokens):
        x = self.embed(tokens) + self.at(positions(tokens.shape[1]))
        return self.head(x + F.scaled_dot_product_attention(x, x, x, is_causal=True))


LOOPS = {
    "shifted": lambda t: (t[:, :-1], t[:, 1:]),
    "begun": lambda t: (torch.cat([torch.zeros_like(t[:, :1]), t[:, :-1]], 1), t),
    "rolled": lambda t: (t, torch.roll(t, -1, 1)),
    "rolled by method": lambda t: (t, t.roll(shifts=-1, dims=-1)),
    "flipped": lambda t: (t.flip(1), t),
    "shorter": lambda t: (t[:2, :4], t[:2, :4]),
    "narrowed": lambda t: (t.narrow(1, 0, 4), t.narrow(1, 0, 4)),
    "of lengths": lambda t: (t * (t.sum(1, keepdim=True) > 3), t),
    "cumulated": lambda t: (t.cumsum(1) % 11, t),
    "plain": lambda t: (t, t),
    "samples": lambda t: (t[:2], t[:2]),
    "masked": lambda t: (t.masked_fill(t == 3, 0), t + 0 * t[t > 2].sum() + 0 * t[0].max() + 0 * t.sum(0).max()),
    "chunks": lambda t: tuple(torch.cat(t.chunk(2)) for _ in range(2)),
}


def said(make):
    torch.manual_seed(0)
    engine = Engine({"layout": "cp=2"})
    model, _ = engine.setup(Net(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for (tokens,) in engine.loader(DataLoader(TensorDataset(TOKENS), 4)):
            with engine.micro_step():
                inputs, target = make(tokens)
                engine.backward(F.cross_entropy(model(inputs).flatten(0, 1), target.flatten()))
            engine.step()
    except UsageError as error:
        return str(error)
    return ""


begin()
found = {name: said(make) for name, make in LOOPS.items()}
finish(found)
"""


def test_a_loop_that_cuts_or_moves_a_batch_along_its_positions_is_refused(tmp_path):
    found = results_of(LOOPS, 2, tmp_path, timeout_s=120)
    trained = {name for name, message in found.items() if not message}
    assert trained == {"plain", "samples", "masked", "chunks"}
    assert all("along the positions of a batch" in found[name] for name in found.keys() - trained)
