"""Functions that count, select, split and join the samples of batches.

A batch is a tensor with samples in dimension 0, or nested tuples, lists and dictionaries of such tensors. A list can
also have one entry for each sample, such as the targets of a detection model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from paceline.core.errors import UsageError

_MOST_CHANNELS = 4  # of an image
_MOST_INPUTS = 2  # a longer list of dictionaries has one dictionary for each sample


def has_lists(batch: Any) -> bool:
    """Return whether a batch contains lists, such as one of the boxes of each image.

    In a batch of few samples, it can be unknown whether the entries of a list are samples.
    """
    if isinstance(batch, Mapping):
        return any(map(has_lists, batch.values()))
    return isinstance(batch, list) or isinstance(batch, tuple) and any(map(has_lists, batch))


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch; 0 if it has no tensors and no lists.

    Raises:
        UsageError: The sizes of the tensors and lists do not fit together.
    """
    candidates = [size for _, _, size in sorted(_candidates(batch, 0))]
    listed, has_dictionaries = _count_lists(batch)
    likely = [size for size in candidates if size > 1 and _is_in_all(batch, size)]
    first = [listed] if has_dictionaries else []
    found = next((size for size in [*first, *likely, *candidates] if size and _fits(batch, size)), None)
    if listed and found and found <= _MOST_CHANNELS and found != listed and _fits(batch, listed):
        raise _unknown("tensors", listed, found)
    if found is None and candidates:
        sizes = ", ".join(map(str, dict.fromkeys(candidates)))
        raise UsageError(
            f"a batch cannot be split into samples, because its tensors and lists have different sizes ({sizes}); use "
            "a collate_fn that returns tensors with samples in dimension 0, or lists with one entry for each sample"
        )
    return found or 0


def _count_lists(batch: Any) -> tuple[int, bool]:
    """Return the length of the lists of a batch, and whether one of them has dictionaries, such as boxes of each image.

    Returns:
        (0, False) unless the inputs are a list, there is another list, and the lists have the same length.
    """
    if not isinstance(batch, tuple | list) or not batch or not isinstance(batch[0], tuple | list):
        return 0, False
    lists = [each for each in batch if isinstance(each, tuple | list) and not hasattr(each, "_fields")]
    if len(lists) < 2 or len({len(each) for each in lists}) > 1 or not lists[0]:
        return 0, False
    return len(lists[0]), any(_are(Mapping, each) for each in lists[1:])


def _is_in_all(batch: Any, count: int) -> bool:
    """Return whether each value of a batch that has tensors or lists has one with exactly this number of entries."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    sizes = [{size for _, _, size in _candidates(each, 1)} for each in values]
    return all(count in each for each in sizes if each)


def _candidates(value: Any, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield (priority, depth, size) of tensors and lists. A low priority number is a likely number of samples."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _candidates(each, depth)
    elif isinstance(value, tuple | list):
        if len(value) > _MOST_INPUTS and _are(Mapping, value):
            yield 0, depth, len(value)
        elif depth:
            yield 2, depth, len(value)
        for each in value:
            yield from _candidates(each, depth + 1)
    elif getattr(value, "ndim", 0):
        yield 1, depth, int(value.shape[0])


def _fits(value: Any, count: int, depth: int = 0) -> bool:
    """Return whether a value can be split into this number of samples."""
    if isinstance(value, Mapping):
        return all(_fits(each, count, depth + 1) for each in value.values())
    if isinstance(value, tuple | list):
        return is_list_of_samples(value, count, depth) or all(_fits(each, count, depth + 1) for each in value)
    return not getattr(value, "ndim", 0) or len(value) in (1, count)


def is_list_of_samples(values: Sequence[Any], count: int, depth: int = 1) -> bool:
    """Return True if each entry of a list is one sample, False if each is one input of the model for all samples.

    Args:
        values: The list, or a tuple.
        count: The number of samples of the batch.
        depth: The number of containers around the list. At depth 0, only a list of dictionaries is a list of samples.

    Raises:
        UsageError: Both are possible, such as for three tensors of three rows.
    """
    if len(values) != count or hasattr(values, "_fields"):
        return False
    if _are(Mapping, values):
        return count > _MOST_INPUTS or _are_samples(values)
    if not depth:
        return False
    if all(getattr(value, "ndim", 0) for value in values):
        return len({(value.ndim, value.dtype) for value in values}) == 1 and _tensors_are_samples(values)
    if _are(tuple | list, values):
        return not all(_fits(value, count, depth + 1) for value in values) or _tuples_are_samples(values)
    return _are(str | bytes | int | float, values) or all(getattr(value, "ndim", None) == 0 for value in values)


def _are_samples(values: Sequence[Mapping[Any, Any]]) -> bool:
    """Return True if each dictionary is one sample, False if each is one input of the model for all samples.

    Raises:
        UsageError: Both are possible.
    """
    if any(value.keys() != values[0].keys() for value in values):
        return False
    sizes = {len(each) for value in values for each in value.values() if getattr(each, "ndim", 0)}
    if sizes == {len(values)} and len(values) > 1:
        raise _unknown("dictionaries of tensors", len(values), len(values))
    return True


def _tuples_are_samples(values: Sequence[Sequence[Any]]) -> bool:
    """Return True if each tuple is one sample, False if each is one input of the model for all samples.

    Args:
        values: As many tuples as samples. If a tuple is for all samples, its entries are samples.

    Raises:
        UsageError: Both are possible.
    """
    if any(len(value) != len(values) or not all(getattr(each, "ndim", 0) for each in value) for value in values):
        return False
    rows = {tuple(len(each) for each in value) for value in values}
    if len(rows) == 1 and len(set(*rows)) == 1 and len(values) > 1 and set(*rows) != {len(values)}:
        raise _unknown("tuples of tensors", len(values), len(values[0][0]))
    return len(rows) > 1


def _tensors_are_samples(values: Sequence[Any]) -> bool:
    """Return True if each tensor is one sample, False if each is one input of the model for all samples.

    Raises:
        UsageError: Both are possible.
    """
    if any(len(value) != len(values) for value in values):
        return True
    if len(values) > _MOST_INPUTS and values[0].ndim > _MOST_INPUTS:  # such as images of as many channels
        raise _unknown("tensors", len(values), len(values))
    return False


def _unknown(what: str, entries: int, rows: int) -> UsageError:
    return UsageError(
        f"a batch has a list of {entries} {what} with {rows} rows each, so it is unknown whether each entry is a "
        "sample; use larger batches or micro-batches"
    )


def _are(kinds: Any, values: Sequence[Any]) -> bool:
    return all(isinstance(value, kinds) for value in values)


def select_rows(batch: Any, size: int, rows: Sequence[int]) -> Any:
    """Return some samples of a batch that a `collate_fn` returned, in a container of the same type.

    Args:
        batch: The batch.
        size: The number of samples that the `collate_fn` got.
        rows: The positions of the samples to return.

    Raises:
        UsageError: The samples of the batch cannot be selected.
    """
    try:
        fits = _has_known_types(batch) and _fits(batch, size)
    except UsageError:  # it is unknown whether a list has one entry for each sample
        fits = False
    if not fits:
        raise UsageError(
            f"the collate_fn returned a batch of {size} samples of which this rank cannot select its own; return "
            "tensors with samples in dimension 0, or lists with one entry for each sample. If no sample of a batch "
            "depends on the others, set checks.samples = false, and each rank reads only its part"
        )
    is_range = list(rows) == list(range(rows[0], rows[0] + len(rows)))
    found = select_samples(batch, size, slice(rows[0], rows[0] + len(rows)) if is_range else rows)
    if not isinstance(batch, Mapping) or type(found) is type(batch):
        return found
    make: Any = type(batch)
    return make(found)  # such as Hugging Face's BatchEncoding


def _has_known_types(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_has_known_types, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_has_known_types, value))
    return value is None or isinstance(value, str | bytes | int | float) or hasattr(value, "ndim")


def select_samples(batch: Any, count: int, which: slice | Sequence[int], depth: int = 0) -> Any:
    """Return some samples of a batch. Numbers, tensors of one row, and other objects are returned unchanged.

    Args:
        batch: The batch, or one of its values.
        count: The number of samples of the batch, from `count_samples`.
        which: The samples.
        depth: The number of containers around the value.
    """
    if isinstance(batch, Mapping):  # Hugging Face's BatchEncoding too, which becomes a dictionary
        found = {key: select_samples(value, count, which, depth + 1) for key, value in batch.items()}
        return type(batch)(**found) if is_dataclass(batch) else found  # outputs of Hugging Face models
    if isinstance(batch, tuple | list):
        if is_list_of_samples(batch, count, depth):
            return batch[which] if isinstance(which, slice) else like(batch, [batch[row] for row in which])
        return like(batch, [select_samples(value, count, which, depth + 1) for value in batch])
    return batch[which] if getattr(batch, "ndim", 0) and len(batch) == count else batch


def is_splittable(value: Any) -> bool:
    """Return whether a value consists of tensors and plain values only, which `select_samples` can split."""
    if isinstance(value, Mapping):
        return (type(value) is dict or is_dataclass(value)) and all(map(is_splittable, value.values()))
    if isinstance(value, tuple | list):
        return all(map(is_splittable, value))
    plain = value is None or isinstance(value, str | bytes | int | float) or hasattr(value, "ndim")
    return plain or type(value).__module__.startswith("transformers.")  # a cache, which no loss reads


def split_batch(batch: Any, number: int) -> list[Any]:
    """Split a batch into parts with equal numbers of samples.

    Raises:
        UsageError: The number of samples is unknown, or not a multiple of the number of parts.
    """
    if number == 1:
        return [batch]
    count = count_samples(batch)
    if count % number:
        raise UsageError(
            f"a batch of {count} samples cannot be split into {number} equal micro-batches; set "
            "memory.micro_batches (--accumulate) to a number that divides it, or use another batch size"
        )
    size = count // number
    return [select_samples(batch, count, slice(i * size, (i + 1) * size)) for i in range(number)]


def join_batches(batches: Sequence[Any], counts: Sequence[int], depth: int = 0) -> Any:
    """Return one batch with the samples of several batches.

    Args:
        batches: The batches.
        counts: The number of samples of each batch.
        depth: The number of containers around the batches.
    """
    import torch

    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: join_batches([part[key] for part in batches], counts, depth + 1) for key in first}
    if isinstance(first, tuple | list):
        if all(is_list_of_samples(part, count, depth) for part, count in zip(batches, counts, strict=True)):
            return like(first, [sample for part in batches for sample in part])
        return like(first, [join_batches(column, counts, depth + 1) for column in zip(*batches, strict=True)])
    is_split = getattr(first, "ndim", 0) and len(first) == counts[0]
    return torch.cat(list(batches)) if is_split else first


def like(batch: Any, values: list[Any]) -> Any:
    """Return values in a container of the same type as the batch: list, tuple or named tuple."""
    return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
