"""Batches of images: each image is decoded, cropped and resized directly into its slot of the batch array."""

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
CROPS = 1  # the purpose of the random numbers, part of their key


class _Batch(NamedTuple):
    """The images of a batch before decoding; each field has one entry for each image."""

    numbers: list[int]  # the sample numbers
    places: Sequence[SamplePlace]
    kept: Sequence[SampleBytes | None]  # None if the image is decoded already
    decoded: Sequence[Pixels | None]
    sized: list[bool]  # whether the size is known; otherwise the box is meaningless
    parts: Parts
    boxes: list[Box]
    mirrored: list[bool]
    drawn: NDArray[np.float64]  # random numbers in [0, 1), of shape [samples, draws]


class PictureBatches:
    """Makes batches of a column of images, cropped to one size, together with the other columns."""

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
        """Store the arguments, and create the decoder of images.

        Args:
            context: The dataset, its blocks in memory, and the caches.
            column: The column of images that is cropped.
            others: The other columns, in the order of the batch.
            crop: Chooses the box of each image.
            arrays: The pool of batch arrays.
            exact: Whether images are decoded bit for bit as PIL does.
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
        """Make a batch: uint8 images of shape [samples, 3, size, size], channels last in memory, then other columns.

        Numbers become a tensor. Texts, bytes and images become a list. Arrays become a tensor if all have the same
        shape and type, else a list.

        Args:
            ids: The numbers of the samples.
            epoch: The epoch, from 0, for the random numbers of crops.

        Raises:
            DamagedData: A sample is damaged, and bad samples are not skipped.
            Skipped: All samples are bad.
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
        """Return the values of another column, and set `good` to False for samples with a damaged value."""
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
        """Collect the bytes, sizes and crop boxes of the images."""
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
        """Return the bytes of each sample, and its cached pixels; one of the two is None."""
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
        """Decode each image into its slot, and return which images are good."""
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
        """Return the cropped pixels of one image before resizing, and whether to mirror them."""
        decoded, kept = batch.decoded[turn], batch.kept[turn]
        if decoded is not None:
            return (decoded, False) if self._keeps_made else self._cut(decoded, batch, turn)
        assert kept is not None  # an image that is not cached has its bytes
        if not kept.length:
            raise DamagedData(f"{self._context.dataset.name(batch.places[turn])}: {self._column} is missing")
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
        assert self._context.cache is not None
        self._context.cache.keep(batch.numbers[turn], batch.places[turn], pixels)


def together(values: Any, good: NDArray[np.bool_]) -> Any:
    """Return the values of a column as a tensor or a list, with bad values replaced by good ones.

    Raises:
        Skipped: No sample is good.
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
    """Return the boxes of a batch as a list with one box for each image."""
    return list(map(Box, *(one.tolist() for one in (boxes.top, boxes.left, boxes.height, boxes.width))))


def cut_out(pixels: Pixels, box: Box) -> Pixels:
    """Return the pixels of an image inside a box, as a view."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]
