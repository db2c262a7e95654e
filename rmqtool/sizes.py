"""Sizes, counts and names as short text, and parsers for sizes and queue ids of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rmqtool.errors import UsageError
from rmqtool.lazy_pattern import pattern

QUEUE_ID_MAX = 65_535
SIZE_MAX = (1 << 63) - 1
_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE = pattern(r"([0-9]{1,19})(?:\.([0-9]{1,19}))? *([kmgt]?)(i?b)?", re.IGNORECASE | re.ASCII)
_QUEUES = pattern(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def parse_size(text: str) -> int:
    """Bytes of a size: `4096`, `64K`, `100M`, `1.5GiB` (powers of 1024), `100MB` (powers of 1000).

    The result is exact; a fraction of a byte is dropped. Raises UsageError for other text, for less than one
    byte and for more than `SIZE_MAX`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{short(text)} is not a size; use 4096, 64K, 100M, 1.5GiB or 100MB")
    fraction, prefix, suffix = match[2] or "", match[3].upper(), (match[4] or "").upper()
    base = 1000 if suffix == "B" and prefix else 1024
    unit = base ** " KMGT".index(prefix or " ")
    size: int = int(match[1] + fraction) * unit // 10 ** len(fraction)
    if not 1 <= size <= SIZE_MAX:
        raise UsageError(f"{short(text)} is out of range; use 1 byte to 8388607T")
    return size


def format_size(size_bytes: int) -> str:
    """`size_bytes` with one decimal in the largest IEC unit: `512 B`, `1.5 KiB`, `3.0 GiB`."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _SIZE_UNITS:
        value /= 1024
        if abs(value) < 1024 or unit == _SIZE_UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def parse_queues(text: str) -> tuple[int, ...]:
    """Queue ids of `3`, `0-3` or `0-3,7`, each once and in order. Raises UsageError for other text."""
    ids: set[int] = set()
    for part in text.split(","):
        match = _QUEUES.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if not first <= last <= QUEUE_ID_MAX:
            raise UsageError(f"{short(text)} is not a queue id; use 3, 0-3 or 0-3,7")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def short(text: str) -> str:
    """The user's text in quotation marks, shortened to 40 characters."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


NAMES_SHOWN = 3
_NAME_LENGTH = 48


def cut_name(name: str) -> str:
    """A name of at most 48 characters; a longer one loses its middle."""
    return name if len(name) <= _NAME_LENGTH else f"{name[:30]}…{name[-_NAME_LENGTH + 31 :]}"


def largest_counts(counts: Mapping[str, int], rest: str, show: Callable[[str], str] = cut_name) -> list[str]:
    """`5 of A`, the largest first, and together the others: `4 in 2 more topics`, where `rest` is `topic`.

    A single other one is named too. `show` makes names fit for the reader.
    """
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = len(found) if len(found) <= NAMES_SHOWN + 1 else NAMES_SHOWN
    parts = [f"{count} of {show(name)}" for name, count in found[:shown]]
    if found[shown:]:
        more = sum(count for _, count in found[shown:])
        parts.append(f"{more} in {len(found) - shown} more {rest}s")
    return parts
