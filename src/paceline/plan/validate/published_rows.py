"""Published measurements: each row gives cases to predict, and the measured numbers to compare with.

The columns are those of the calibration file in the documentation; any of them can be empty. Predictions never use the
measured numbers. If a row does not give the micro-batch or the recomputation, every choice is a candidate and the
fastest one that fits is used, because published configurations are usually tuned.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

from paceline.core.errors import PacelineError, UsageError
from paceline.plan.cost.case import Case, Cluster, PlannedLayout, Training
from paceline.plan.cost.flops import model_flops
from paceline.plan.cost.machines import ELEMENT_BYTES, ceiling, gpu_named
from paceline.plan.models.architecture import ConvNet, Model, Transformer
from paceline.plan.models.convnets import convnet
from paceline.plan.models.counted_step import CountedStep
from paceline.plan.models.lookup import published_transformer, transformer_from_numbers
from paceline.plan.validate.framework_defaults import MemoryKind, SoftwareDescription, choices, memory_kind

REQUIRED = ("gpu", "n_gpus")
_DELIMITERS = ",;\t"  # delimiters of spreadsheets in different locales
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")
_USUAL_SEQ = {"llama": 4096, "llama-gqa": 4096}  # if the row does not give it; for GPT-like models that of GPT-2
_SEQ_OF_GPT2 = 1024
_STEPS_OF_A_FULL_PIPELINE = 4  # micro-batches per stage if the global batch is not given
_FITS_ALONE = 10e9  # weights; no current GPU trains a larger model alone
_USUAL_IMAGES = 256  # samples per GPU if the row of a convolutional network gives none; fewer if these do not fit
_ROOM_FOR_MAPS = 0.85  # share of a GPU's memory
_SGD = {
    "weight_bytes": 4.0,
    "gradient_bytes": 4.0,
    "optimizer_bytes": 4.0,
}  # SGD with momentum, the usual optimizer of such networks
_AVERAGE_OF_LONGEST = 0.3  # mean over longest sample in fine-tuning data: instruction sets have a median of a third
_FILLED = 0.6  # share of real tokens in samples of 512 tokens from a corpus of sentences
_INFINIBAND = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}  # Gb/s of one adapter


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One published configuration.

    Attributes:
        cases: Candidate configurations; the fastest that fits is used.
        timed: The same cases for which step times were published, for example with the mean sample length instead of
            the longest.
        reason: Why the row cannot be predicted, or "".
        sweep: Text that is equal for rows with the same model, sample length, GPUs and precision.
    """

    identity: str
    source: str
    cases: tuple[Case, ...] = ()
    timed: tuple[Case, ...] = ()
    reason: str = ""
    sweep: str = ""
    step_s: float | None = None  # measured
    memory_bytes: float | None = None
    memory_kind: MemoryKind = "reserved"
    out_of_memory: bool = False


def read_rows(path: Path) -> list[PublishedRow]:
    """Return the rows of a file of measurements; an invalid row has a reason instead of a case.

    Raises:
        UsageError: The file cannot be read, or lacks the columns that name a machine.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; give measurements as a CSV file in UTF-8"
        ) from None
    names = lines[0].lower() if lines else ""
    reader = csv.DictReader([names, *lines[1:]], delimiter=max(_DELIMITERS, key=names.count))
    reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
    missing = [name for name in REQUIRED if name not in reader.fieldnames]
    if missing:
        raise UsageError(f"{path} has no column {', '.join(missing)}; the columns are described in docs/how-to/plan.md")
    return [parse_row({key: (value or "").strip() for key, value in row.items() if key}) for row in _whole(reader)]


def _whole(reader: csv.DictReader[str]) -> list[dict[str, str]]:
    try:
        return [{key: value if isinstance(value, str) else "" for key, value in row.items()} for row in reader]
    except csv.Error as error:
        raise UsageError(f"line {reader.line_num} is not valid CSV ({error})") from None


def parse_row(row: Mapping[str, str]) -> PublishedRow:
    """Return the cases and measurements of a row of the file, or the reason why it cannot be predicted."""
    identity = row.get("id", "")
    source = row.get("source", "") or "unnamed"
    try:
        cases = _cases(row)
        timed = tuple(_as_timed(case, row) for case in cases)
        return PublishedRow(
            identity=identity,
            source=source,
            cases=cases,
            timed=timed,
            sweep="/".join(row.get(name, "") for name in ("model", "seq_len", "gpu", "n_gpus", "precision")),
            step_s=_step_s(row, cases[0], timed[0]),
            memory_bytes=_memory(row),
            memory_kind=memory_kind(row.get("framework", "").lower()),
            out_of_memory=row.get("status", "").lower() == "oom",
        )
    except PacelineError as error:
        return PublishedRow(identity=identity, source=source, reason=str(error))


def parse_number(row: Mapping[str, str], name: str) -> float | None:
    """Return the number in a column of a row; None if it is empty.

    Raises:
        UsageError: The column does not contain a number above zero.
    """
    text = row.get(name, "")
    text = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    if not text or text.lower() in ("nan", "n/a", "none", "-"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        point = "; use a point for decimals" if "," in text else ""
        raise UsageError(f"{name} is {text!r}; it must be a number above zero{point}")
    return value


def parse_count(row: Mapping[str, str], name: str) -> int | None:
    """Return the whole number in a column of a row; None if it is empty.

    Raises:
        UsageError: The column does not contain a whole number above zero.
    """
    value = parse_number(row, name)
    if value is not None and value != int(value):
        raise UsageError(f"{name} is {row[name]!r}; it must be a whole number")
    return None if value is None else int(value)


def _cases(row: Mapping[str, str]) -> tuple[Case, ...]:
    cluster = _cluster(row)
    model = _model(row)
    layout = _layout(row, cluster.count)
    fixed = choices(_said(row))
    fixed["precision"] = fixed["precision"] or ("bf16" if "bf16" in cluster.gpu.peak_flops else "fp16")
    ceiling(cluster.gpu, fixed["precision"])  # raises if the GPU lacks the format
    if _unsaid(row) and isinstance(model, Transformer) and model.params > _FITS_ALONE:
        raise UsageError(
            "the row contains no parallel layout (no axis and no sharding), and the model is too large for one GPU"
        )
    if layout.dp > 1 and fixed["sharded"] == "parameters":
        layout = replace(layout, dp=1, shard=layout.dp)
    trained = _adapters(row.get("extra", ""), fixed)
    fixed["counted"] = _counted(row.get("extra", ""))
    if isinstance(model, ConvNet):
        fixed |= _SGD
    per_replica, sizes = _batches(row, model, layout, _images(model, cluster, fixed["precision"]))
    cases = []
    ways = [fixed | trained | {"recompute": way} for way in _recomputed(row, model)] or [fixed | trained]
    for size, chunks, way in product(sizes, _chunks(row, model, layout), ways):
        steps = max(1, round(per_replica / size)) if per_replica else _STEPS_OF_A_FULL_PIPELINE * layout.pp
        micro = per_replica / steps if per_replica else size
        how = Training(micro_batch=micro, micro_steps=steps, chunks=chunks, **way)
        cases.append(Case(model=model, layout=layout, training=how, cluster=cluster))
    return tuple(cases)


def _unsaid(row: Mapping[str, str]) -> bool:
    """Return whether the row states no parallel layout."""
    axes = [row.get(axis, "") for axis in ("tp", "dp", "pp")]
    return not any(axis not in ("", "1") for axis in axes) and row.get("sharding", "").lower() in ("", "none")


def _recomputed(row: Mapping[str, str], model: Model) -> tuple[str, ...]:
    """Return the kinds of recomputation to try; empty if the row states one, or for convolutional networks."""
    if row.get("act_ckpt") or not isinstance(model, Transformer):
        return ()
    return ("none", "cheap", "operators", "full")


def _chunks(row: Mapping[str, str], model: Model, layout: PlannedLayout) -> list[int]:
    """Return the numbers of pipeline stages per rank to try.

    This is the published number; without one, all divisors of the blocks of a rank, if the micro-batch is not given
    either.
    """
    given = parse_count(row, "vpp")
    if given or row.get("micro_batch") or layout.pp == 1 or not isinstance(model, Transformer):
        return [given or 1]
    blocks = model.layers // layout.pp
    return [chunks for chunks in range(1, blocks + 1) if blocks % chunks == 0]


def _images(model: Model, cluster: Cluster, number_format: str) -> int:
    """Return the usual number of samples per GPU of a convolutional network; 1 for other models."""
    if not isinstance(model, ConvNet):
        return 1
    each = model.kept * ELEMENT_BYTES[number_format] + model.kept_bytes
    fitting = max(1, int(_ROOM_FOR_MAPS * cluster.memory_bytes / each))
    return min(_USUAL_IMAGES, 1 << (fitting.bit_length() - 1))


def _batches(
    row: Mapping[str, str], model: Model, layout: PlannedLayout, images: int
) -> tuple[float | None, list[float]]:
    """Return the samples of a replica in a step (None if unknown), and the micro-batch sizes to try."""
    total, micro = parse_number(row, "global_batch"), parse_number(row, "micro_batch")
    if micro is not None and "in tokens" in row.get("notes", "") and isinstance(model, Transformer):
        micro /= model.seq
        total = None if total is None else total / model.seq
    replicas = layout.dp * layout.shard
    steps = row.get("grad_accum", "")
    if total is None and micro is not None and (steps.isdigit() or layout.pp == 1):
        total = micro * replicas * (int(steps) if steps.isdigit() else 1)
    per_replica = None if total is None else total / replicas
    if per_replica is not None and per_replica < 1 and micro is None:
        raise UsageError(f"a global batch of {total:g} is smaller than the {replicas} replicas")
    if micro is not None:
        return per_replica, [min(micro, per_replica or micro)]
    if isinstance(model, ConvNet):
        return per_replica, [min(images, per_replica or images)]
    if per_replica is None and micro is None:
        raise UsageError("neither a micro-batch nor a global batch is given")
    return per_replica, [float(2**power) for power in range(7) if 2**power <= per_replica]


def _cluster(row: Mapping[str, str]) -> Cluster:
    if not row.get("gpu"):
        raise UsageError("the row does not name the GPU")
    count = parse_count(row, "n_gpus") or _ranks(row)
    gpu = gpu_named(row["gpu"], parse_number(row, "gpu_mem_gib"))
    return Cluster(
        gpu=gpu,
        count=count,
        per_node=min(parse_count(row, "gpus_per_node") or min(8, count), 72),
        network_bytes_per_s=_network(row.get("network", "")),
        memory_gib=parse_number(row, "gpu_mem_gib"),
    )


def _ranks(row: Mapping[str, str]) -> int:
    """Return the number of GPUs, computed as the product of the published axes of the layout."""
    sizes = [size for axis in ("tp", "pp", "dp", "cp") if (size := parse_count(row, axis))]
    if not sizes:
        raise UsageError("neither n_gpus nor an axis of the layout is given")
    return math.prod(sizes)


def _network(text: str) -> float | None:
    """Return bytes/s per node, one way, for ``1600Gbps/node RoCE`` or ``8x HDR IB/node``; None if unknown."""
    words = text.lower()
    for name, gbps in _INFINIBAND.items():
        words = re.sub(rf"\b{name}({gbps})?\b", f"{gbps}gb", words)
    found = re.search(r"(?:(\d+)\s*x\s*)?[a-z\- ]*?(\d+)\s*gb", words)
    if found is None:
        return None
    one_way = float(found[1] or 1) * float(found[2]) / 8 * 1e9
    return one_way * 8 if "per gpu" in words else one_way


def _model(row: Mapping[str, str]) -> Model:
    name = row.get("model", "") or "an unnamed model"
    if row.get("arch", "") == "cnn":
        return convnet(name)
    seq = parse_count(row, "seq_len")
    found = published_transformer(name)
    layers, hidden = parse_count(row, "layers"), parse_count(row, "hidden")
    if found is None and not (layers or hidden or row.get("params_b") or row.get("arch")):
        try:
            return convnet(name)
        except UsageError:
            raise UsageError(f"unknown model {name!r}, and neither layers, width nor weights are given") from None
    if found is not None and (layers is None or layers == found.layers) and (hidden is None or hidden == found.hidden):
        return replace(found, seq=seq) if seq else found
    params = parse_number(row, "params_b")
    if row.get("arch", "") in ("moe", "encdec", "transformer-xl", "cnn-det"):
        raise UsageError(
            f"the architecture of {name} is unknown, and the number of layers and the width do not determine it"
        )
    vocab = re.search(r"vocab (\d+)", row.get("notes", ""))
    given = {
        "layers": layers,
        "hidden": hidden,
        "heads": parse_count(row, "heads"),
        "vocab": int(vocab[1]) if vocab else None,
    }
    known = {key: value for key, value in given.items() if value}
    weights = None if params is None else params * 1e9
    if not known and weights:
        known = _even_stages(weights, parse_count(row, "pp") or 1)
    return transformer_from_numbers(
        name,
        arch=row.get("arch", "") or "gpt",
        params=weights,
        seq=seq or _USUAL_SEQ.get(row.get("arch", ""), _SEQ_OF_GPT2),
        given=known,
    )


def _even_stages(params: float, pp: int) -> dict[str, int]:
    """Return depth and width for a number of weights, with a depth that is a multiple of the pipeline stages."""
    usual = transformer_from_numbers("", params=params, seq=1)
    layers = max(1, round(usual.layers / pp)) * pp
    return {"layers": layers, "hidden": max(128, round((params / 12 / layers) ** 0.5 / 128) * 128)}


def _layout(row: Mapping[str, str], count: int) -> PlannedLayout:
    given = {axis: parse_count(row, axis) for axis in ("tp", "pp", "cp", "dp")}
    tp, pp, cp = (given[axis] or 1 for axis in ("tp", "pp", "cp"))
    if given["tp"] is None and given["dp"] is not None and count % (pp * cp * given["dp"]) == 0:
        tp = count // (pp * cp * given["dp"])
    if given["dp"] and tp * pp * given["dp"] > count:
        raise UsageError(f"tp={tp}, pp={pp} and dp={given['dp']} take more than {count} GPUs")
    if count % (tp * pp * cp):
        raise UsageError(f"{count} GPUs cannot be split evenly by tp={tp}, pp={pp} and cp={cp}")
    dp = count // (tp * pp * cp)
    return PlannedLayout(dp=dp, tp=tp, pp=pp, cp=cp, ep=parse_count(row, "ep") or 1)


def _said(row: Mapping[str, str]) -> SoftwareDescription:
    words = {name: row.get(name, "").lower() for name in ("framework", "precision", "sharding", "extra")}
    year = row.get("year", "")
    return SoftwareDescription(
        recompute=row.get("act_ckpt", "").lower(), year=int(year) if year.isdigit() else 2024, **words
    )


def _adapters(extra: str, fixed: Mapping[str, object]) -> dict[str, object]:
    found = re.search(r"\b(lora|adapter_v2|adapter)\b", extra.lower())
    if found is None:
        return {}
    weights = re.search(r"trainable=([\d,]+)", extra)
    quantised = re.search(r"quant=bnb\.(\w+(?:-dq)?)", extra)
    bits = {"nf4": 4.5, "fp4": 4.5, "nf4-dq": 4.127, "fp4-dq": 4.127, "int8": 8.0}
    return {
        "adapters": found[1],
        "trainable": int(weights[1].replace(",", "")) if weights else 0,
        "frozen_bits": bits.get(quantised[1], 16.0) if quantised else 16.0,
    }


def _counted(extra: str) -> CountedStep | None:
    """Return the kernels and bytes that were counted in the measured program; None if the row has none."""
    given = dict(re.findall(r"\b(\w+)=([\d.]+)", extra))
    names = [field.name for field in fields(CountedStep)]
    return CountedStep(**{name: float(given[name]) for name in names}) if set(names) <= set(given) else None


def _as_timed(case: Case, row: Mapping[str, str]) -> Case:
    notes, model = row.get("notes", ""), case.model
    if isinstance(model, Transformer):
        filled = _AVERAGE_OF_LONGEST if "longest" in notes else _FILLED if _is_padded(model) else 1.0
        case = replace(case, model=replace(model, seq=max(1, round(model.seq * filled))))
    if "per micro-iteration" in notes:
        case = replace(case, training=replace(case.training, micro_steps=1))
    return case


def _is_padded(model: Transformer) -> bool:
    """Return whether programs skip the padding of samples: BERT models with long samples."""
    return model.name.startswith("BERT") and model.seq >= 512


def _step_s(row: Mapping[str, str], case: Case, timed: Case) -> float | None:
    """Return the measured step time in seconds, computed from a published time or rate; None without one.

    A published rate counts padding as tokens.
    """
    step = parse_number(row, "iter_time_s")
    if step is not None:
        return step
    seq = case.model.seq if isinstance(case.model, Transformer) else 1
    tokens = parse_number(row, "tokens_per_s_per_gpu")
    if tokens is not None:
        return timed.global_batch * seq / tokens / timed.cluster.count
    samples = parse_number(row, "samples_per_s")
    if samples is not None:
        return timed.global_batch / samples
    flops = parse_number(row, "tflops_per_gpu")
    if flops is None or not isinstance(timed.model, Transformer):
        return None
    return model_flops(timed) / (flops * 1e12 * timed.cluster.count)


def _memory(row: Mapping[str, str]) -> float | None:
    value = parse_number(row, "peak_mem_gib")
    return None if value is None else value * (1e9 if "GB=1e9" in row.get("notes", "") else 2**30)
