"""Ordinary models of `benchmarks/first_step.py`, which train on several ranks what one process trains."""

from __future__ import annotations

from typing import Any

import torch
from _first_step_cases import (
    DEPTH,
    LENGTH,
    TOKENS,
    WIDTH,
    Attention,
    Block,
    Case,
    Embedding,
    Gpt,
    classifier,
    own_loop,
    photos,
    ragged,
    row,
    texts,
    token_loss,
    vectors,
)
from torch import nn
from torch.nn import functional as F

AXES = ("dp=2", "shard=2", "tp=2", "cp=2")


class Conv(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), norm(8)
        self.body, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), norm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = x + F.relu(self.norm2(self.body(x)))
        return self.head(F.dropout(x, 0.2, self.training).mean((2, 3)))


def pictures() -> nn.Module:
    """Convolutions with biases before BatchNorm, whose gradients are 0 except for rounding, and two poolings."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))


def large_photos() -> tuple[Any, Any]:
    drawn = torch.Generator().manual_seed(5)
    return torch.randn(16, 3, 128, 128, generator=drawn), torch.randint(0, 3, (16,), generator=drawn)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(TOKENS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(self.embed(x))[0])


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 8), nn.Linear(4, WIDTH)

    def forward(self, x: Any) -> dict[str, Any]:
        mean, log_var = self.encoder(x).chunk(2, -1)
        found = self.decoder(mean + torch.randn_like(mean) * (log_var / 2).exp())
        return {"found": found, "kl": (mean**2 + log_var.exp() - 1 - log_var).sum(-1), "x": x}


def vae_loss(output: Any, _: Any) -> Any:
    return F.mse_loss(output["found"], output["x"]) + 0.01 * output["kl"].mean()


class Diffusion(nn.Module):
    """Draws a time and noise of each sample; its last layer begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.inside, self.out = nn.Linear(1, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Any) -> Any:
        time, noise = torch.rand(len(x), 1), torch.randn_like(x)
        return self.out(F.silu(self.inside(x + time * noise) + self.time(time))) - noise


class Experts(nn.Module):
    """Two of four experts for each token, with a loss that balances them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Any) -> Any:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            rows = share[..., 0] > 0
            if rows.any():
                out[rows] = out[rows] + share[rows] * expert(x[rows])
        return out


class Masked(Attention):
    """Attention written by hand, with -1e9 where nothing is to be seen."""

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) / self.head**0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -1e9).softmax(-1) @ v


class Fourier(nn.Module):
    """Filters the sequence by complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(LENGTH // 2 + 1, WIDTH, dtype=torch.cfloat) * 0.1 + 1)

    def forward(self, x: Any) -> Any:
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.filter, n=x.shape[1], dim=1)


class LowRank(nn.Module):
    """A frozen layer and a change of it that begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(TOKENS, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.bag(x))


def bags() -> tuple[Any, Any]:
    return texts()[0], vectors()[1]


class Depth(Block):
    """Leaves the residual of a sample out, by chance."""

    def forward(self, x: Any) -> Any:
        kept = torch.rand(len(x), 1, 1) < 0.8 if self.training else torch.ones(len(x), 1, 1)
        return x + kept * (super().forward(x) - x)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value.round()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Quantised(nn.Module):
    def forward(self, x: Any) -> Any:
        return Round.apply(x * 8) / 8


class WithLoss(nn.Module):
    """Returns its loss, as models of Hugging Face do."""

    tp_plan = {f"net.{name}": how for name, how in Gpt.tp_plan.items()}

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = Gpt(), 0

    def forward(self, input_ids: Any = None, labels: Any = None) -> Any:
        self.calls += 1
        logits = self.net(input_ids)
        return {"loss": token_loss(logits, labels), "logits": logits, "hidden": None}


def with_loss(model: Any, inputs: Any, target: Any) -> Any:
    return model(input_ids=inputs, labels=target)["loss"]


def detection(model: Any, inputs: Any, target: Any) -> Any:
    """A list of images of different sizes, as detectors take."""
    images = [image[:, : 4 + number % 3] for number, image in enumerate(inputs)]
    return F.cross_entropy(model(images), target)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, images: Any) -> Any:
        return self.head(torch.stack([F.relu(self.stem(image[None])).mean((0, 2, 3)) for image in images]))


def tokens(target: Any) -> Any:
    return (target != -100).sum()


def clamped() -> Any:
    made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    made[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return made


def hf(kind: str) -> Any:
    """A model of Hugging Face, where transformers is installed."""
    import transformers

    small = {"vocab_size": TOKENS + 1, "use_cache": False}
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=WIDTH, n_layer=2, n_head=4, n_positions=LENGTH, **small)
        )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=WIDTH,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="sdpa",
            **small,
        )
    )


def hf_loss(model: Any, inputs: Any, target: Any) -> Any:
    return token_loss(model(input_ids=inputs).logits, target)


def ordinary() -> list[Case]:
    four, two = {"memory": {"micro_batches": 4}}, {"memory": {"micro_batches": 2}}
    bf16, small = {"precision": {"autocast": "bf16"}}, {"loss": F.cross_entropy, "data": vectors}
    images = {"loss": F.cross_entropy, "data": photos}
    dropout = lambda _: Block(dropout=0.1)  # noqa: E731
    norms = lambda norm: lambda: Conv(norm)  # noqa: E731
    tied = lambda: Gpt(tied=True)  # noqa: E731
    cases = [Case("gpt with dropout", layout, lambda: Gpt(dropout), recipe=two) for layout in AXES]
    cases += [Case("gpt, own loop", layout, Gpt, own=own_loop) for layout in AXES]
    cases += [Case("gpt in bf16", layout, Gpt, recipe=bf16) for layout in AXES]
    cases += [Case("gpt with tied weights", layout, tied) for layout in ("dp=2", "shard=2", "cp=2")]
    cases += [Case("gpt, ragged targets with weights", a, Gpt, data=ragged, weight=tokens) for a in AXES]
    cases += [Case("gpt, checkpointed", a, Gpt, recipe={"memory": {"checkpoint_every": 1}}) for a in AXES]
    cases += [
        Case(
            "row of layers with dropout", "pp=2", lambda: row(dropout), recipe={**four, "pipeline": {"schedule": name}}
        )
        for name in ("gpipe", "1f1b", "interleaved", "zero-bubble")
        if name in ("gpipe", "1f1b") or DEPTH > 2
    ]
    cases += [Case("row in bf16", "pp=2", row, recipe={**four, **bf16})]
    cases += [Case("row, ragged targets", "pp=2", row, recipe=four, data=ragged, weight=tokens)]
    cases += [Case("grouped heads", "tp=2", lambda: Gpt(lambda _: Block(Attention(2))))]
    cases += [Case("masked scores", a, lambda: Gpt(lambda _: Block(Masked()))) for a in ("tp=2", "dp=2", "shard=2")]
    cases += [
        Case("layer scale of 1e-6", a, lambda: Gpt(lambda _: Block(scale=1e-6))) for a in ("tp=2", "shard=2", "cp=2")
    ]
    cases += [Case("layers left out by chance", a, lambda: Gpt(lambda _: Depth())) for a in ("dp=2", "tp=2", "shard=2")]
    cases += [Case("experts", a, lambda: Gpt(lambda _: Block(mlp=Experts()))) for a in ("dp=2", "shard=2", "cp=2")]
    cases += [
        Case("convolutions, BatchNorm", a, norms(nn.BatchNorm2d), **images, recipe=two) for a in ("dp=2", "shard=2")
    ]
    cases += [
        Case("convolutions, GroupNorm", a, norms(lambda n: nn.GroupNorm(2, n)), **images) for a in ("dp=2", "shard=2")
    ]
    large = {"loss": F.cross_entropy, "data": large_photos}
    cases += [Case("large pictures, biases before BatchNorm", a, pictures, **large) for a in ("dp=2", "shard=2")]
    cases += [Case("large pictures in bf16", a, pictures, recipe=bf16, **large) for a in ("dp=2", "shard=2")]
    cases += [Case("recurrent", a, Recurrent) for a in ("dp=2", "shard=2")]
    cases += [Case("variational", a, Vae, vae_loss, vectors) for a in ("dp=2", "shard=2")]
    cases += [Case("diffusion", a, Diffusion, lambda o, _: o.pow(2).mean(), vectors) for a in ("dp=2", "shard=2")]
    cases += [
        Case("complex filter", a, lambda: nn.Sequential(Embedding(), Fourier(), nn.Linear(WIDTH, TOKENS)))
        for a in ("dp=2",)
    ]
    cases += [
        Case(
            "low rank beside frozen",
            a,
            lambda: classifier(LowRank(), nn.GELU(), LowRank(), nn.Linear(WIDTH, 3)),
            **small,
        )
        for a in ("dp=2", "shard=2")
    ]
    cases += [Case("embedding bag", a, Bag, F.cross_entropy, bags) for a in ("dp=2", "shard=2")]
    cases += [
        Case(
            "rounding with a gradient of its own",
            a,
            lambda: classifier(nn.Linear(WIDTH, WIDTH), Quantised(), nn.Linear(WIDTH, 3)),
            **small,
        )
        for a in ("dp=2", "shard=2")
    ]
    cases += [Case("hooks on parameters", "dp=2", clamped, **small)]
    cases += [
        Case(
            "weight norm",
            a,
            lambda: classifier(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 3)),
            **small,
        )
        for a in ("dp=2", "shard=2")
    ]
    cases += [
        Case(
            "spectral norm",
            a,
            lambda: classifier(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 3)),
            **small,
        )
        for a in ("dp=2", "shard=2")
    ]
    cases += [Case("its own loss, by keyword", a, WithLoss, own=with_loss) for a in ("dp=2", "shard=2", "tp=2")]
    cases += [Case("list of images", a, Detector, data=photos, own=detection) for a in ("dp=2", "shard=2")]
    cases += [
        Case(
            "torch's encoder",
            a,
            lambda: nn.Sequential(
                Embedding(),
                nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True), 2),
                nn.Linear(WIDTH, TOKENS),
            ),
        )
        for a in ("dp=2", "shard=2")
    ]
    cases += [Case("Hugging Face GPT-2", a, lambda: hf("gpt2"), own=hf_loss) for a in ("dp=2", "shard=2")]
    cases += [Case("Hugging Face Llama", a, lambda: hf("llama"), own=hf_loss) for a in ("dp=2", "shard=2", "tp=2")]
    return cases
