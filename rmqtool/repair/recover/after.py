"""The store after the planned changes of the log, the queues and the index."""

from __future__ import annotations

from collections.abc import Mapping

from rmqtool.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class After:
    """The facts with which checkpoint, config and timer files must agree.

    Attributes:
        log_end: physical offset after the last record or blank.
        last_store_timestamp: store time of the last record, ms since 1970; 0 in an empty log.
        index_timestamp: end time of the newest full index file, ms; 0 if none is full.
        queues: minimum and end, half-open queue offsets, by (topic, queue id).
        changes: whether the plan, or the interrupted run that it completes, changes log, queues or index.
    """

    log_end: int
    last_store_timestamp: int
    index_timestamp: int
    queues: Mapping[tuple[str, int], tuple[int, int]]
    changes: bool
