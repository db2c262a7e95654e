"""How much of an exhaustive test a run takes: a seeded sample, or all with RMQTOOL_SWEEP=1 (`make sweep`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
IS_WHOLE = os.environ.get("RMQTOOL_SWEEP", "") not in ("", "0")


def sample(items: Sequence[T], one_in: int) -> list[T]:
    """One of `one_in` items, at least one, the same in every run and in their order; all in a sweep."""
    if IS_WHOLE:
        return list(items)
    numbers = Random(len(items)).sample(range(len(items)), max(len(items) // one_in, 1)) if items else []
    return [items[number] for number in sorted(numbers)]


def paired(first: Iterable[T], second: Iterable[U], rounds: int = 1) -> list[tuple[T, U]]:
    """Each item of the longer with `rounds` of the other in turn, so that all occur; all pairs in a sweep."""
    ones, others = list(first), list(second)
    if IS_WHOLE:
        return [(one, other) for one in ones for other in others]
    count = max(len(ones), len(others)) if ones and others else 0
    places = {
        (number % len(ones), (number + more) % len(others))
        for more in range(rounds)
        for number in range(count)
    }
    return [(ones[one], others[other]) for one, other in sorted(places)]


def in_sweeps(items: Sequence[T]) -> list[T]:
    """All in a sweep, else none: what shows the same as cheaper items of the default run, on more data."""
    return list(items) if IS_WHOLE else []
