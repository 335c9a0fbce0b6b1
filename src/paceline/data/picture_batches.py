"""How does a batch of pictures come about? Each is decoded, cut and resized straight into its place in one array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.chance import key_of, uniforms
from paceline.data.crops import Boxes, Crop
from paceline.data.faults import fill_gaps
from paceline.data.index import DamagedData
from paceline.data.jpeg import Frame
from paceline.data.pictures import Box, Decoder, Pixels, UndecodablePicture
from paceline.data.reach import Arrays, Kept, Reach
from paceline.data.sharded import Place

Numbers = NDArray[np.int64]
_CROPS = 1  # what random numbers are for


class _Picture(NamedTuple):
    """One picture of a batch, before it is decoded."""

    number: int  # of the sample
    place: Place
    kept: Kept | None  # None: it is decoded already
    decoded: Pixels | None
    frame: Frame  # of zeros where it is not known
    intervals: NDArray[np.int32]  # that can be decoded alone; none
    box: Box
    mirrored: bool
    drawn: NDArray[np.float64]  # numbers of this sample, from 0 to below 1


class PictureBatches:
    """Batches of a column of pictures, all of one size, with columns of numbers beside it."""

    def __init__(self, reach: Reach, column: str, crop: Crop, arrays: Arrays, *, exact: bool) -> None:
        self._reach = reach
        self._column = column
        self._numbers = [one.name for one in reach.dataset.contents.columns if one.is_number]
        self._crop = crop
        self._decoder = Decoder(exact=exact)
        self._arrays = arrays
        self._keeps_made = reach.cache is not None and not crop.draws
        self._keeps_whole = reach.cache is not None and bool(crop.draws)

    def make(self, ids: Numbers, epoch: int) -> tuple[Any, ...]:
        """Make a batch: pictures of shape [samples, 3, size, size], bytes, channels last in memory; then numbers."""
        import torch

        dataset, size = self._reach.dataset, self._crop.size
        places = dataset.places(ids)
        pixels = self._arrays.taken((len(ids), size, size, 3))
        drawn = uniforms(key_of(self._reach.seed, epoch, _CROPS), ids, self._crop.draws)
        good = self._fill(pixels, self._pictures(ids, places, drawn))
        fill_gaps(pixels, good)
        numbers = [dataset.numbers(name, places) for name in self._numbers]
        for values in numbers:
            fill_gaps(values, good)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2), *(torch.from_numpy(values) for values in numbers)

    def _pictures(self, ids: Numbers, places: Sequence[Place], drawn: NDArray[np.float64]) -> Iterator[_Picture]:
        """Put together what is known of each picture; the box of one of unknown size means nothing."""
        dataset, name = self._reach.dataset, self._column
        payloads, decoded = self._had(ids, places)
        told = dataset.gathered(name, Frame._fields, places)
        heights, widths = (np.maximum(told[key].astype(np.int64), 1) for key in ("height", "width"))
        boxes = self._crop.boxes(heights, widths, drawn)
        frames = map(Frame, *(told[key].tolist() for key in Frame._fields))
        intervals = dataset.intervals(name, places)
        mirrored = boxes.mirrored.tolist()
        numbers = ids.tolist()
        yield from map(_Picture, numbers, places, payloads, decoded, frames, intervals, in_turn(boxes), mirrored, drawn)

    def _had(self, ids: Numbers, places: Sequence[Place]) -> tuple[Sequence[Kept | None], Iterable[Pixels | None]]:
        """Return the bytes of samples, or what was decoded of them before."""
        cache = self._reach.cache
        if cache is None:
            return self._reach.payloads(self._column, ids, places), repeat(None)
        decoded = list(map(cache.found, ids.tolist(), places))
        missing = [turn for turn, one in enumerate(decoded) if one is None]
        payloads = iter(self._reach.payloads(self._column, ids[missing], [places[turn] for turn in missing]))
        return [next(payloads) if one is None else None for one in decoded], decoded

    def _fill(self, pixels: NDArray[np.uint8], pictures: Iterable[_Picture]) -> NDArray[np.bool_]:
        """Decode each picture into its place, and say which came out well."""
        good = np.ones(len(pixels), np.bool_)
        with self._reach.clock.batch() as lap:
            found = list(pictures)
            lap.mark("lookup", len(found))
            for number, one in enumerate(found):
                try:
                    part, mirrored = self._part(one)
                    lap.mark("decode")
                    self._decoder.fill(pixels[number], part, mirrored=mirrored)
                    if self._keeps_made and one.decoded is None:
                        self._keep(one, pixels[number])
                    lap.mark("transform")
                except (DamagedData, UndecodablePicture) as error:
                    self._reach.faults.met(self._reach.dataset.name(one.place), error)
                    good[number] = False
        return good

    def _part(self, one: _Picture) -> tuple[Pixels, bool]:
        """Return the part of one picture, and whether it is mirrored."""
        if one.decoded is not None:
            return (one.decoded, False) if self._keeps_made else self._cut(one.decoded, one)
        assert one.kept is not None  # its bytes are there, if it is not decoded
        data = self._reach.checked(self._column, one.place, one.kept)
        keeps = self._keeps_whole and self._keep_more(one.number)
        if len(one.intervals) and not keeps:
            return self._decoder.part(data, one.intervals, one.frame, one.box), one.mirrored
        whole = self._decoder.whole(data)
        if keeps:
            self._keep(one, whole)
        return self._cut(whole, one)

    def _cut(self, whole: Pixels, one: _Picture) -> tuple[Pixels, bool]:
        if one.frame.height:
            return cut_out(whole, one.box), one.mirrored
        own = self._crop.boxes(np.array([whole.shape[0]]), np.array([whole.shape[1]]), one.drawn[None])
        return cut_out(whole, next(in_turn(own))), bool(own.mirrored[0])

    def _keep_more(self, number: int) -> bool:
        return self._reach.cache is not None and self._reach.cache.has_room(number)

    def _keep(self, one: _Picture, pixels: Pixels) -> None:
        assert self._reach.cache is not None  # something is kept
        self._reach.cache.keep(one.number, one.place, pixels)


def in_turn(boxes: Boxes) -> Iterator[Box]:
    """Yield boxes one by one."""
    return map(Box, *(one.tolist() for one in (boxes.top, boxes.left, boxes.height, boxes.width)))


def cut_out(pixels: Pixels, box: Box) -> Pixels:
    """Return a part of a picture that is decoded."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]
