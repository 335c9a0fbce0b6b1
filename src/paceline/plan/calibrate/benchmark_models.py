"""The models that calibration runs: small transformers and residual networks over a grid of sizes.

Each model runs one step under the operator counter `Tally`, which records the operators of the model. `measure` then
times these operators one by one. The operators therefore have the sizes and memory layouts of real training, and no
list of operators has to be maintained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, Literal

from paceline.core.errors import UsageError

ModelKind = Literal["transformer", "convolution"]


@dataclass(frozen=True, kw_only=True)
class BenchmarkModel:
    """A model of one kind and size, with its optimizer and batch.

    Attributes:
        width: Hidden width of a transformer, or channels of a convolution.
        length: Tokens of a sample, or pixels on a side of an image.
        batch: Number of samples.
        depth: Number of blocks.
        optimizer: `AdamW` or `SGD`.
        dtype: `float32`, or the autocast dtype of matrix products.
    """

    kind: ModelKind
    width: int
    length: int
    batch: int
    depth: int = 1
    optimizer: Literal["AdamW", "SGD"] = "AdamW"
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __str__(self) -> str:
        return ",".join(str(getattr(self, field.name)) for field in fields(self))


def parse_benchmark_model(text: str) -> BenchmarkModel:
    """Return the benchmark model for a text that `str` of a benchmark model returned.

    Raises:
        UsageError: The text does not describe a benchmark model.
    """
    try:
        kind, width, length, batch, depth, optimizer, dtype = text.split(",")
        sizes = {"width": int(width), "length": int(length), "batch": int(batch), "depth": int(depth)}
    except ValueError:
        raise UsageError(f"{text!r} is no block; write transformer,256,128,16,1,AdamW,float32") from None
    return BenchmarkModel(kind=kind, optimizer=optimizer, dtype=dtype, **sizes)  # type: ignore[arg-type]


_TOKENS = ((64, 16), (128, 16), (256, 8), (512, 8))  # length, batch
_WIDTHS = (64, 128, 256, 384, 512)

# Models whose operators are measured one by one: transformers over widths and tokens, stages of residual networks.
_TRANSFORMERS = (
    *(
        BenchmarkModel(kind="transformer", width=w, length=n, batch=b)
        for w in _WIDTHS
        for n, b in _TOKENS
        if w * n * b < 2**21
    ),
    BenchmarkModel(kind="transformer", width=768, length=256, batch=4),
    *(BenchmarkModel(kind="transformer", width=w, length=256, batch=8, dtype="bfloat16") for w in (128, 256, 512)),
)
_NETWORKS = (
    *(
        BenchmarkModel(kind="convolution", width=width << stage, length=side >> stage, batch=batch, optimizer="SGD")
        for width in (16, 24, 32, 48, 64)
        for side, batch in ((32, 16), (32, 32), (48, 16))
        for stage in range(4)
        if width * side * batch <= 64 * 32 * 16
    ),
)
# Alternating, so that a time limit leaves some of each kind.
GRID = tuple(each for pair in zip_longest(_TRANSFORMERS, _NETWORKS) for each in pair if each is not None)
# Larger models for accelerators, which small models do not fill.
LARGE = (
    *(
        BenchmarkModel(kind="transformer", width=w, length=n, batch=b, dtype=dtype)
        for dtype in ("float32", "bfloat16")
        for w in (256, 512, 1024, 2048, 4096)
        for n, b in ((128, 16), (512, 8), (2048, 4))
    ),
    *(
        BenchmarkModel(kind="convolution", width=w << stage, length=64 >> stage, batch=b, optimizer="SGD", dtype=dtype)
        for dtype in ("float32", "bfloat16")
        for w in (32, 64, 128)
        for b in (32, 128)
        for stage in range(4)
    ),
)
LARGE_BLOCKS = (
    *(BenchmarkModel(kind="transformer", width=w, length=512, batch=8, depth=6) for w in (256, 512, 1024, 2048)),
    *(
        BenchmarkModel(kind="convolution", width=w, length=64, batch=64, depth=2, optimizer="SGD")
        for w in (32, 64, 128)
    ),
)
SMALL = (
    BenchmarkModel(kind="transformer", width=64, length=64, batch=8),
    BenchmarkModel(kind="convolution", width=16, length=16, batch=8, optimizer="SGD"),
    BenchmarkModel(kind="transformer", width=128, length=64, batch=8),
)

# Whole models that are trained for some steps, to measure memory and costs besides the operators.
BLOCKS = (
    BenchmarkModel(kind="transformer", width=64, length=64, batch=16, depth=2),
    BenchmarkModel(kind="transformer", width=128, length=128, batch=16, depth=4),
    BenchmarkModel(kind="transformer", width=256, length=256, batch=8, depth=4),
    BenchmarkModel(kind="transformer", width=512, length=256, batch=8, depth=4),
    BenchmarkModel(kind="convolution", width=16, length=32, batch=16, depth=2, optimizer="SGD"),
    BenchmarkModel(kind="convolution", width=16, length=48, batch=16, depth=3, optimizer="SGD"),
    BenchmarkModel(kind="convolution", width=32, length=32, batch=32, depth=2, optimizer="SGD"),
)
SMALL_BLOCKS = (
    BenchmarkModel(kind="transformer", width=64, length=64, batch=8, depth=2),
    BenchmarkModel(kind="convolution", width=16, length=16, batch=8, depth=2, optimizer="SGD"),
)


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """A model that is ready to train: a function that makes one step, and the bytes of the model's weights."""

    step: Callable[[], None]
    weight_bytes: int


def trainee_of(animal: BenchmarkModel, device: Any, *, replicas: bool = False) -> Trainee:
    """Create a benchmark model with its optimizer and batch, ready to train.

    Args:
        animal: The kind and size of the model.
        device: The `torch.device` of the model.
        replicas: Whether to average gradients over ranks with DistributedDataParallel.
    """
    import torch

    torch.manual_seed(0)
    make = _transformer if animal.kind == "transformer" else _residual
    model, inputs, target = make(torch, animal, device)
    if replicas:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = getattr(torch.optim, animal.optimizer)(model.parameters(), lr=1e-3, **_MORE[animal.optimizer])

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=animal.dtype == "bfloat16"):
            output = model(inputs)
            loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), target)
        loss.backward()
        float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()

    return Trainee(step=step, weight_bytes=sum(weight.nbytes for weight in model.parameters()))


_MORE: dict[str, dict[str, Any]] = {"AdamW": {}, "SGD": {"momentum": 0.9}}
_HEADS, _VOCABULARY, _CLASSES = 4, 256, 10


def _transformer(torch: Any, animal: BenchmarkModel, device: Any) -> tuple[Any, Any, Any]:
    nn: Any = torch.nn

    class Block(nn.Module):
        """An attention layer and a feed-forward layer, each with a residual connection."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.into = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(3)])
            self.out = nn.Linear(width, width)
            self.forward_part = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            normed = self.norms[0](x)
            q, k, v = (each(normed).view(batch, length, _HEADS, -1).transpose(1, 2) for each in self.into)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.forward_part(self.norms[1](x))

    width = animal.width
    blocks = [Block(width) for _ in range(animal.depth)]
    ends = nn.Embedding(_VOCABULARY, width), nn.LayerNorm(width), nn.Linear(width, _VOCABULARY)
    model = nn.Sequential(ends[0], *blocks, *ends[1:]).to(device)
    tokens = torch.randint(0, _VOCABULARY, (animal.batch, animal.length), device=device)
    return model, tokens, tokens.flatten()


def _residual(torch: Any, animal: BenchmarkModel, device: Any) -> tuple[Any, Any, Any]:
    """Create a residual network: a first convolution, then stages, each twice as wide as the previous one.

    There is only one stage if `depth` is 1.
    """
    nn: Any = torch.nn

    def normed(inputs: int, outputs: int, stride: int) -> Any:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.GroupNorm(max(1, outputs // 8), outputs))

    class Block(nn.Module):
        """Two convolutions with a residual connection."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.inside = nn.Sequential(normed(inputs, outputs, stride), nn.ReLU(), normed(outputs, outputs, 1))
            around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Identity() if inputs == outputs else around

        def forward(self, x: Any) -> Any:
            return (self.inside(x) + self.around(x)).relu()

    width = animal.width
    stages = 4 if animal.depth > 1 else 2
    blocks = [normed(3, width, 2), nn.ReLU()]
    inputs = width
    for stage in range(stages):
        for number in range(animal.depth):
            blocks.append(Block(inputs, width << stage, 2 if stage and not number else 1))
            inputs = width << stage
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES)).to(device)
    side = 2 * animal.length
    pictures = torch.randn(animal.batch, 3, side, side, device=device)
    return model, pictures, torch.randint(0, _CLASSES, (animal.batch,), device=device)
