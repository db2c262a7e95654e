"""When the disk reaches each ratio, if the log keeps growing at the same rate.

The rate comes from the store times of the first records of the log's files, over the last day in the log. So
it does not depend on when files were copied. Queues and index grow in proportion to the log: their bytes on
the disk per byte of log are added. Nothing is subtracted for expired files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmqtool.broker.expiry_rules import Chain, Disks, LogFile
from rmqtool.broker.expiry_settings import HOUR_MS, Settings

WINDOW_MS = 24 * HOUR_MS
"""The part of the log, up to its newest record, from which the rate is computed."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A ratio and when it is exceeded: ms from now (0: already), None if the log does not grow."""

    name: str
    ratio: float
    after_ms: int | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """How fast the store grows, and when the disk is full.

    Attributes:
        log_bytes_per_s: growth of the commit log; None if its store times give no rate.
        store_bytes_per_s: growth including queues and index.
        measured_from_ms, measured_to_ms: the store times between which the rate is measured.
        reached: the limits of the log's fullest disk.
        reserved_bytes: bytes of all files that are kept for fileReservedTime at this rate.
        hours_that_fit: how long files can be kept before the disk is above the lowest limit; None without a
            rate.
    """

    log_bytes_per_s: float | None
    store_bytes_per_s: float | None
    measured_from_ms: int | None
    measured_to_ms: int | None
    reached: tuple[Reached, ...]
    reserved_bytes: int | None
    hours_that_fit: float | None


def growth(points: Sequence[tuple[int, int]]) -> tuple[float, int, int] | None:
    """(bytes per second, first time, last time), from (physical offset, store time in ms) in the log's order.

    The window ends at the last point and begins at the newest point a day or more before it, or at the
    first. None for fewer than two points, or if the time or the offset does not increase.
    """
    if not points:
        return None
    end, to_ms = points[-1]
    start, from_ms = points[0]
    for offset, time_ms in points:
        if time_ms <= to_ms - WINDOW_MS:
            start, from_ms = offset, time_ms
    if to_ms <= from_ms or end <= start:
        return None
    return (end - start) * 1000 / (to_ms - from_ms), from_ms, to_ms


def forecast(
    log: Sequence[LogFile],
    chains: Sequence[Chain],
    disks: Disks,
    settings: Settings,
    tail: tuple[int, int | None],
) -> Forecast:
    """When the disk reaches each ratio.

    Args:
        log: the log's files.
        chains: the files that follow the log.
        disks: the present file systems.
        settings: the ratios and the hours.
        tail: the log's end, and the store time of its last record, ms; None if there is none.
    """
    points = [(file.start, file.first_ms) for file in log if file.first_ms is not None]
    end, last_ms = tail
    if last_ms:
        points.append((end, last_ms))
    found = growth(points)
    fullest = max((disk for disk in disks.log if disk in disks.by_id), key=disks.ratio, default=None)
    limits = (
        ("max_used_ratio", settings.max_used_ratio),
        ("forcible_ratio", settings.forcible_ratio),
        ("warning_ratio", settings.warning_ratio),
    )
    if found is None or fullest is None:
        reached = tuple(Reached(name, ratio, None) for name, ratio in limits)
        return Forecast(None, None, None, None, reached, None, None)
    log_rate, from_ms, to_ms = found
    log_bytes = max(end - log[0].start, 1)
    beside = sum(file.allocated for chain in chains for file in chain.files if file.disk == fullest)
    rate = log_rate * (1 + beside / log_bytes)
    disk = disks.by_id[fullest]
    reached = tuple(
        Reached(name, ratio, round(max(ratio * disk.total - disk.used, 0) * 1000 / rate))
        for name, ratio in limits
    )
    store_bytes = sum(file.allocated for file in log if file.disk == fullest) + beside
    room = settings.max_used_ratio * disk.total - (disk.used - store_bytes)
    return Forecast(
        log_bytes_per_s=log_rate,
        store_bytes_per_s=rate,
        measured_from_ms=from_ms,
        measured_to_ms=to_ms,
        reached=reached,
        reserved_bytes=round(rate * settings.reserved_hours * 3600),
        hours_that_fit=max(room, 0) / rate / 3600,
    )
