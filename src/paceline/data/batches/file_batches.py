"""Batches of a `FileDataset`: samples by column, and crops of images, equal to those from shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batch_context import DatasetContext
from paceline.data.batches.faults import fill_gaps, named, tensor_of
from paceline.data.batches.picture_batches import CROPS, cut_out, in_turn, together
from paceline.data.format.image_modes import column_mode, image_header, is_cropped
from paceline.data.format.model import KEY, Column, Payload, Sample
from paceline.data.order.counter_rng import key_of, uniforms
from paceline.data.reading.crops import Crop, antialiases
from paceline.data.reading.file_dataset import FileDataset
from paceline.data.reading.pictures import Decoder, decoder_for

Numbers = NDArray[np.int64]


class FileSamples:
    """A map-style dataset of the requested columns of a `FileDataset`, after the user's function."""

    def __init__(
        self,
        dataset: FileDataset,
        columns: Sequence[Column],
        transform: Callable[[Mapping[str, Any]], Any] | None,
        exact: bool,
        checks_mode: bool,
    ) -> None:
        """Create the dataset.

        Args:
            dataset: The files.
            columns: The columns of samples, with the modes of their images.
            transform: The user's function of a sample; None for no function.
            exact: Whether images are decoded bit for bit as PIL does.
            checks_mode: Whether an image that would lose values in the mode of its column is an error.
        """
        self.dataset, self.columns, self._transform = dataset, columns, transform
        self.exact, self._checks_mode = exact, checks_mode
        self._decoder = decoder_for(columns, exact=exact)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dataset, self.columns, self._transform, self.exact, self._checks_mode)

    def __len__(self) -> int:
        return len(self.dataset)

    def name(self, number: int) -> str:
        """Return the name of a sample, for messages."""
        return self.dataset.name(number)

    def __getitem__(self, number: int) -> Any:
        try:
            sample = self.values(number, self.dataset.sample(number))
            return sample if self._transform is None else self._transform(sample)
        except Exception as error:
            raise named(self.name(number), error)  # noqa: B904 - it is chained, or the same

    def values(self, number: int, own: Sample) -> dict[str, Any]:
        """Return the decoded values of a sample by column.

        Args:
            number: The number of the sample.
            own: The sample as the source has it.

        Raises:
            BadSample: A value cannot be decoded.
        """
        return {column.name: self._value(number, column, own) for column in self.columns}

    def _value(self, number: int, column: Column, own: Sample) -> Any:
        if column.name == KEY:
            return self.dataset.name(number)
        return self.dataset.value(number, column, own[column.name], self._decoder, checks_mode=self._checks_mode)


def columns_together(made: list[Any]) -> dict[str, Any]:
    """Return a batch by column: numbers, arrays and images as a tensor; text, bytes and JSON as a list.

    A column in which a sample of the batch has no value is also a list.
    """
    values = {name: [one[name] for one in made] for name in made[0]}
    listed = (type(None), list, dict, str, bytes)
    return {
        name: own if any(isinstance(value, listed) for value in own) else tensor_of(name, own)
        for name, own in values.items()
    }


class FileCrops:
    """Makes batches of image crops from a `FileDataset`, with the other columns."""

    def __init__(self, context: DatasetContext, beside: FileSamples, column: Column, crop: Crop) -> None:
        """Prepare making batches.

        Args:
            context: The pool of arrays, the clock, the fault counter and the seed.
            beside: Reads the other columns.
            column: The column of images that is cropped.
            crop: The crop.
        """
        self._context, self._beside, self._column, self._crop = context, beside, column, crop
        self._decoder = Decoder(exact=beside.exact)

    def make(self, ids: Numbers, epoch: int) -> tuple[Any, ...]:
        """Make a batch: uint8 images of shape [samples, 3, size, size], channels last in memory; then other columns."""
        import torch

        pixels = self._context.arrays.taken((len(ids), self._crop.size, self._crop.size, 3))
        drawn = uniforms(key_of(self._context.seed, epoch, CROPS), ids, self._crop.draws)
        good, beside = np.ones(len(ids), np.bool_), [dict[str, Any]()] * len(ids)
        with self._context.clock.batch() as lap:
            for turn, number in enumerate(ids.tolist()):
                try:
                    own = self._beside.dataset.sample(number)
                    lap.mark("read")
                    beside[turn] = self._beside.values(number, own)
                    self._fill(pixels[turn], own[self._column.name], drawn[turn][None])
                    lap.mark("decode")
                except ValueError as error:
                    self._context.faults.met(self._beside.name(number), error)
                    good[turn] = False
            fill_gaps(pixels, good)
            whole = [_beside(column, [one.get(column.name) for one in beside], good) for column in self._beside.columns]
            lap.mark("collate", len(ids))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2), *whole

    def _fill(self, slot: NDArray[np.uint8], value: Any, drawn: NDArray[np.float64]) -> None:
        """Decode an image and resize its crop into an array of the batch.

        Raises:
            ValueError: The sample has no image, the image cannot be decoded, or 8-bit RGB would lose its values.
        """
        if not isinstance(value, Payload):
            raise ValueError(f"it has no {self._column.name}")
        mode = image_header(value.data).mode
        if not is_cropped(column_mode({mode, self._column.mode})):
            raise ValueError(f"its mode is {mode}, whose values a crop would lose; give a function as transform=")
        whole = self._decoder.whole(memoryview(value.data))
        boxes = self._crop.boxes(np.array([whole.shape[0]]), np.array([whole.shape[1]]), drawn)
        part, mirrored = cut_out(whole, in_turn(boxes)[0]), bool(boxes.mirrored[0])
        self._decoder.fill(slot, part, mirrored=mirrored, antialias=antialiases(self._crop))


def _beside(column: Column, values: list[Any], good: NDArray[np.bool_]) -> Any:
    """Return a column of a batch: numbers as a tensor, unless a good sample has no value."""
    gaps = [value is None and is_good for value, is_good in zip(values, good.tolist(), strict=True)]
    if not column.is_number or any(gaps):
        return together(values, good)
    kind = np.float64 if column.kind == "float" else np.int64
    return together(np.array([0 if value is None else value for value in values], kind), good)
