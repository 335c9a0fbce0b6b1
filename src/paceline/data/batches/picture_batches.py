"""Batches of images. Each image is decoded, cut and resized straight into its place in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batch_context import ArrayPool, BatchContext, SampleBytes
from paceline.data.batches.faults import fill_gaps
from paceline.data.format.index import DamagedData
from paceline.data.format.jpeg import JpegFrame
from paceline.data.format.model import KEY, Column
from paceline.data.order.counter_rng import key_of, uniforms
from paceline.data.reading.crops import Boxes, Crop, antialiases
from paceline.data.reading.jpeg_parts import Parts, parts_of
from paceline.data.reading.pictures import Box, Decoder, Pixels, UndecodablePicture, value_of
from paceline.data.reading.sharded import SamplePlace, missing_of, sample_keys

Numbers = NDArray[np.int64]
CROPS = 1  # what random numbers are for


class _Batch(NamedTuple):
    """The pictures of a batch, before they are decoded: what is known of each, in turn."""

    numbers: list[int]  # of samples
    places: Sequence[SamplePlace]
    kept: Sequence[SampleBytes | None]  # None: it is decoded already
    decoded: Sequence[Pixels | None]
    sized: list[bool]  # whether its size is known; its box means nothing where not
    parts: Parts
    boxes: list[Box]
    mirrored: list[bool]
    drawn: NDArray[np.float64]  # numbers of each sample, from 0 to below 1


class PictureBatches:
    """Batches of a column of pictures, all of one size, with the other columns beside it."""

    def __init__(
        self,
        context: BatchContext,
        column: str,
        others: Sequence[Column],
        crop: Crop,
        arrays: ArrayPool,
        *,
        exact: bool,
    ) -> None:
        """Prepare making batches.

        Args:
            context: What batches are made of.
            column: The column of pictures that is cropped.
            others: The columns beside it, in their order.
            crop: What to take of each picture.
            arrays: Where pictures become batches.
            exact: Whether pictures are decoded as PIL does.
        """
        self._context = context
        self._column = column
        self._others = others
        self._crop, self._antialias = crop, antialiases(crop)
        self._decoder = Decoder(exact=exact)
        self._arrays = arrays
        self._keeps_made = context.cache is not None and not crop.draws
        self._keeps_whole = context.cache is not None and bool(crop.draws)

    def make(self, ids: Numbers, epoch: int) -> tuple[Any, ...]:
        """Make a batch: pictures of shape [samples, 3, size, size], bytes, channels last in memory; then other columns.

        Numbers are a tensor; texts, bytes and images are a list; arrays are a tensor if they have the same shape,
        else a list.
        """
        import torch

        dataset, size = self._context.dataset, self._crop.size
        places = dataset.places(ids)
        pixels = self._arrays.taken((len(ids), size, size, 3))
        drawn = uniforms(key_of(self._context.seed, epoch, CROPS), ids, self._crop.draws)
        good = self._fill(pixels, ids, places, drawn)
        beside = [self._beside(column, ids, places, good) for column in self._others]
        fill_gaps(pixels, good)
        whole = [together(values, good) for values in beside]
        return torch.from_numpy(pixels).permute(0, 3, 1, 2), *whole

    def _beside(self, column: Column, ids: Numbers, places: Sequence[SamplePlace], good: NDArray[np.bool_]) -> Any:
        """Return the values of another column, and note samples whose value is damaged."""
        dataset, missing = self._context.dataset, missing_of(self._context.dataset, column, places)
        if column.is_number:
            numbers = dataset.numbers(column.name, places)
            some = [None if gone else one for one, gone in zip(numbers.tolist(), missing, strict=True)]
            return some if column.optional else numbers
        if column.name == KEY:
            return sample_keys(dataset, places)
        found: list[Any] = []
        for turn, kept in enumerate(self._context.payloads(column.name, ids, places)):
            try:
                data = self._context.checked(column.name, places[turn], kept)
                there = good[turn] and not missing[turn]
                found.append(value_of(column, data, self._decoder) if there else None)
            except (ValueError, DamagedData) as error:
                self._context.faults.met(dataset.name(places[turn]), error)
                found.append(None)
                good[turn] = False
        return found

    def _known(self, ids: Numbers, places: Sequence[SamplePlace], drawn: NDArray[np.float64]) -> _Batch:
        """Put together what is known of the pictures."""
        dataset, name = self._context.dataset, self._column
        payloads, decoded = self._had(ids, places)
        told = dataset.gathered(name, JpegFrame._fields, places)
        frames = JpegFrame(*(told[key].astype(np.int64) for key in JpegFrame._fields))
        boxes = self._crop.boxes(np.maximum(frames.height, 1), np.maximum(frames.width, 1), drawn)
        parts = parts_of(frames, dataset.intervals(name, places), boxes, beyond=self._decoder.looks_beyond)
        sized, mirrored = (frames.height > 0).tolist(), boxes.mirrored.tolist()
        return _Batch(ids.tolist(), places, payloads, decoded, sized, parts, in_turn(boxes), mirrored, drawn)

    def _had(
        self, ids: Numbers, places: Sequence[SamplePlace]
    ) -> tuple[Sequence[SampleBytes | None], Sequence[Pixels | None]]:
        """Return the bytes of samples, or what was decoded of them before."""
        cache = self._context.cache
        if cache is None:
            return self._context.payloads(self._column, ids, places), [None] * len(places)
        decoded = list(map(cache.found, ids.tolist(), places))
        missing = [turn for turn, one in enumerate(decoded) if one is None]
        payloads = iter(self._context.payloads(self._column, ids[missing], [places[turn] for turn in missing]))
        return [next(payloads) if one is None else None for one in decoded], decoded

    def _fill(
        self, pixels: NDArray[np.uint8], ids: Numbers, places: Sequence[SamplePlace], drawn: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Decode each picture into its place, and say which came out well."""
        good = np.ones(len(pixels), np.bool_)
        with self._context.clock.batch() as lap:
            batch = self._known(ids, places, drawn)
            lap.mark("lookup", len(places))
            for turn in range(len(places)):
                try:
                    part, mirrored = self._part(batch, turn)
                    lap.mark("decode")
                    self._decoder.fill(pixels[turn], part, mirrored=mirrored, antialias=self._antialias)
                    if self._keeps_made and batch.decoded[turn] is None:
                        self._keep(batch, turn, pixels[turn])
                    lap.mark("transform")
                except (DamagedData, UndecodablePicture) as error:
                    self._context.faults.met(self._context.dataset.name(places[turn]), error)
                    good[turn] = False
        return good

    def _part(self, batch: _Batch, turn: int) -> tuple[Pixels, bool]:
        """Return the part of one picture, and whether it is mirrored."""
        decoded, kept = batch.decoded[turn], batch.kept[turn]
        if decoded is not None:
            return (decoded, False) if self._keeps_made else self._cut(decoded, batch, turn)
        assert kept is not None  # its bytes are there, if it is not decoded
        data = self._context.checked(self._column, batch.places[turn], kept)
        keeps = self._keeps_whole and self._keep_more(batch.numbers[turn])
        if batch.parts.cut[turn] and not keeps:
            return self._decoder.part(data, batch.parts, turn, batch.boxes[turn]), batch.mirrored[turn]
        whole = self._decoder.whole(data)
        if keeps:
            self._keep(batch, turn, whole)
        return self._cut(whole, batch, turn)

    def _cut(self, whole: Pixels, batch: _Batch, turn: int) -> tuple[Pixels, bool]:
        if batch.sized[turn]:
            return cut_out(whole, batch.boxes[turn]), batch.mirrored[turn]
        own = self._crop.boxes(np.array([whole.shape[0]]), np.array([whole.shape[1]]), batch.drawn[turn][None])
        return cut_out(whole, in_turn(own)[0]), bool(own.mirrored[0])

    def _keep_more(self, number: int) -> bool:
        return self._context.cache is not None and self._context.cache.has_room(number)

    def _keep(self, batch: _Batch, turn: int, pixels: Pixels) -> None:
        assert self._context.cache is not None  # something is kept
        self._context.cache.keep(batch.numbers[turn], batch.places[turn], pixels)


def together(values: Any, good: NDArray[np.bool_]) -> Any:
    """Return the values of a column as a batch has them, good ones in place of bad ones.

    Raises:
        Skipped: There is no good one.
    """
    import torch

    if not isinstance(values, list):
        fill_gaps(values, good)
        return torch.from_numpy(values)
    turns = np.arange(len(values))
    fill_gaps(turns, good)
    values = [values[turn] for turn in turns.tolist()]
    if not all(isinstance(one, np.ndarray) for one in values):
        return values
    tensors = [torch.from_numpy(np.ascontiguousarray(one)) for one in values]
    same = len({(one.shape, one.dtype) for one in tensors}) == 1
    return torch.stack(tensors) if same else tensors


def in_turn(boxes: Boxes) -> list[Box]:
    """Return boxes one by one."""
    return list(map(Box, *(one.tolist() for one in (boxes.top, boxes.left, boxes.height, boxes.width))))


def cut_out(pixels: Pixels, box: Box) -> Pixels:
    """Return a part of a picture that is decoded."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]
