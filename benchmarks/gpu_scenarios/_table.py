"""The scenarios: which program runs how, and what must be recorded of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Recipe = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A program of this folder, and how it is run.

    Attributes:
        program: File name and arguments.
        options: Options of ``paceline run``, which runs it; None: it is run alone and must succeed.
        recipe: Settings that are applied, if any; each must take hold, or be refused for a reason of `may_refuse`.
        may_refuse: Settings that this program, or an emulated device, gives a good reason to refuse.
        ranks: Processes that torchrun starts; 0: it is not started by torchrun.
        variables: Of the environment, for both runs.
        code: The exit code of the program; 128 + N for signal N.
        device: What the record must name as the device; None: the program may end before that is recorded.
        needs: Modules without which the scenario cannot be played.
        same: Whether the program is run without Paceline too, and compared.
        checks: Names of functions of `_records`, which look at the record of the run.
        says: What the command must say on stderr, if anything; a fault of the program that Paceline must explain.
    """

    program: tuple[str, ...]
    options: tuple[str, ...] | None = ()
    recipe: Recipe | None = None
    may_refuse: frozenset[str] = frozenset()
    ranks: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    code: int = 0
    device: str | None = "cuda"
    needs: tuple[str, ...] = ()
    same: bool = True
    checks: tuple[str, ...] = ()
    says: str | None = None


_ENDS = {"killed": 137, "terminated": 143, "interrupted": 130, "raises": 1, "exits": 7, "worker": 1, "aborts": 134}


def _code(program: str) -> int:
    """Return the exit code of a program: `loops.py` ends with 3, to see that it is passed on."""
    name, _, way = program.partition(" ")
    return 3 if name == "loops.py" else _ENDS[way] if name == "ends.py" else 0


def _run(program: str, *options: str, **more: Any) -> Scenario:
    more.setdefault("code", _code(program))
    return Scenario(program=tuple(program.split()), options=options, **more)


def _engine(*arguments: str, ranks: int = 2, **more: Any) -> Scenario:
    return Scenario(program=("engine.py", *arguments), options=None, ranks=ranks, **more)


def _applied(program: str, may_refuse: tuple[str, ...] = (), checks: tuple[str, ...] = (), **recipe: Any) -> Scenario:
    arguments, refused = tuple(program.split()), frozenset(may_refuse)
    return Scenario(program=arguments, recipe=recipe, may_refuse=refused, code=_code(program), checks=checks)


RECIPES = {
    "pin_memory": {"loader": {"pin_memory": True}},
    "device_prefetch": {"loader": {"pin_memory": True, "device_prefetch": True}},
    "tf32": {"precision": {"tf32": True}},
    "bf16": {"precision": {"autocast": "bf16"}},
    "fp16": {"precision": {"autocast": "fp16"}},
    "cudnn_benchmark": {"compute": {"cudnn_benchmark": True}},
    "attention": {"compute": {"sdpa_backend": "math"}},
    "fused": {"optimizer": {"fused": True}},
    "foreach": {"optimizer": {"foreach": True}},
    "checkpoint": {"memory": {"checkpoint_every": 2}},
    "activation_budget": {"memory": {"activation_budget": 0.5}},
    "micro_batches": {"memory": {"micro_batches": 2}},
}
REFUSED = {  # the model has neither attention nor convolutions, and the garbage of emulated kernels is not finite
    "attention": ("compute.sdpa_backend",),
    "cudnn_benchmark": ("compute.cudnn_benchmark",),
    "fp16": ("precision.autocast",),
}

SCENARIOS: dict[str, Scenario] = {
    **{f"loop: {way}": _run(f"loops.py {way}") for way in ("early", "kept", "evaluates", "thread")},
    "loop: whole": _run("loops.py whole", checks=("copies_in_steps", "operators_of_the_program")),
    "loop: captured steps": _run("loops.py whole", "--profile", "5:8", checks=("captured_steps_5_to_8",)),
    "loop: captured steps, then a process": _run("captured.py", "--profile", "5:8", checks=("captured_steps_5_to_8",)),
    "loop: no profiler window": _run("loops.py whole", "--no-profile"),
    **{f"processes: {way}": _run(f"forks.py {way}") for way in ("fork", "nested", "pool", "spawn", "forkserver")},
    "processes: fork before CUDA": _run("forks.py before"),
    **{f"end: {way}": _run(f"ends.py {way}", device=None) for way in _ENDS},
    **{f"precision: {way}": _run(f"precision.py {way}") for way in ("bf16", "fp16")},
    **{f"graphs: {way}": _run(f"graphs.py {way}") for way in ("again", "callables")},
    "graphs: whole": _run("graphs.py whole", checks=("replays_are_steps",)),
    **{f"profiler: {way}": _run(f"profiled.py {way}") for way in ("legacy", "kineto", "schedule")},
    **{f"devices: {way}": _run(f"devices.py {way}") for way in ("second", "current", "both", "split")},
    "devices: a GPU that is not used": _run("devices.py host", device="cpu"),
    "devices: none visible": _run("devices.py host", device="cpu", variables={"CUDA_VISIBLE_DEVICES": ""}),
    "streams: prefetcher of the program": _run("streams.py", checks=("copies_on_a_stream_of_their_own",)),
    "copies: conversions on the host": _run("casts.py", checks=("no_copies",)),
    "allocator: not torch's": _run("allocator.py"),
    "notebook": _run("notebook.py", needs=("nbclient", "ipykernel")),
    **{f"ranks: {way}": _run(f"ranks.py {way}", ranks=2) for way in ("ddp", "fsdp2", "accumulates", "forks")},
    "ranks: one GPU each": _run("ranks.py ddp", ranks=1, variables={"CUDA_VISIBLE_DEVICES": "1"}),
    "ranks: each sees its own GPU": _run("hidden.py own ranks.py ddp", ranks=2, checks=("all_gpus",)),
    **{
        f"recipe: {name}": _applied("loops.py whole", **recipe, may_refuse=REFUSED.get(name, ()))
        for name, recipe in RECIPES.items()
    },
    **{
        f"recipe: fused, {way}": _applied(
            f"kinds.py {way}", ("optimizer.fused",), ("fused_was_refused",), optimizer={"fused": True}
        )
        for way in ("complex", "sparse")
    },
    **{
        f"prefetch: {way}": _applied(f"moves.py {way}", **RECIPES["device_prefetch"], may_refuse=("loader.pin_memory",))
        for way in ("packed", "second", "host", "partly")
    },
    "recipe: pinned, fork before CUDA": _applied(
        "forks.py before", **RECIPES["device_prefetch"], may_refuse=("loader.pin_memory", "loader.device_prefetch")
    ),
    "recipe: prefetch, early": _applied(
        "loops.py early", **RECIPES["device_prefetch"], may_refuse=("loader.device_prefetch",)
    ),
    "recipe: prefetch, forks": _applied(
        "forks.py fork", **RECIPES["device_prefetch"], may_refuse=("loader.pin_memory", "loader.device_prefetch")
    ),
    "recipe: prefetch, graphs": _applied(
        "graphs.py whole", **RECIPES["device_prefetch"], may_refuse=("loader.pin_memory", "loader.device_prefetch")
    ),
    **{
        f"ranks, recipe: {name}": Scenario(program=("ranks.py", way), ranks=2, recipe={"ddp": recipe})
        for name, way, recipe in (
            ("bucket size", "ddp", {"bucket_cap_mb": 8}),
            ("bucket view", "ddp", {"gradient_as_bucket_view": True}),
            ("static graph", "ddp", {"static_graph": True}),
            ("fp16 gradients", "ddp", {"comm_hook": "fp16"}),
            ("one exchange", "sums", {"no_sync": True}),
        )
    },
    **{f"our loader: {way}": _run(f"our_loader.py {way}") for way in ("whole", "early", "forks", "raises")},
    **{
        f"our loader: {way}": Scenario(program=("loaders.py", *way.split()), options=None)
        for data in ("shards", "columns", "files", "mix", "lengths", "processes")
        for way in (data, f"{data} early")
    },
    "layout: run --layout dp=2": _run(  # it compares values before it trains, and an emulated device computes none
        "loops.py kept",
        "--layout",
        "dp=2",
        same=False,
        device=None,
        code=2,
        says="cannot be given parts of a batch: its output 0",
    ),
    **{  # with one process it does not run: it replaces the comparisons of `--layout`
        f"layout: {layout}, {way}": _run(
            f"split.py {way}",
            "--layout",
            layout,
            same=False,
            device=None if way in ("raises", "exits", "killed") else "cuda",
            code={"raises": 1, "exits": 7, "killed": 137}.get(way, 0),
            says={"raises": "the program's own fault", "killed": "was killed by"}.get(way),
        )
        for layout in ("dp=2", "shard=2")
        for way in ("whole", "thread", "early", "evaluates", "saves", "raises", "exits", "killed")
    },
    "layout: a rank sees no GPU": _run(
        "devices.py host",
        "--layout",
        "dp=2",
        same=False,
        device=None,
        code=2,
        says="no GPU is visible, but 1 of 2 ranks have one",
        variables={"GPUS": "1"},
    ),
    "engine: one device": _engine(ranks=0),
    **{f"engine: {layout}": _engine("--layout", layout) for layout in ("dp=2", "shard=2", "tp=2", "cp=2")},
    "engine: dp=2, bf16": _engine("--layout", "dp=2", "--precision", "bf16"),
    "engine: shard=2, checkpoints, parts": _engine(
        "--layout", "shard=2", "--accumulate", "2", "--checkpoint-activations", "1"
    ),
    "engine: each rank sees its own GPU": Scenario(
        program=("hidden.py", "own", "engine.py", "--layout", "dp=2"), options=None, ranks=2
    ),
    "engine: a rank sees no GPU": Scenario(
        program=("hidden.py", "none", "engine.py", "--layout", "dp=2"),
        options=None,
        ranks=2,
        code=1,
        says="no GPU is visible, but 1 of 2 ranks have one",
    ),
    "engine: our loader": Scenario(program=("engine_loader.py",), options=None),
    "engine: our loader, two ranks": Scenario(program=("engine_loader.py",), options=None, ranks=2),
    "engine: torch cannot compile": _engine("--compile", ranks=0, code=1, says="torch cannot compile here"),
    **{
        f"saves: {way}": Scenario(program=("saves.py", *way.split()), options=None, ranks=ranks)
        for way, ranks in (
            ("device --ema 0.9", 0),
            ("device --layout dp=2 --accumulate 2 --clip-norm 1 --timeout-s 60", 2),
            ("device --layout shard=2 --ema 0.9", 2),
            ("meta --layout shard=2 --ema 0.9", 2),
            ("weights --layout shard=2 --precision bf16", 2),
        )
    },
    "engine: random numbers": Scenario(program=("draws.py",), options=None, variables={"GPUS": "4", "NCCLFAKE": "1"}),
}
