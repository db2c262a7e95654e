"""The file size of mapped-file queues, detected from the files, because a store need not use the defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise


def common_file_size(queues: Iterable[Sequence[tuple[int, int]]], unit: int = 1) -> int | None:
    """The file size of a family of mapped-file queues; None if the files do not show it.

    Args:
        queues: per queue the (file_from_offset, size) of its files in order.
        unit: the size is a multiple of this, bytes.

    Every file's size and every step from one name to the next is a vote. If votes are equal, a size that
    divides all names wins, then the one that more files have, then the larger one.
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
    # Only the sizes with most votes are compared with the names, so thousands of queues cost one pass.
    best = max(votes[size] for size in candidates)
    return max(
        (size for size in candidates if votes[size] == best),
        key=lambda size: (all(name % size == 0 for name in names), sizes[size], size),
    )
