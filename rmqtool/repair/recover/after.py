"""What the store is like once the log, the queues and the index are as the plan leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class After:
    """The truth that the small files beside the log have to agree with.

    Attributes:
        log_end: physical offset behind the last record or blank.
        last_store_timestamp: of the last record, ms since 1970; 0 in an empty log.
        index_timestamp: end time of the newest full index file, ms; 0 where none is full.
        queues: minimum and end, half-open queue offsets, by (topic, queue id).
        changes: whether the plan, or the run that it finishes, changes log, queues or index.
    """

    log_end: int
    last_store_timestamp: int
    index_timestamp: int
    queues: Mapping[tuple[str, int], tuple[int, int]]
    changes: bool
