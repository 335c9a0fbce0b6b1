"""A counter-based random generator: the numbers are the same on every machine and with every version of NumPy.

The generator is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) of a
counter, with a key derived from numbers such as seed, epoch and sample. NumPy can change its generators between
versions, and a resumed run must keep its order of samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def key_of(*numbers: int) -> int:
    """Return a key of 64 bits derived from integers; their order matters."""
    key = len(numbers)
    for number in numbers:
        key = _scrambled((key ^ (number & _MASK)) + _GOLDEN & _MASK)
    return key


def keys_of(numbers: tuple[int, ...], last: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the key of each integer in `last`: `key_of(*numbers, integer)`.

    Args:
        numbers: The first integers of each key.
        last: The last integer of each key, an array of any shape.

    Returns:
        An array of keys in the shape of `last`.
    """
    key = len(numbers) + 1
    for number in numbers:
        key = _scrambled((key ^ (number & _MASK)) + _GOLDEN & _MASK)
    return _mixed((last.astype(np.uint64) ^ np.uint64(key)) + np.uint64(_GOLDEN))


def numbers(key: int, count: int) -> NDArray[np.uint64]:
    """Return `count` random integers of 64 bits."""
    return _mixed(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def _mixed(drawn: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        drawn = (drawn ^ (drawn >> np.uint64(shift))) * np.uint64(factor)
    return drawn ^ (drawn >> np.uint64(31))


def uniforms(key: int, ids: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return random numbers in [0, 1) for each sample, which depend only on the key and the sample's id.

    Args:
        key: The key, from `key_of`.
        ids: The numbers of the samples.
        count: How many random numbers each sample gets.

    Returns:
        An array of shape [ids, count].
    """
    own = _mixed(ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
    drawn = _mixed(own[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """Return the integers from 0 to `count` - 1 in a random order."""
    return np.argsort(numbers(key, count), kind="stable").astype(np.int64)


def permutations(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return several permutations, one after the other, as one array of shape [sum of counts].

    The first permutation has the integers from 0 to its count - 1, and each further one continues where the previous
    one ends. The order within a permutation is that of `permutation(key, count)`.

    Args:
        keys: The key of each permutation, of shape [permutations].
        counts: The length of each permutation, of shape [permutations].
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    drawn = _mixed((inside.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + keys[owner])
    return np.lexsort((drawn, owner)).astype(np.int64)


def _scrambled(number: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ (number >> shift)) * factor & _MASK
    return number ^ (number >> 31)
