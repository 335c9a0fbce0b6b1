"""``paceline plan for``: the best layout of a model on given machines, or the best machines for a model."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.base.files import FILE, FILE_ONLY, check_writable, opens_page, to_json
from paceline.cli.base.numbers import FiniteFloat
from paceline.cli.base.outputs import json_text, tell_written, write_text
from paceline.cli.base.program import ModelOrProgram, command_line, program_of, takes_program
from paceline.core.errors import UsageError

if TYPE_CHECKING:
    from paceline.hardware.catalogue import Instance
    from paceline.plan.models.adapters import Adapted
    from paceline.plan.models.architecture import Model
    from paceline.plan.models.captured_program import CapturedProgram
    from paceline.plan.models.counted_step import CountedStep
    from paceline.plan.search.advice import Target
    from paceline.plan.search.wish import Wish

_NUMBERS = (
    *("params", "layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "seq"),
    *("experts", "top_k", "expert_ffn"),
)
_FORMATS = click.Choice(["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"])
_SCHEDULES = click.Choice(["gpipe", "1f1b", "interleaved", "zero-bubble"])
_OPTIMIZERS = click.Choice(["adamw", "adam", "adam-8bit", "lion", "muon", "sgd-momentum", "adafactor", "sgd"])
_COUNT = click.IntRange(min=1)


@click.command(
    cls=ModelOrProgram,
    name="for",
    forms=(
        "[MODEL] --gpus NxCARD [OPTIONS]",
        "--gpus NxCARD [OPTIONS] SCRIPT [ARGS]...",
        "[MODEL] --catalogue --target-tokens N [OPTIONS]",
    ),
    examples=(
        "paceline plan llama-3-8b --gpus 64xH100-SXM --target-tokens 1t",
        "paceline plan llama-3-8b --gpus 8xp5.48xlarge --json plan.json",
        "paceline plan --gpus 8xA100-SXM-80GB train.py --epochs 1",
    ),
    groups={
        "Machines": ("--gpus", "--per-node", "--network", "--prices"),
        "Choice of machines": ("--catalogue", "--region", "--max-price", "--deadline"),
        "Model given by numbers": tuple(f"--{name.replace('_', '-')}" for name in (*_NUMBERS, "image")),
        "Training": ("--batch", "--precision", "--optimizer", "--eager", "--lora", "--lora-on", "--frozen-bits"),
        "Layout": ("--layout", "--micro-batch", "--schedule"),
        "Time and cost": ("--target-tokens", "--target-samples", "--price"),
        "Output": ("--recipe", "--json", "--html", "--open"),
    },
    exit_codes={"1": "no layout fits in memory with a probability of at least 0.9"},
)
@click.option("--params", metavar="N", help="Number of parameters, such as 8b.")
@click.option("--layers", type=_COUNT, metavar="N", help="Number of transformer blocks.")
@click.option("--hidden", type=_COUNT, metavar="N", help="Hidden size.")
@click.option("--heads", type=_COUNT, metavar="N", help="Number of attention heads.")
@click.option("--kv-heads", type=_COUNT, metavar="N", help="Number of key and value heads (grouped-query attention).")
@click.option("--ffn", type=_COUNT, metavar="N", help="Hidden size of the feed-forward layers.")
@click.option("--gated", is_flag=True, default=None, help="Use gated feed-forward layers (SwiGLU).")
@click.option("--vocab", type=_COUNT, metavar="N", help="Size of the vocabulary.")
@click.option("--seq", type=_COUNT, metavar="N", help="Sequence length in tokens.")
@click.option(
    "--image",
    type=_COUNT,
    metavar="N",
    help="Width and height of an image in pixels, for a convolutional model that is given as module:factory.",
)
@click.option(
    "--experts", type=_COUNT, metavar="N", help="Number of experts in a transformer block (mixture of experts)."
)
@click.option("--top-k", type=_COUNT, metavar="N", help="Number of experts that each token uses.")
@click.option("--expert-ffn", type=_COUNT, metavar="N", help="Hidden size of an expert.")
@click.option("--gpus", metavar="NxCARD", help="GPUs, such as 64xH100-SXM, or cloud instances, such as 8xp5.48xlarge.")
@click.option("--per-node", type=_COUNT, metavar="N", help="Number of GPUs in a node. Default: 8.")
@click.option(
    "--network",
    metavar="SPEED",
    help="Network speed of a node, such as 400gbps. Default: the usual speed for nodes with this GPU.",
)
@click.option("--catalogue", is_flag=True, help="Compare all cloud instances of the price table. Replaces --gpus.")
@click.option("--region", metavar="NAME", help="Consider only instances of this region (only with --catalogue).")
@click.option(
    "--max-price",
    type=FiniteFloat(min=0),
    metavar="USD",
    help="Highest price per hour of all machines together, in USD (only with --catalogue).",
)
@click.option(
    "--deadline",
    type=FiniteFloat(min=0),
    metavar="HOURS",
    help="Longest allowed training time, in hours (only with --catalogue).",
)
@click.option(
    "--batch",
    type=_COUNT,
    metavar="N",
    help="Number of samples per step, summed over all GPUs. Default: as many samples as contain about 4 million "
    "tokens.",
)
@click.option("--micro-batch", type=_COUNT, metavar="N", help="Consider only this micro-batch size.")
@click.option("--layout", metavar="AXES", help="Consider only this parallel layout, such as dp=2,shard=4,tp=2.")
@click.option("--schedule", type=_SCHEDULES, help="Consider only this pipeline schedule.")
@click.option(
    "--precision",
    type=_FORMATS,
    help="Data type of matrix products. Default: the data type that the program uses; without a program, bf16 (fp16 "
    "on a GPU without bf16).",
)
@click.option(
    "--optimizer", type=_OPTIMIZERS, help="Optimizer. Default: the optimizer of the program; without a program, adamw."
)
@click.option(
    "--lora", type=_COUNT, metavar="RANK", help="Train LoRA adapters of this rank. All other weights are frozen."
)
@click.option(
    "--lora-on",
    type=click.Choice(["qv", "all-linear"]),
    help="Layers that get LoRA adapters (only with --lora). Default: qv (the query and value projections).",
)
@click.option(
    "--frozen-bits",
    type=click.Choice(["4", "8", "16", "32"]),
    help="Number of bits of a frozen weight (only with --lora). Default: 16.",
)
@click.option(
    "--eager", is_flag=True, help="Assume that element-wise kernels are not fused (no torch.compile, no Megatron)."
)
@click.option("--target-tokens", metavar="N", help="Total number of training tokens, such as 15t.")
@click.option("--target-samples", metavar="N", help="Total number of training samples, such as 1.2m.")
@click.option(
    "--price", type=FiniteFloat(min=0), metavar="USD", help="Price per hour of all machines together, in USD."
)
@click.option(
    "--recipe",
    type=FILE_ONLY,
    metavar="FILE",
    help="Write a recipe for `paceline.train` to FILE, with the best layout that `paceline.train` supports.",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use your own price table (a CSV file) instead of the built-in table of instance prices.",
)
@to_json
@click.option("--html", type=FILE, metavar="FILE", help="Write the result to FILE, as one HTML file.")
@takes_program
@opens_page("plan")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Predict memory, time and cost of training MODEL, and find the best layout or the best machines for it.

    MODEL is a published name (llama-3-8b), a Hugging Face config.json, or module:factory, a function that returns a
    module. Instead of MODEL, give --params, --layers and --hidden, or a training script after all other options. The
    script runs only until its first step.
    """
    check_writable(options["json_file"], options["html"], options["recipe"])
    if options["catalogue"] == (options["gpus"] is not None):
        before = "; options must come before the program" if ctx.meta.get("program") else ""
        raise UsageError(
            f"give either --gpus, such as --gpus 64xH100-SXM or --gpus 8xp5.48xlarge, or --catalogue{before}"
        )
    _check_together(options)
    subject = _subject(ctx, options)
    return _catalogue(subject, options) if options["catalogue"] else _cluster(subject, options)


def _check_together(options: dict[str, Any]) -> None:
    """Raise a UsageError for options that exclude each other, or that need another option."""
    if options["target_tokens"] is not None and options["target_samples"] is not None:
        raise UsageError("--target-tokens and --target-samples exclude each other; give one of them")
    if options["recipe"] is not None and options["precision"] == "fp4":
        raise UsageError("paceline.train does not support fp4, so no recipe can be written; leave out --recipe")
    of_lora = [f"--{name.replace('_', '-')}" for name in ("lora_on", "frozen_bits") if options[name]]
    if of_lora and options["lora"] is None:
        raise UsageError(f"{', '.join(of_lora)} needs --lora RANK, such as --lora 16")
    if options["recipe"] is not None and options["lora"] is not None:
        raise UsageError("a recipe cannot describe LoRA adapters; leave out --recipe or --lora")
    of_catalogue = [f"--{name.replace('_', '-')}" for name in ("region", "max_price", "deadline") if options[name]]
    if of_catalogue and not options["catalogue"]:
        raise UsageError(f"{', '.join(of_catalogue)} needs --catalogue; give --catalogue instead of --gpus")
    of_machines = [
        f"--{name.replace('_', '-')}" for name in ("recipe", "price", "per_node", "network") if options[name]
    ]
    if of_machines and options["catalogue"]:
        raise UsageError(f"{', '.join(of_machines)} needs --gpus; give --gpus instead of --catalogue")


def _subject(ctx: click.Context, options: dict[str, Any]) -> str | None | CapturedProgram:
    """Return the model that the user named, or what the first step of the user's program shows; None without both."""
    from paceline.monitor.first_step import catch
    from paceline.plan.models.captured_program import read_program

    program = program_of(ctx, options)
    if not ctx.meta["program"]:
        if len(program.arguments) > 1:
            raise UsageError(
                f"expected one argument MODEL, not {len(program.arguments)} arguments: "
                f"{' '.join(program.arguments)}; if a launcher such as torchrun starts the program, give only the "
                f"script"
            )
        return program.arguments[0] if program.arguments else None
    note = catch(command_line(program), {**os.environ, "PACELINE_CATCH_STEP": "gpu"}).note
    found = read_program(note, {name: options[name] for name in _NUMBERS})
    for line in found.told:
        click.echo(line)
    return found


def _cluster(subject: str | None | CapturedProgram, options: dict[str, Any]) -> int:
    from paceline.cli.plan.next_step import after_plan
    from paceline.plan.cost.constants import fitted
    from paceline.plan.cost.machines import parse_machines
    from paceline.plan.cost.plan import recipe_toml
    from paceline.plan.search.advice import advise
    from paceline.report.plan import html as plan_html
    from paceline.report.plan import json as plan_json
    from paceline.report.plan import terminal as plan_terminal

    found = parse_machines(options["gpus"], options["per_node"], options["network"], _prices(options))
    advice = advise(_wish(subject, found.cluster, options), found, _target(options), fitted())
    for line in plan_terminal.lines_of(advice):
        click.echo(line)
    _write_json(options["json_file"], plan_json.to_json(advice))
    if options["html"] is not None:
        _write_page(options["html"], plan_html.to_html(advice, then=after_plan(advice, options)))
    if options["recipe"] is not None and advice.best is not None:
        write_text(options["recipe"], recipe_toml(advice.best, found.name, advice.wish.optimizer))
        tell_written(options["recipe"])
    elif options["recipe"] is not None:
        click.echo(
            f"paceline: {options['recipe']} was not written: no layout fits in memory with a probability of 0.9 or "
            f"more",
            err=True,
        )
    return 0 if advice.best is not None else 1


def _catalogue(subject: str | None | CapturedProgram, options: dict[str, Any]) -> int:
    from paceline.cli.plan.next_step import after_offers
    from paceline.plan.cost.constants import fitted
    from paceline.plan.cost.machines import parse_machines
    from paceline.plan.search.offers import OfferLimits, find_offers
    from paceline.report.plan import html as plan_html
    from paceline.report.plan import json as plan_json
    from paceline.report.plan import terminal as plan_terminal

    wish = _wish(subject, parse_machines("8xH100-SXM", None, None).cluster, options)
    steps = _target(options).steps(wish)
    if steps is None:
        raise UsageError(
            "--catalogue compares the cost of the whole training, so it needs the length of the training; give "
            "--target-tokens N or --target-samples N"
        )
    limits = OfferLimits(
        usd_per_hour=options["max_price"],
        hours=options["deadline"],
        region=options["region"],
        table=_prices(options),
    )
    found = find_offers(wish, steps, limits, fitted())
    for line in plan_terminal.offer_lines(found, date.today()):
        click.echo(line)
    _write_json(options["json_file"], plan_json.offers_to_json(found))
    if options["html"] is not None:
        then = after_offers(found)
        _write_page(options["html"], plan_html.offers_to_html(wish, found, steps, date.today(), then=then))
    return 0


def _wish(subject: str | None | CapturedProgram, cluster: Any, options: dict[str, Any]) -> Wish:
    from paceline.plan.cost.case import parse_layout
    from paceline.plan.models.captured_program import CapturedProgram
    from paceline.plan.models.lookup import model_of, parse_amount
    from paceline.plan.search.wish import Wish

    numbers = {name: options[name] for name in _NUMBERS}
    numbers["params"] = None if options["params"] is None else parse_amount(options["params"])
    caught = subject if isinstance(subject, CapturedProgram) else None
    if caught and options["lora"] is not None:
        raise UsageError("--lora has no effect on a program; name a MODEL instead of the program, or leave out --lora")
    if caught and caught.adapted.adapters and options["recipe"] is not None:
        raise UsageError(
            "the program trains LoRA adapters, and a recipe cannot describe LoRA adapters; leave out --recipe"
        )
    model = subject.model if isinstance(subject, CapturedProgram) else model_of(subject, numbers, options["image"])
    usual = caught.samples * cluster.count if caught else _usual_batch(model, cluster.count)
    return Wish(
        model=model,
        cluster=cluster,
        global_batch=options["batch"] or usual,
        precision=options["precision"] or (caught.precision if caught else _usual_format(cluster)),
        layout=None if options["layout"] is None else parse_layout(options["layout"]),
        micro_batch=options["micro_batch"],
        by_engine=options["recipe"] is not None,
        schedule=options["schedule"],
        kernels="eager" if options["eager"] else caught.kernels if caught else "fused",
        **_kept(caught, options["optimizer"]),
        adapted=caught.adapted if caught else _adapted(model, options),
        counted=_counted(caught, options),
    )


def _counted(caught: CapturedProgram | None, options: dict[str, Any]) -> CountedStep | None:
    """Return the kernels and bytes of the program, if it is planned with its own number format and optimizer."""
    if caught is None or options["optimizer"] is not None or options["precision"] not in (None, caught.precision):
        return None
    return caught.counted


def _adapted(model: Model, options: dict[str, Any]) -> Adapted:
    from paceline.plan.models.adapters import Adapted, low_rank_adapters

    if options["lora"] is None:
        return Adapted()
    return low_rank_adapters(model, options["lora"], options["lora_on"] or "qv", int(options["frozen_bits"] or 16))


def _usual_format(cluster: Any) -> str:
    """Return the usual 16-bit format of a GPU: bf16, or fp16 if the GPU does not support bf16."""
    peaks = cluster.gpu.peak_flops
    return "fp16" if "fp16" in peaks and "bf16" not in peaks else "bf16"


def _kept(caught: CapturedProgram | None, name: str | None) -> dict[str, Any]:
    """Return the optimizer and its bytes per weight: those requested, those of the user's program, or the default."""
    from paceline.plan.search.wish import OPTIMIZER_BYTES, Wish

    weight, gradient, optimizer = caught.states if caught else Wish.states
    if name is not None:
        return {"optimizer": name, "states": (weight, gradient, OPTIMIZER_BYTES[name])}
    return {"optimizer": caught.optimizer if caught else Wish.optimizer, "states": (weight, gradient, optimizer)}


def _target(options: dict[str, Any]) -> Target:
    from paceline.plan.models.lookup import parse_amount
    from paceline.plan.search.advice import Target

    tokens, samples = (options[name] and parse_amount(options[name]) for name in ("target_tokens", "target_samples"))
    source = "" if options["price"] is None else "given with --price"
    return Target(
        tokens=tokens, samples=samples, usd_per_hour=options["price"], price_source=source, today=date.today()
    )


def _prices(options: dict[str, Any]) -> tuple[Instance, ...] | None:
    from paceline.hardware.catalogue import read_instances

    return None if options["prices"] is None else read_instances(options["prices"])


def _usual_batch(model: Model, count: int) -> int:
    """Return the default batch size: about 4 million tokens, or 128 images on each GPU."""
    from paceline.plan.models.architecture import Transformer

    return max(count, 2 ** round(22 - _log2(model.seq))) if isinstance(model, Transformer) else 128 * count


def _log2(number: int) -> int:
    return number.bit_length() - 1


def _write_json(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        write_text(path, json_text(record))
        tell_written(path)


def _write_page(path: Path, page: str) -> None:
    write_text(path, page)
    tell_written(path)
