"""The file size of mapped-file queues, found from the files, for a store not made with the defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise


def common_file_size(queues: Iterable[Sequence[tuple[int, int]]], unit: int = 1) -> int | None:
    """The file size of a family of mapped-file queues; None where there is nothing to tell it from.

    Args:
        queues: per queue the (file_from_offset, size) of its files in order.
        unit: the size is a multiple of this, bytes.

    Every file and every step from one name to the next counts as a vote. Among equal votes a size
    that divides all names wins, then one that a file really has, then the larger one.
    """
    votes: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    names: set[int] = set()
    for files in queues:
        for offset, size in files:
            names.add(offset)
            sizes[size] += 1
        for (left, _), (right, _) in pairwise(files):
            votes[right - left] += 1
    votes.update(sizes)
    candidates = [size for size in votes if size > 0 and size % unit == 0]
    if not candidates:
        return None
    # Only the best-voted sizes are compared with the names: thousands of queues cost one pass.
    best = max(votes[size] for size in candidates)
    return max(
        (size for size in candidates if votes[size] == best),
        key=lambda size: (all(name % size == 0 for name in names), sizes[size], size),
    )
