"""How much of an exhaustive test a run takes: a seeded sample, or all with RMQTOOL_SWEEP=1 (`make sweep`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
IS_WHOLE = os.environ.get("RMQTOOL_SWEEP", "") not in ("", "0")


def sample(items: Sequence[T], one_in: int) -> list[T]:
    """One of `one_in` items, at least one, the same in every run and in their order; all in a sweep."""
    if IS_WHOLE:
        return list(items)
    numbers = Random(len(items)).sample(range(len(items)), max(len(items) // one_in, 1)) if items else []
    return [items[number] for number in sorted(numbers)]
