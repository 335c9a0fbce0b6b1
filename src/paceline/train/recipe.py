"""The settings of a training run, from Python values, a TOML file or the command line.

The tables and names are those of the recipes that `paceline tune` writes. Each part defines and checks its own
settings; this module combines them.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout, parse
from paceline.train.activations import Memory
from paceline.train.average import Ema
from paceline.train.compilation import Compute
from paceline.train.gradients import Clipping, is_number
from paceline.train.parallel.asynchronous import Asynchronous
from paceline.train.parallel.dp import GradientExchange
from paceline.train.parallel.layers import Layers
from paceline.train.parallel.local import Local
from paceline.train.parallel.pp import Pipeline
from paceline.train.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What is verified before a run on several ranks; table ``[checks]`` of a recipe."""

    first_step: bool = True  # compare the split model with the whole one on the first batch
    samples: bool = True  # refuse a dataset in which samples depend on each other, or read whole batches

    def __post_init__(self) -> None:
        for name, value in (("first_step", self.first_step), ("samples", self.samples)):
            if not isinstance(value, bool):
                raise UsageError(f"checks.{name} = {value!r} is not allowed; it takes true or false")


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """How ranks wait for each other; table ``[process_group]`` of a recipe."""

    timeout_s: float | None = None  # longest wait of a collective; None: torch's default

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not (is_number(self.timeout_s) and 0 < self.timeout_s < float("inf")):
            raise UsageError(
                f"process_group.timeout_s = {self.timeout_s!r} is not allowed; it takes a number of seconds above 0"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of all parts and the layout; the default is one process in fp32."""

    layout: Layout = field(default_factory=Layout)
    precision: Precision = field(default_factory=Precision)
    memory: Memory = field(default_factory=Memory)
    optimizer: Clipping = field(default_factory=Clipping)
    pipeline: Pipeline = field(default_factory=Pipeline)
    layers: Layers = field(default_factory=Layers)
    local: Local = field(default_factory=Local)
    asynchronous: Asynchronous = field(default_factory=Asynchronous)
    ddp: GradientExchange = field(default_factory=GradientExchange)
    checks: Checks = field(default_factory=Checks)
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    ema: Ema = field(default_factory=Ema)
    compute: Compute = field(default_factory=Compute)

    @property
    def apart(self) -> bool:
        """Whether replicas step independently, each with its own optimizer."""
        return self.local.every is not None or self.asynchronous.max_staleness is not None

    @property
    def micro_batches(self) -> int:
        """Number of parts of a batch; without a setting twice the ranks of a pipeline, and 1 without pp."""
        by_default = 2 * self.layout.pp if self.layout.pp > 1 else 1
        return self.memory.micro_batches or by_default

    def check(self) -> None:
        """Check that the settings are compatible with each other and with the layout.

        Raises:
            UsageError: They are not.
        """
        self.local.check(self.layout)
        self.layers.check(self.layout)
        self.precision.check(self.layout)
        self.asynchronous.check(self.layout, meets=self.local.every is not None)
        self.compute.check(
            self.layout,
            weighs=self.memory.activation_budget is not None,
            spreads=bool(self.layers.devices),
        )
        self.ema.check(apart=self.apart)
        self.ddp.check(self.layout, alone=self.apart, scaled=self.precision.autocast == "fp16")
        if self.layout.pp > 1:
            self.pipeline.check(self.layout.pp, self.micro_batches)


_PARTS = {
    "precision": Precision,
    "memory": Memory,
    "optimizer": Clipping,
    "pipeline": Pipeline,
    "layers": Layers,
    "local": Local,
    "asynchronous": Asynchronous,
    "ddp": GradientExchange,
    "checks": Checks,
    "process_group": ProcessGroup,
    "ema": Ema,
    "compute": Compute,
}


def of(given: Recipe | Mapping[str, Any] | argparse.Namespace | str | Path | None) -> Recipe:
    """Return a recipe from tables, command-line arguments or a TOML file; for None, one process in fp32.

    Raises:
        UsageError: A setting is not allowed.
    """
    if isinstance(given, Recipe):
        given.check()
        return given
    if isinstance(given, argparse.Namespace):
        return from_arguments(given)
    return read(given) if isinstance(given, str | Path) else made(given or {})


def read(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file.

    Raises:
        UsageError: The file cannot be read, is not TOML, or has a setting that the engine does not have.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} is not a recipe: {error}") from error
    return made(content, str(path))


def made(content: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Create a recipe from tables as TOML has them.

    Args:
        content: The tables.
        where: The name of the source, for messages.

    Raises:
        UsageError: A table or a setting is unknown, or a value is not allowed.
    """
    found: dict[str, Any] = {}
    for table, settings in content.items():
        if table == "layout":
            found[table] = parse(str(settings))
            continue
        part = _PARTS.get(table)
        if part is None or not isinstance(settings, Mapping):
            raise UsageError(f'{where}: the engine has no table [{table}]; it has layout = "...", {_names(_PARTS)}')
        found[table] = _part(part, table, settings, where)
    recipe = Recipe(**found)
    recipe.check()
    return recipe


def _part(part: type[Any], table: str, settings: Mapping[str, Any], where: str) -> Any:
    """Create one part of a recipe from its table."""
    known = [each.name for each in fields(part)]
    for key in settings:
        if key not in known:
            raise UsageError(
                f"{where}: the engine has no setting {table}.{key}; [{table}] has {', '.join(known)}. To apply "
                "settings to an unchanged script, use `paceline run --recipe`"
            )
    return part(**settings)


def _names(tables: Mapping[str, Any]) -> str:
    return ", ".join(f"[{name}]" for name in tables)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine's options to the command line of a script."""
    add = parser.add_argument_group("engine").add_argument
    add("--recipe", metavar="FILE", help="settings as TOML; flags override them")
    add("--layout", metavar="AXES", help="how ranks are arranged, such as dp=2,tp=2")
    add("--precision", metavar="NAME", help="fp32, tf32, bf16 or fp16")
    add(
        "--accumulate",
        metavar="N",
        type=int,
        help="split each batch into N parts, which are computed one after the other",
    )
    add("--checkpoint-activations", metavar="HOW", help="none, full, selective, or a share to keep such as 0.5")
    add("--clip-norm", metavar="X", type=float, help="maximum norm of all gradients together")
    add("--compile", metavar="MODE", nargs="?", const="default", help="default, reduce-overhead or max-autotune")
    add("--ema", metavar="DECAY", type=float, help="average the parameters over the steps, such as 0.999")
    add("--timeout-s", metavar="X", type=float, help="longest wait for another rank in seconds, before the run ends")
    add("--schedule", metavar="NAME", help="of pipeline stages: gpipe, 1f1b, interleaved or zero-bubble")


def from_arguments(arguments: argparse.Namespace) -> Recipe:
    """Create a recipe from the options of `add_arguments`. Options that are not given come from the recipe file.

    Raises:
        UsageError: A value is not allowed, or settings are not compatible.
    """
    given = vars(arguments)
    recipe = read(given["recipe"]) if given.get("recipe") else Recipe()
    if given.get("layout") is not None:
        recipe = replace(recipe, layout=parse(given["layout"]))
    if given.get("precision") is not None:
        recipe = replace(recipe, precision=Precision.named(given["precision"]))
    if given.get("schedule") is not None:
        recipe = replace(recipe, pipeline=replace(recipe.pipeline, schedule=given["schedule"]))
    if given.get("clip_norm") is not None:
        recipe = replace(recipe, optimizer=Clipping(clip_norm=given["clip_norm"]))
    if given.get("compile") is not None:
        recipe = replace(recipe, compute=Compute(compile=given["compile"]))
    if given.get("ema") is not None:
        recipe = replace(recipe, ema=Ema(decay=given["ema"]))
    if given.get("timeout_s") is not None:
        recipe = replace(recipe, process_group=ProcessGroup(timeout_s=given["timeout_s"]))
    recipe = replace(recipe, memory=recipe.memory.changed(given.get("accumulate"), given.get("checkpoint_activations")))
    recipe.check()
    return recipe
